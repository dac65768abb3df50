"""From a function of whole arrays to straight-line equations on the rows of vertices and edges.

The function is traced twice, with different numbers of vertices and edges: a size that changes with
them is theirs, all others are the user's. So nothing is guessed from sizes that happen to be equal.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit import _compat
from gnnjit.errors import StreamError

_INLINED = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "composite"}
_CUSTOM = {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_IDENTITIES = {"optimization_barrier", "stop_gradient", "copy", "copy_p"}
"""Their results are their operands: nothing is differentiated any more."""

MOST_STEPS = 256
"""Steps of a loop over arrays of vertices that are written out one after the other."""


class Rows(enum.Enum):
    """Of what an array has one row each, along one of its axes."""

    VERTEX = "vertices"
    EDGE = "edges"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The two numbers of vertices and of edges that a function is traced with."""

    vertices: tuple[int, int]
    edges: tuple[int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Array:
    """An array of the function, compared by identity.

    shape: of one row, where `rows` is set; else the whole shape.
    axis: of the user's array, along which the rows lie.
    """

    shape: tuple[int, ...]
    dtype: Any
    rows: Rows | None
    axis: int = 0

    @property
    def row_bytes(self) -> int:
        """Of one row (of all of it, without rows)."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        sizes = [*map(str, self.shape)]
        if self.rows is not None:
            sizes.insert(self.axis, self.rows.value)
        return f"{self.dtype}[{', '.join(sizes)}]"


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A scalar that stands in the code."""

    value: Any
    dtype: Any
    shape: tuple[int, ...] = ()
    rows: None = None


Operand = Array | Constant


@dataclasses.dataclass(frozen=True, eq=False)
class Equation:
    """`outputs = primitive(inputs; params)`, with the parameters of the first trace."""

    primitive: Any
    params: Mapping[str, Any]
    inputs: tuple[Operand, ...]
    outputs: tuple[Array, ...]
    where: str

    @property
    def name(self) -> str:
        return self.primitive.name


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """The equations of a function in order, nested calls inlined and unread ones left out.

    constants: arrays that the function closed over.
    """

    inputs: tuple[Array, ...]
    constants: tuple[tuple[Array, Any], ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Operand, ...]


Expand = Mapping[Any, Callable[[Mapping[str, Any]], Callable[..., Any]]]
"""For primitives that stand for other code: from an equation's parameters to that code, a function
of its operands."""


def trace(
    fn: Callable[[int], tuple[Callable[..., Any], Sequence[Any]]], sizes: Sizes, expand: Expand
) -> tuple[Function, Any]:
    """The equations of a function, and what `jax.eval_shape` says of its result.

    Args:
        fn: `fn(k)` gives the function and its arguments (arrays or shapes) for the k-th of the two
            sizes: flat arrays in, a pytree out.
        sizes: the two numbers of vertices and edges; different ones.
        expand: of primitives that are replaced by their code.

    Raises:
        StreamError: an array has a size that is neither fixed nor a number of vertices or edges,
            or two of these; the code depends on these numbers; something of the vertices is in a
            loop whose length is unknown.
    """  # fmt: skip
    f, args = fn(0)
    try:
        first = jax.make_jaxpr(f, return_shape=True)(*args)
    except StreamError as error:  # of what stands for the edges
        at = _compat.raised_at(error)
        raise StreamError(f"{at}: {error}" if at else str(error)) from None
    f, args = fn(1)
    try:
        second = jax.make_jaxpr(f, return_shape=True)(*args)
    except (TypeError, ValueError) as error:  # shapes that fitted with the first sizes
        if isinstance(error, StreamError):
            raise
        raise StreamError(_depends("an array", _compat.raised_at(error))) from error
    walker = _Walker(sizes, expand)
    outputs, inputs = walker.whole(first[0], second[0])
    function = Function(inputs, tuple(walker.constants), tuple(walker.equations), outputs)
    return _drop_unread(function), first[1]


class _Walker:
    """Reads two jaxprs of one function side by side."""

    def __init__(self, sizes: Sizes, expand: Expand) -> None:
        self.sizes = sizes
        self.expand = expand
        self.equations: list[Equation] = []
        self.constants: list[tuple[Array, Any]] = []
        self.called_at: str | None = None
        self.stacks: dict[Operand, list[Operand]] = {}  # of a loop, what its steps gave

    def whole(self, one: Any, two: Any) -> tuple[tuple[Operand, ...], tuple[Array, ...]]:
        jaxprs = [_compat.open_jaxpr(j)[0] for j in (one, two)]
        inputs = tuple(
            self.array(a.aval, b.aval, "an argument")
            for a, b in zip(*(j.invars for j in jaxprs), strict=True)
        )
        outputs = tuple(self.call(one, two, inputs))
        made_at = {x: eqn.where + ": " for eqn in self.equations for x in eqn.outputs}
        for x in outputs:
            if isinstance(x, Array) and x.axis:
                raise StreamError(
                    f"{made_at.get(x, '')}a result is {x}, expected the vertices along its first "
                    "axis: transpose it"
                )
        return outputs, inputs

    def call(self, one: Any, two: Any, args: Sequence[Operand]) -> list[Operand]:
        (a, consts), (b, others) = map(_compat.open_jaxpr, (one, two))
        if len(consts) != len(others):
            raise StreamError(_depends("a value that is closed over", self.called_at))
        lifted = list(map(self.constant, a.constvars, b.constvars, consts))
        env: dict[Any, Operand] = dict(zip(a.constvars, lifted, strict=True))
        env.update(zip(a.invars, args, strict=True))
        for eqn, other in zip(a.eqns, b.eqns, strict=False):
            ins = [self.read(env, v) for v in eqn.invars]
            outs = self.equation(eqn, other, ins)
            env.update(zip(eqn.outvars, outs, strict=True))
        if len(a.eqns) != len(b.eqns):
            least = min(len(a.eqns), len(b.eqns))
            extra = (*a.eqns[least:], *b.eqns[least:])[0]
            raise StreamError(_depends("the code", self.called_at or _line(extra)))
        return [self.read(env, v) for v in a.outvars]

    def made(self, fn: Callable[..., Any], args: Sequence[Operand], one: Any, two: Any) -> Any:
        """The equations of `fn`, whose arguments have these shapes in the two traces."""
        a, b = (jax.make_jaxpr(fn)(*map(_compat.like, each)) for each in (one, two))
        return self.call(a, b, args)

    def read(self, env: Mapping[Any, Operand], var: Any) -> Operand:
        if not isinstance(var, _compat.JaxprLiteral):
            return env[var]
        aval: Any = var.aval
        if not np.shape(var.val):
            return Constant(var.val, aval.dtype)
        return self.constant(var, var, var.val)

    def constant(self, var: Any, other: Any, value: Any) -> Operand:
        found = self.array(var.aval, other.aval, "a value that is closed over")
        if found.rows is not None:
            raise StreamError(_depends("a value that is closed over", self.called_at))
        if not found.shape and not jnp.issubdtype(found.dtype, jax.dtypes.prng_key):
            return Constant(np.asarray(value)[()], found.dtype)
        self.constants.append((found, value))
        return found

    def equation(self, eqn: Any, other: Any, ins: list[Operand]) -> Sequence[Operand]:
        where = self.called_at or _line(eqn)
        if eqn.primitive is not other.primitive or len(eqn.outvars) != len(other.outvars):
            raise StreamError(_depends("the code", where))
        outer, self.called_at = self.called_at, where
        outs = self.inlined(eqn, other, ins, where)
        self.called_at = outer
        if outs is not None:
            return outs
        name = eqn.primitive.name
        arrays = [
            self.array(v.aval, w.aval, f"the result of {name}", where)
            for v, w in zip(eqn.outvars, other.outvars, strict=True)
        ]
        self.equations.append(
            Equation(eqn.primitive, dict(eqn.params), tuple(ins), tuple(arrays), where)
        )
        return arrays

    def inlined(self, eqn: Any, other: Any, ins: list[Operand], where: str) -> list[Operand] | None:
        """The results, if an equation stands for other ones."""
        name = eqn.primitive.name
        if name in _IDENTITIES:
            return ins
        if eqn.primitive in self.expand:
            one, two = (
                jax.make_jaxpr(self.expand[e.primitive](e.params))(*_shapes(e))
                for e in (eqn, other)
            )
            return self.call(one, two, ins)
        if _compat.expansion(eqn) is not None:
            one, two = map(_expanded, (eqn, other))
            return self.call(one, two, ins)
        if name in _INLINED or name in _CUSTOM:
            one, two = (e.params.get("jaxpr", e.params.get("call_jaxpr")) for e in (eqn, other))
            return self.call(one, two, ins)
        if name not in ("scan", "cond", "while"):
            return None
        shapes = [[v.aval.shape for v in e.outvars] for e in (eqn, other)]
        if shapes[0] == shapes[1] and all(x.rows is None for x in ins):
            return None
        if name == "scan":
            return self.unrolled(eqn, other, ins, where)
        if name == "cond":
            return self.selected(eqn, other, ins)
        rows = next((x for x in ins if x.rows is not None), None)
        raise StreamError(
            f"{where}: while has {rows} among its values, expected no array of vertices or edges "
            "in a loop whose length is not known beforehand: use a loop of fixed length"
        )

    def selected(self, eqn: Any, other: Any, ins: list[Operand]) -> list[Operand]:
        """Both branches of a condition, and what it selects of their results."""
        branches = zip(eqn.params["branches"], other.params["branches"], strict=True)
        every = [self.call(*pair, ins[1:]) for pair in branches]
        found: list[Operand] = []
        for k, (v, w) in enumerate(zip(eqn.outvars, other.outvars, strict=True)):
            results = [outs[k] for outs in every]
            shapes = [[e.invars[0].aval, *[x.aval] * len(every)] for e, x in ((eqn, v), (other, w))]
            found += self.made(jax.lax.select_n, [ins[0], *results], *shapes)
        return found

    def unrolled(self, eqn: Any, other: Any, ins: list[Operand], where: str) -> list[Operand]:
        """The steps of a scan one after the other."""
        p, q = eqn.params, other.params
        steps, (consts, carried) = p["length"], _compat.scan_counts(p)
        first = consts + carried
        carry, given = ins[consts:first], ins[first:]
        over = next((x for x in given if isinstance(x, Array) and x.rows and not x.axis), None)
        if over is not None:
            raise StreamError(
                f"{where}: a scan goes over the rows of {over}, expected values that are the same "
                "for all vertices: these have no order here, use a layer"
            )
        if steps != q["length"] or not 1 <= steps <= MOST_STEPS:
            raise StreamError(
                f"{where}: a scan of {steps} steps over vertices or edges, expected 1 to "
                f"{MOST_STEPS}, as many for every graph: loop outside of the streamed function"
            )
        shapes = [[v.aval for v in e.invars[first:]] for e in (eqn, other)]
        made: list[list[Operand]] = [[] for _ in eqn.outvars[carried:]]
        for step in range(steps)[:: -1 if p["reverse"] else 1]:
            xs = [self.step(x, step, *pair) for x, *pair in zip(given, *shapes, strict=True)]
            outs = self.call(p["jaxpr"], q["jaxpr"], [*ins[:consts], *carry, *xs])
            carry = outs[:carried]
            for values, y in zip(made, outs[carried:], strict=True):
                values.append(y)
        stacked: list[Operand] = []
        inner = [_compat.open_jaxpr(e["jaxpr"])[0].outvars[carried:] for e in (p, q)]
        for values, *pair in zip(made, *inner, strict=True):
            values = values[:: -1 if p["reverse"] else 1]
            stacked += self.made(_stack, values, *([v.aval] * steps for v in pair))
            self.stacks[stacked[-1]] = values
        return [*carry, *stacked]

    def step(self, x: Operand, step: int, one: Any, two: Any) -> Operand:
        """What a loop reads in one of its steps."""
        if x in self.stacks:
            return self.stacks[x][step]
        (found,) = self.made(lambda x: jax.lax.index_in_dim(x, step, 0, False), [x], [one], [two])
        return found

    def array(self, aval: Any, other: Any, what: str, where: str | None = None) -> Array:
        """What the two shapes of one array say."""
        one, two = tuple(aval.shape), tuple(other.shape)
        at = where or self.called_at
        if len(one) != len(two):
            raise StreamError(_depends("the code", at))
        moving = [k for k, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
        if not moving:
            return Array(one, aval.dtype, None)
        known = {self.sizes.vertices: Rows.VERTEX, self.sizes.edges: Rows.EDGE}
        found = [known.get(size) for size in zip(one, two, strict=True)]
        axis = moving[0]
        if len(moving) > 1 or found[axis] is None:
            sizes = [
                str(n) if rows is None else rows.value for n, rows in zip(one, found, strict=True)
            ]
            raise StreamError(
                f"{at + ': ' if at else ''}{what} is {aval.dtype}[{', '.join(sizes)}], expected "
                "that at most one of its sizes follows the number of vertices or edges, and is that"
                " number: keep one row a vertex"
            )
        return Array((*one[:axis], *one[axis + 1 :]), aval.dtype, found[axis], axis)


def _expanded(eqn: Any) -> Any:
    avals = (v.aval for v in eqn.invars)
    return jax.make_jaxpr(_compat.expansion(eqn))(*map(_compat.like, avals))


def _stack(*steps: Any) -> Any:
    return jnp.stack(steps)


def _depends(what: str, where: str | None) -> str:
    at = f"{where}: " if where else ""
    return (
        f"{at}{what} depends on the number of vertices or edges, expected the same for every graph:"
        " pass arrays of the graph as arguments of the streamed function, and sizes as numbers"
    )


def _line(eqn: Any) -> str:
    found = _compat.user_line(eqn.source_info)
    return f"{found[0].rsplit('/', 1)[-1]}:{found[1]}" if found else "?"


def _shapes(eqn: Any) -> list[jax.ShapeDtypeStruct]:
    return [_compat.like(v.aval) for v in eqn.invars]


def _drop_unread(function: Function) -> Function:
    wanted: set[Operand] = set(function.outputs)
    kept: list[Equation] = []
    for eqn in reversed(function.equations):
        if wanted.isdisjoint(eqn.outputs):
            continue
        wanted.update(eqn.inputs)
        kept.append(eqn)
    return dataclasses.replace(function, equations=tuple(reversed(kept)))
