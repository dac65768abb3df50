"""The oracle: run a program over plain arrays, gathering and reducing edge by edge.

Slow and simple on purpose: every edge value is an array `[num_edges, ...]`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.ir.at_most import at_most
from gnnjit.ir.dtypes import is_floating
from gnnjit.ir.evaluate import bind_in_space, finite_or_zero, literal_array, times
from gnnjit.ir.in_turn import in_turn
from gnnjit.ir.program import (
    Aggregate,
    Atom,
    AtVertex,
    Degree,
    Equation,
    Fold,
    Index,
    Lax,
    Literal,
    Network,
    OfGraph,
    Pool,
    Program,
    Reduce,
    Select,
    Store,
    Value,
)
from gnnjit.ir.space import Space


@dataclasses.dataclass(frozen=True)
class Incidence:
    """The edges as two index arrays `[num_edges]`; `mask` (optional) is False on padding, and
    `numbers` (optional) are what the user calls the elements of a space, by their places if left
    out. `graphs` (optional) says of the sources and destinations which graph each belongs to
    and whether it is real; one graph of real vertices if left out."""

    src: jax.Array
    dst: jax.Array
    num_src: int
    num_dst: int
    mask: jax.Array | None = None
    numbers: Callable[[Space], jax.Array] | None = None
    graphs: Callable[[Space], tuple[jax.Array, jax.Array]] | None = None
    num_graphs: int = 1

    def size(self, space: Space) -> int:
        sizes = {
            Space.SRC: self.num_src, Space.DST: self.num_dst, Space.EDGE: len(self.src),
            Space.GRAPH: self.num_graphs,
        }  # fmt: skip
        return sizes[space]

    def members(self, space: Space) -> tuple[jax.Array, jax.Array]:
        """The graph of each vertex, and whether it is real."""
        if self.graphs is not None:
            return self.graphs(space)
        rows = self.size(space)
        return jnp.zeros(rows, jnp.int32), jnp.ones(rows, jnp.bool_)

    def of_graph(self, x: jax.Array, space: Space) -> jax.Array:
        """The value of each vertex's graph. Padding reads that of the first, without a gradient."""
        ids, real = self.members(space)
        rows = x[ids]
        real = real.reshape((-1,) + (1,) * (x.ndim - 1))
        return jnp.where(real, rows, jax.lax.stop_gradient(x[:1]))

    def pool(self, kind: str, x: jax.Array, counts: Sequence[jax.Array]) -> jax.Array:
        """Reduce an array of destinations over those of each graph."""
        ids, real = self.members(Space.DST)
        if counts:
            real &= counts[0] > 0
        column = real.reshape((-1,) + (1,) * (x.ndim - 1))
        if kind == "sum":
            rows = _widen(jnp.where(column, x, jnp.zeros_like(x)))
            return jax.ops.segment_sum(rows, ids, self.num_graphs).astype(x.dtype)
        worst = extreme(x.dtype, -1 if kind == "max" else 1)
        weight = counts[1].astype(jnp.float32) if counts else jnp.ones(x.shape, jnp.float32)
        n = self.num_graphs
        found = _segment_extreme(kind, n)(jnp.where(column, x, worst), ids, real, weight)
        some = jax.ops.segment_max(real.astype(jnp.int32), ids, n) > 0
        return jnp.where(some.reshape((-1,) + (1,) * (x.ndim - 1)), found, jnp.zeros_like(found))

    def endpoint(self, space: Space) -> jax.Array:
        return {Space.SRC: self.src, Space.DST: self.dst}[space]

    def read(self, x: Any, space: Space, at: Space) -> Any:
        """The array `x` of `space`, as an array over `at`."""
        if space is at or space is Space.SHARED:
            return x
        if at is not Space.EDGE:
            raise ValueError(f"a value of {space.value} cannot be read in {at.value}")
        return x[self.endpoint(space)]

    def valid(self, x: jax.Array, otherwise: Any) -> jax.Array:
        """`x` over the edges, with padding replaced."""
        if self.mask is None:
            return x
        mask = self.mask.reshape((-1,) + (1,) * (x.ndim - 1))
        return jnp.where(mask, x, jnp.asarray(otherwise, x.dtype))

    def spread(self, x: jax.Array, space: Space) -> jax.Array:
        """`x` of `space`, one row per element even if it is shared."""
        if space is Space.SHARED:
            return jnp.broadcast_to(x, (len(self.src), *jnp.shape(x)))
        return self.read(x, space, Space.EDGE)

    def reduce(self, op: Reduce, x: jax.Array) -> jax.Array:
        """Reduce an array over the edges; 0 where an element has none. Half precision is summed in
        float32."""
        if op.into is Space.SHARED:
            ids, n = jnp.zeros(len(self.src), jnp.int32), 1
        else:
            ids, n = self.endpoint(op.into), self.size(op.into)
        if op.kind == "sum":
            out = jax.ops.segment_sum(_widen(self.valid(x, 0)), ids, n).astype(x.dtype)
        elif op.kind == "prod":
            found = _segment_prod(n)(_widen(self.valid(x, 1)), ids).astype(x.dtype)
            some = (self.degree_of(ids, n) > 0).reshape((-1,) + (1,) * (x.ndim - 1))
            out = jnp.where(some, found, jnp.zeros_like(found))
        else:
            worst = extreme(x.dtype, -1 if op.kind == "max" else 1)
            real = jnp.ones(len(self.src), jnp.bool_) if self.mask is None else self.mask
            weight = jnp.ones(x.shape, jnp.float32)
            found = _segment_extreme(op.kind, n)(self.valid(x, worst), ids, real, weight)
            some = (self.degree_of(ids, n) > 0).reshape((-1,) + (1,) * (x.ndim - 1))
            out = jnp.where(some, found, jnp.zeros_like(found))
        return out[0] if op.into is Space.SHARED else out

    def exp_sum(self, into: Space, score: jax.Array, value: jax.Array) -> jax.Array:
        """The sum of `exp(score - shift) * value`, in float32 for half precision."""
        top = jax.lax.stop_gradient(self.reduce(Reduce("max", into), score))
        shift = self.read(finite_or_zero(top), into, Space.EDGE)
        score = at_most(score, self.read(top, into, Space.EDGE))
        wide_score = self.valid(_widen(score), -jnp.inf)  # padding adds 0, also to the gradient
        shift = self.valid(_widen(shift), 0)
        term = times(jnp.exp(wide_score - shift), self.valid(_widen(value), 0))
        return self.reduce(Reduce("sum", into), term).astype(value.dtype)

    def degree(self, space: Space) -> jax.Array:
        """How many edges each vertex, or vertices each graph, has."""
        if space is Space.GRAPH:
            return self.pool("sum", jnp.ones(self.num_dst, jnp.int32), ())
        return self.degree_of(self.endpoint(space), self.size(space))

    def index(self, space: Space) -> jax.Array:
        """The user's number of each element."""
        if self.numbers is None or space is Space.GRAPH:
            return jnp.arange(self.size(space))
        return self.numbers(space)

    def degree_of(self, ids: jax.Array, n: int) -> jax.Array:
        one = self.valid(jnp.ones(len(self.src), jnp.int32), 0)
        return jax.ops.segment_sum(one, ids, n)


