"""From a function of whole arrays to its `ArrayProgram`.

The function is traced twice, with different numbers of vertices and edges: a size that changes with
them is theirs, all others are the user's. So nothing is guessed from sizes that happen to be equal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit import _compat
from gnnjit.errors import StreamError
from gnnjit.frontend.walker import CALLS, Walker
from gnnjit.ir.array_program import Array, ArrayEquation, ArrayProgram, Constant, Operand, Rows

_IDENTITIES = {"optimization_barrier", "stop_gradient", "copy", "copy_p"}
"""Their results are their operands: nothing is differentiated any more."""

MOST_STEPS = 256
"""Steps of a loop over arrays of vertices that are written out one after the other."""


@dataclasses.dataclass(frozen=True)
class TracedSizes:
    """The two numbers of vertices and of edges that a function is traced with."""

    vertices: tuple[int, int]
    edges: tuple[int, int]


Expand = Mapping[Any, Callable[[Mapping[str, Any]], Callable[..., Any]]]
"""For primitives that stand for other code: from an equation's parameters to that code, a function
of its operands."""


def trace(
    fn: Callable[[int], tuple[Callable[..., Any], Sequence[Any]]],
    sizes: TracedSizes,
    expand: Expand,
) -> tuple[ArrayProgram, Any]:
    """The program of a function, and what `jax.eval_shape` says of its result.

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
    walker = _ArrayWalker(sizes, expand)
    outputs, inputs = walker.whole(first[0], second[0])
    program = ArrayProgram(inputs, tuple(walker.constants), tuple(walker.equations), outputs)
    return program.without_unread(), first[1]


