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
import numpy as np

from gnnjit import _compat
from gnnjit.errors import StreamError

_INLINED = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}
_CUSTOM = {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}

MOST_STEPS = 256
"""Steps of a loop over arrays of vertices that are written out one after the other."""


class Rows(enum.Enum):
    """Of what an array has one row each, along its first axis."""

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
    """

    shape: tuple[int, ...]
    dtype: Any
    rows: Rows | None

    @property
    def row_bytes(self) -> int:
        """Of one row (of all of it, without rows)."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        first = () if self.rows is None else (self.rows.value,)
        return f"{self.dtype}[{', '.join(map(str, (*first, *self.shape)))}]"


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


Expand = Mapping[Any, Callable[[Any], Any]]
"""For primitives that stand for other code: from an equation to a jaxpr of the same operands."""


def trace(fn: Callable[[int], tuple[Callable[..., Any], Sequence[Any]]], sizes: Sizes,
          expand: Expand) -> tuple[Function, Any]:
    """The equations of a function, and what `jax.eval_shape` says of its result.

    Args:
        fn: `fn(k)` gives the function and its arguments (arrays or shapes) for the k-th of the two
            sizes: flat arrays in, a pytree out.
        sizes: the two numbers of vertices and edges; different ones.
        expand: of primitives that are replaced by their code.

    Raises:
        StreamError: an array has a size that is neither fixed nor a number of vertices or edges
            along its first axis; the code depends on these numbers; something of the vertices is
            in a loop whose length is unknown, or in a condition.
    """  # fmt: skip
    f, args = fn(0)
    first = jax.make_jaxpr(f, return_shape=True)(*args)
    f, args = fn(1)
    try:
        second = jax.make_jaxpr(f, return_shape=True)(*args)
    except (TypeError, ValueError) as error:  # shapes that fitted with the first sizes
        raise StreamError(_depends("an array", None)) from error
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

    def whole(self, one: Any, two: Any) -> tuple[tuple[Operand, ...], tuple[Array, ...]]:
        jaxprs = [_compat.open_jaxpr(j)[0] for j in (one, two)]
        inputs = tuple(
            self.array(a.aval, b.aval, "an argument")
            for a, b in zip(*(j.invars for j in jaxprs), strict=True)
        )
        return tuple(self.call(one, two, inputs)), inputs

    def call(self, one: Any, two: Any, args: Sequence[Operand]) -> list[Operand]:
        (a, consts), (b, others) = map(_compat.open_jaxpr, (one, two))
        if len(a.eqns) != len(b.eqns) or len(consts) != len(others):
            raise StreamError(_depends("the code", self.called_at))
        lifted = [self.constant(*each) for each in zip(a.constvars, b.constvars, consts, others,
                                                       strict=True)]  # fmt: skip
        env: dict[Any, Operand] = dict(zip(a.constvars, lifted, strict=True))
        env.update(zip(a.invars, args, strict=True))
        for eqn, other in zip(a.eqns, b.eqns, strict=True):
            ins = [self.read(env, v, eqn) for v in eqn.invars]
            outs = self.equation(eqn, other, ins)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [self.read(env, v, None) for v in a.outvars]

    def read(self, env: Mapping[Any, Operand], var: Any, eqn: Any) -> Operand:
        if not isinstance(var, _compat.JaxprLiteral):
            return env[var]
        if not np.shape(var.val):
            return Constant(var.val, var.aval.dtype)
        return self.constant(var, var, var.val, var.val)

    def constant(self, var: Any, other: Any, value: Any, again: Any) -> Operand:
        found = self.array(var.aval, other.aval, "a value that is closed over")
        if found.rows is not None:
            raise StreamError(_depends("a value that is closed over", self.called_at))
        if not found.shape and not jax.dtypes.issubdtype(found.dtype, jax.dtypes.prng_key):
            return Constant(np.asarray(value)[()], found.dtype)
        self.constants.append((found, value))
        return found

    def equation(self, eqn: Any, other: Any, ins: list[Operand]) -> Sequence[Operand]:
        where = self.called_at or _line(eqn)
        if eqn.primitive is not other.primitive:
            raise StreamError(_depends("the code", where))
        name = eqn.primitive.name
        inner = None
        if eqn.primitive in self.expand:
            inner = [self.expand[eqn.primitive](e) for e in (eqn, other)]
        elif name in _INLINED or name in _CUSTOM:
            inner = [e.params.get("jaxpr", e.params.get("call_jaxpr")) for e in (eqn, other)]
        if inner is not None:
            outer, self.called_at = self.called_at, where
            outs = self.call(*inner, ins)
            self.called_at = outer
            return outs
        arrays = [
            self.array(v.aval, w.aval, f"the result of {name}", where)
            for v, w in zip(eqn.outvars, other.outvars, strict=True)
        ]
        rows = [a for a in (*ins, *arrays) if a.rows is not None]
        if rows and name == "scan":
            return self.unrolled(eqn, other, ins, where)
        if rows and any(True for _ in _compat.subjaxprs(eqn)) and name in ("while", "cond"):
            raise StreamError(
                f"{where}: {name} has {rows[0]} among its values, expected no array of vertices or "
                "edges in a loop or condition: use jnp.where, or a Python loop of fixed length"
            )
        self.equations.append(
            Equation(eqn.primitive, dict(eqn.params), tuple(ins), tuple(arrays), where)
        )
        return arrays

    def unrolled(self, eqn: Any, other: Any, ins: list[Operand], where: str) -> list[Operand]:
        """The steps of a scan one after the other."""
        p, q = eqn.params, other.params
        steps, consts, carried = p["length"], p["num_consts"], p["num_carry"]
        if steps != q["length"] or steps > MOST_STEPS:
            raise StreamError(
                f"{where}: a scan of {steps} steps over vertices or edges, expected at most "
                f"{MOST_STEPS}, as many for every graph: loop outside of the streamed function"
            )
        fixed, carry, given = ins[:consts], ins[consts : consts + carried], ins[consts + carried :]
        if any(x.rows is not None for x in given):
            raise StreamError(
                f"{where}: a scan goes over the rows of {given[0]}: vertices are not in an order "
                "here, use a layer"
            )
        if given or len(eqn.outvars) > carried:
            raise StreamError(
                f"{where}: a scan over vertices reads or stacks one value for each step, expected "
                "only what it carries: use a Python loop"
            )
        outer, self.called_at = self.called_at, where
        for _ in range(steps):
            carry = self.call(p["jaxpr"], q["jaxpr"], [*fixed, *carry])
        self.called_at = outer
        return list(carry)

    def array(self, aval: Any, other: Any, what: str, where: str | None = None) -> Array:
        """What the two shapes of one array say."""
        one, two = tuple(aval.shape), tuple(other.shape)
        moving = [k for k, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
        if not moving:
            return Array(one, aval.dtype, None)
        at = f"{where or self.called_at}: " if where or self.called_at else ""
        size = (one[moving[0]], two[moving[0]])
        known = {self.sizes.vertices: Rows.VERTEX, self.sizes.edges: Rows.EDGE}
        if moving != [0] or size not in known:
            raise StreamError(
                f"{at}{what} is {aval.dtype}[{', '.join(map(str, one))}]: of its sizes, only the "
                "first may follow the number of vertices or edges, and it has to be that number: "
                "keep one row a vertex"
            )
        return Array(one[1:], aval.dtype, known[size])


def _depends(what: str, where: str | None) -> str:
    at = f"{where}: " if where else ""
    return (
        f"{at}{what} depends on the number of vertices or edges, expected the same for every graph:"
        " pass arrays of the graph as arguments of the streamed function, and sizes as numbers"
    )


def _line(eqn: Any) -> str:
    found = _compat.user_line(eqn.source_info)
    return f"{found[0].rsplit('/', 1)[-1]}:{found[1]}" if found else "?"


def _drop_unread(function: Function) -> Function:
    wanted: set[Operand] = set(function.outputs)
    kept: list[Equation] = []
    for eqn in reversed(function.equations):
        if wanted.isdisjoint(eqn.outputs):
            continue
        wanted.update(eqn.inputs)
        kept.append(eqn)
    return dataclasses.replace(function, equations=tuple(reversed(kept)))