@functools.cache
def _segment_extreme(kind: str, n: int) -> Callable[..., jax.Array]:
    """The extremes of the `n` rows, of values, their rows, whether they are no padding, and their
    weights. The gradient is shared by the values that attain one, by weight: by all of them, where
    it is NaN."""

    @jax.custom_jvp
    def extreme_of(x: jax.Array, ids: jax.Array, real: jax.Array, weight: jax.Array) -> jax.Array:
        segment = jax.ops.segment_max if kind == "max" else jax.ops.segment_min
        return segment(x, ids, n)

    @extreme_of.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        x, ids, real, weight = primals
        best = extreme_of(x, ids, real, weight)
        attained = best[ids]
        attains = (x == attained) | (attained != attained)
        attains &= real.reshape((-1,) + (1,) * (x.ndim - 1))
        share = jnp.where(attains, weight, 0)
        count = jax.ops.segment_sum(share, ids, n)
        share = share.astype(_widen(x).dtype)
        total = jax.ops.segment_sum(jnp.where(attains, _widen(tangents[0]) * share, 0), ids, n)
        return best, (total / jnp.maximum(count, 1)).astype(x.dtype)

    return extreme_of


@functools.cache
def _segment_prod(n: int) -> Callable[..., jax.Array]:
    """The products of the `n` rows; none of the factors may be 0 where it is differentiated."""

    @jax.custom_jvp
    def product_of(x: jax.Array, ids: jax.Array) -> jax.Array:
        return jax.ops.segment_prod(x, ids, n)

    @product_of.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        x, ids = primals
        product = product_of(x, ids)
        return product, product * jax.ops.segment_sum(tangents[0] / x, ids, n)

    return product_of