class _ArrayWalker(Walker[Operand]):
    """Reads two jaxprs of one function side by side."""

    calls = CALLS | {"composite", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}

    def __init__(self, sizes: TracedSizes, expand: Expand) -> None:
        self.sizes = sizes
        self.expand = expand
        self.equations: list[ArrayEquation] = []
        self.constants: list[tuple[Array, Any]] = []
        self.stacks: dict[Operand, list[Operand]] = {}  # of a loop, what its steps gave

    def whole(self, one: Any, two: Any) -> tuple[tuple[Operand, ...], tuple[Array, ...]]:
        jaxprs = [_compat.open_jaxpr(j)[0] for j in (one, two)]
        inputs = tuple(
            self.array(a.aval, b.aval, "an argument")
            for a, b in zip(*(j.invars for j in jaxprs), strict=True)
        )
        outputs = tuple(self.call([one, two], inputs))
        made_at = {x: eqn.where + ": " for eqn in self.equations for x in eqn.outputs}
        for x in outputs:
            if isinstance(x, Array) and x.axis:
                raise StreamError(
                    f"{made_at.get(x, '')}a result is {x}, expected the vertices along its first "
                    "axis: transpose it"
                )
        return outputs, inputs

    def call(self, closed: Sequence[Any], args: Sequence[Operand]) -> list[Operand]:
        one, two = (_compat.open_jaxpr(each)[1] for each in closed)
        if len(one) != len(two):
            raise StreamError(_depends("a value that is closed over", self.where))
        return super().call(closed, args)

    def run(
        self, jaxprs: Sequence[Any], consts: Sequence[Operand], args: Sequence[Operand]
    ) -> list[Operand]:
        found = super().run(jaxprs, consts, args)
        one, two = (jaxpr.eqns for jaxpr in jaxprs)
        if len(one) != len(two):
            least = min(len(one), len(two))
            extra = (*one[least:], *two[least:])[0]
            raise StreamError(_depends("the code", self.where or _line(extra)))
        return found

    def made(self, fn: Callable[..., Any], args: Sequence[Operand], one: Any, two: Any) -> Any:
        """The equations of `fn`, whose arguments have these shapes in the two traces."""
        closed = [jax.make_jaxpr(fn)(*map(_compat.like, each)) for each in (one, two)]
        return self.call(closed, args)

    def literal(self, variable: Any) -> Operand:
        if not np.shape(variable.val):
            return Constant(variable.val, variable.aval.dtype)
        return self.constant([variable, variable], variable.val)

    def constant(self, variables: Sequence[Any], value: Any) -> Operand:
        one, two = (v.aval for v in variables)
        found = self.array(one, two, "a value that is closed over")
        if found.rows is not None:
            raise StreamError(_depends("a value that is closed over", self.where))
        if not found.shape and not jnp.issubdtype(found.dtype, jax.dtypes.prng_key):
            return Constant(np.asarray(value)[()], found.dtype)
        self.constants.append((found, value))
        return found

    def line(self, eqn: Any) -> str:
        return _line(eqn)

    def equation(self, eqns: Sequence[Any], ins: list[Operand]) -> Sequence[Operand]:
        eqn, other = eqns
        arrays = [
            self.array(v.aval, w.aval, f"the result of {eqn.primitive.name}")
            for v, w in zip(eqn.outvars, other.outvars, strict=True)
        ]
        self.equations.append(
            ArrayEquation(eqn.primitive, dict(eqn.params), tuple(ins), tuple(arrays), self.where)
        )
        return arrays

    def nested(self, eqns: Sequence[Any], ins: list[Operand]) -> Sequence[Operand] | None:
        eqn, other = eqns
        name = eqn.primitive.name
        if eqn.primitive is not other.primitive or len(eqn.outvars) != len(other.outvars):
            raise StreamError(_depends("the code", self.where))
        if name in _IDENTITIES:
            return ins
        if eqn.primitive in self.expand:
            expand = self.expand[eqn.primitive]
            return self.call([jax.make_jaxpr(expand(e.params))(*_shapes(e)) for e in eqns], ins)
        if _compat.expansion(eqn) is not None:
            return self.call([_expanded(e) for e in eqns], ins)
        if name in self.calls:
            return super().nested(eqns, ins)
        if name not in ("scan", "cond", "while"):
            return None
        shapes = [[v.aval.shape for v in e.outvars] for e in eqns]
        if shapes[0] == shapes[1] and all(x.rows is None for x in ins):
            return None
        if name == "scan":
            return self.unrolled(eqn, other, ins)
        if name == "cond":
            return self.selected(eqn, other, ins)
        rows = next((x for x in ins if x.rows is not None), None)
        raise StreamError(
            f"{self.where}: while has {rows} among its values, expected no array of vertices or "
            "edges in a loop whose length is not known beforehand: use a loop of fixed length"
        )

    def selected(self, eqn: Any, other: Any, ins: list[Operand]) -> list[Operand]:
        """Both branches of a condition, and what it selects of their results."""
        branches = zip(eqn.params["branches"], other.params["branches"], strict=True)
        every = [self.call(pair, ins[1:]) for pair in branches]
        found: list[Operand] = []
        for k, (v, w) in enumerate(zip(eqn.outvars, other.outvars, strict=True)):
            results = [outs[k] for outs in every]
            shapes = [[e.invars[0].aval, *[x.aval] * len(every)] for e, x in ((eqn, v), (other, w))]
            found += self.made(jax.lax.select_n, [ins[0], *results], *shapes)
        return found

    def unrolled(self, eqn: Any, other: Any, ins: list[Operand]) -> list[Operand]:
        """The steps of a scan one after the other."""
        p, q = eqn.params, other.params
        steps, (consts, carried) = p["length"], _compat.scan_counts(p)
        first = consts + carried
        carry, given = ins[consts:first], ins[first:]
        over = next((x for x in given if isinstance(x, Array) and x.rows and not x.axis), None)
        if over is not None:
            raise StreamError(
                f"{self.where}: a scan goes over the rows of {over}, expected values that are the "
                "same for all vertices: these have no order here, use a layer"
            )
        if steps != q["length"] or not 1 <= steps <= MOST_STEPS:
            raise StreamError(
                f"{self.where}: a scan of {steps} steps over vertices or edges, expected 1 to "
                f"{MOST_STEPS}, as many for every graph: loop outside of the streamed function"
            )
        shapes = [[v.aval for v in e.invars[first:]] for e in (eqn, other)]
        made: list[list[Operand]] = [[] for _ in eqn.outvars[carried:]]
        for step in range(steps)[:: -1 if p["reverse"] else 1]:
            xs = [self.step(x, step, *pair) for x, *pair in zip(given, *shapes, strict=True)]
            outs = self.call([p["jaxpr"], q["jaxpr"]], [*ins[:consts], *carry, *xs])
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

    def array(self, aval: Any, other: Any, what: str) -> Array:
        """What the two shapes of one array say."""
        one, two = tuple(aval.shape), tuple(other.shape)
        if len(one) != len(two):
            raise StreamError(_depends("the code", self.where))
        changing = [k for k, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
        if not changing:
            return Array(one, aval.dtype, None)
        known = {self.sizes.vertices: Rows.VERTEX, self.sizes.edges: Rows.EDGE}
        found = [known.get(size) for size in zip(one, two, strict=True)]
        axis = changing[0]
        if len(changing) > 1 or found[axis] is None:
            sizes = [
                str(n) if rows is None else rows.value for n, rows in zip(one, found, strict=True)
            ]
            at = f"{self.where}: " if self.where else ""
            raise StreamError(
                f"{at}{what} is {aval.dtype}[{', '.join(sizes)}], expected "
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