def _widen(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def extreme(dtype: Any, sign: int) -> Any:
    """The largest (`sign` = 1) or smallest (-1) value of `dtype`."""
    if is_floating(dtype):
        return jnp.asarray(sign * jnp.inf, dtype)
    info = jnp.iinfo(dtype)
    return jnp.asarray(info.max if sign > 0 else info.min, dtype)


def interpret(program: Program, incidence: Incidence, args: Sequence[Any]) -> list[Any]:
    """Run `program` on arrays: `[size(space), *shape]` each, shared ones unbatched."""
    env: dict[Value, Any] = dict(zip(program.inputs, args, strict=True))
    for eqn in program.equations:
        outs = _equation(eqn, incidence, [_read(env, a) for a in eqn.inputs])
        env.update(zip(eqn.outputs, outs, strict=True))
    return [_read(env, o) for o in program.outputs]


def _read(env: dict[Value, Any], atom: Atom) -> Any:
    return literal_array(atom) if isinstance(atom, Literal) else env[atom]


def _equation(eqn: Equation, inc: Incidence, args: list[Any]) -> list[Any]:
    out = eqn.outputs[0]
    spaces = [a.space for a in eqn.inputs]
    match eqn.op:
        case Lax():
            return _elements(eqn.op, inc, out.space, spaces, args)
        case Reduce():
            on_edges = [inc.spread(x, s) for x, s in zip(args, spaces, strict=True)]
            scored = eqn.op.kind == "exp_sum"
            return [
                inc.exp_sum(eqn.op.into, *on_edges) if scored else inc.reduce(eqn.op, *on_edges)
            ]
        case Pool(kind):
            return [_pooled(inc, kind, args, spaces)]
        case OfGraph():
            return [inc.of_graph(args[0], out.space)]
        case Store() | AtVertex():
            return args
        case Degree():
            return [inc.degree(out.space).astype(out.dtype)]
        case Index():
            return [inc.index(out.space).astype(out.dtype)]
        case Select() | Fold():
            return in_turn(eqn, inc, args)
        case Aggregate() | Network():
            return _traversal(eqn.op, inc, out.space, args)


def _traversal(op: Aggregate | Network, inc: Incidence, at: Space, args: list[Any]) -> list[Any]:
    if isinstance(op, Network):
        each = jnp.arange(inc.size(at))
        return interpret(op.body, Incidence(each, each, len(each), len(each)), args)
    inner = interpret(op.body, inc, args)
    values = [inc.spread(x, o.space) for x, o in zip(inner, op.body.outputs, strict=True)]
    return [_reduced(inc, values, i, r) for i, r in enumerate(op.reductions)]


def _elements(
    op: Lax, inc: Incidence, at: Space, spaces: Sequence[Space], args: list[Any]
) -> list[Any]:
    """The results of a primitive on every element of the space `at`."""
    arrays = [inc.read(x, s, at) for x, s in zip(args, spaces, strict=True)]
    batched = [s is not Space.SHARED for s in spaces]
    outs = bind_in_space(op, arrays, batched)
    if at is not Space.SHARED and not any(batched):
        outs = [jnp.broadcast_to(o, (inc.size(at), *o.shape)) for o in outs]
    return outs


def _pooled(inc: Incidence, kind: str, args: list[Any], spaces: Sequence[Space]) -> jax.Array:
    operands = [_over_rows(inc, x, s) for x, s in zip(args, spaces, strict=True)]
    return inc.pool(kind, operands[0], operands[1:])


def _over_rows(inc: Incidence, x: Any, space: Space) -> Any:
    """A value of destinations, one for each also if it is shared."""
    return jnp.broadcast_to(x, (inc.num_dst, *jnp.shape(x))) if space is Space.SHARED else x


def _reduced(inc: Incidence, values: list[jax.Array], i: int, reduction: Reduce | None) -> Any:
    """Output `i` of a traversal whose outputs are `values` on the edges."""
    if reduction is None:
        return inc.valid(values[i], 0)
    if reduction.score is not None:
        return inc.exp_sum(reduction.into, values[reduction.score], values[i])
    return inc.reduce(reduction, values[i])
