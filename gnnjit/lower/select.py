"""Which edge has a rank among those of its row: found by counting, traversal after traversal.

The numbers of an edge's value and of the edge itself are a key of bits. Two bits of the key that is
looked for are found by each traversal: it counts, for three candidates, the edges whose key is
less. Nothing is written on the edges, hubs cost what their edges do, and every result has one
owner, also where the graph is sharded. All traversals are turns of one loop, so that each computes
the same bits of a value. The smallest key alone takes two turns, each of which is a minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit.frontend.capture import capture
from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.program import Program, Reduce, Select, Value
from gnnjit.ir.sort_keys import key_bits, sort_key
from gnnjit.lower.aggregate import aggregate
from gnnjit.lower.execute import size
from gnnjit.sharding.sharded_graph import AnyGraph

_NONE = np.iinfo(np.int32).max
_INT = np.dtype(np.int32)


def select(
    graph: AnyGraph, op: Select, ranks: Any, operands: Sequence[Any], limit: int | None
) -> jax.Array:
    """`int32[rows, k, *shape]`: numbers of edges, -1 where a row has none of that rank.

    ranks: `[rows, k]`. Nothing is differentiated: numbers have no gradient.
    """
    search = _Search(graph, op, [lax.stop_gradient(x) for x in operands], limit)
    ranks = ranks.reshape(*ranks.shape, *(1,) * len(search.shape))
    found = search.first(ranks) if op.first else search.ranked(ranks)
    degree = graph.degree(op.into).reshape(-1, *(1,) * (ranks.ndim - 1))
    return jnp.where((ranks >= 0) & (ranks < degree), found, -1)


class _Search:
    def __init__(self, graph: AnyGraph, op: Select, operands: list[Any], limit: int | None):
        self.graph, self.op, self.operands, self.limit = graph, op, operands, limit
        value = op.body.outputs[0]
        self.shape, self.bits = tuple(value.shape), key_bits(value.dtype)
        self.signed = np.dtype(np.int64 if self.bits == 64 else np.int32)
        self.unsigned = np.dtype(np.uint64 if self.bits == 64 else np.uint32)

    def over_edges(
        self, fn: Callable[..., list[Any]], kinds: Sequence[str], *wanted: Any
    ) -> list[Any]:
        """`fn(key, number, *wanted)`, reduced as `kinds` say; `wanted` are values of rows."""
        body, count = self.op.body, len(self.op.body.inputs)
        fresh = [Value(tuple(v.shape), v.dtype, v.space, v.name) for v in body.inputs]
        fresh += [Value(tuple(x.shape[1:]), x.dtype, self.op.into) for x in wanted]

        def on_edge(*xs: Any) -> list[Any]:
            value, number = evaluate_element(body, xs[:count])
            return fn(sort_key(value, self.op.descending), number, *xs[count:])

        program: Program = capture(on_edge, fresh).program
        into = tuple(Reduce(kind, self.op.into) for kind in kinds)
        every = [*self.operands, *wanted]
        program, slots = program.select(range(len(kinds)))
        return aggregate(self.graph, program, into, [every[i] for i in slots], self.limit)

    def first(self, ranks: Any) -> jax.Array:
        """The first edges alone."""

        def on_edge(key: Any, number: Any, least: Any) -> list[Any]:
            return [key, jnp.where(key == least, number.astype(_INT), _NONE)]

        def turn(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            least, found = self.over_edges(on_edge, ("min", "min"), state[0])
            return least, found

        rows = size(self.graph, self.op.into)
        start = jnp.zeros((rows, *self.shape), self.signed), jnp.zeros((rows, *self.shape), _INT)
        _, found = lax.fori_loop(0, 2, turn, start)
        return jnp.broadcast_to(found[:, None], (rows, *ranks.shape[1:2], *self.shape))

    def ranked(self, ranks: Any) -> jax.Array:
        of_keys = self.bits // 2
        of_numbers = -(-max(self.graph.num_edges, 1).bit_length() // 2)

        def on_edge(key: Any, number: Any, keys: Any, numbers: Any) -> list[Any]:
            number = number.astype(_INT)
            less = (key < keys) | ((key == keys) & (number < numbers))
            return [less.astype(_INT)]

        def turn(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            key, number = state
            in_key = i < of_keys
            step = jnp.arange(4).reshape(4, *(1,) * (key.ndim - 1))
            shift = jnp.where(in_key, 2 * (of_keys - 1 - i), 0).astype(self.unsigned)
            keys = key[:, None] | (jnp.where(in_key, step, 0).astype(self.unsigned) << shift)
            shift = jnp.where(in_key, 0, 2 * (of_keys + of_numbers - 1 - i)).astype(_INT)
            numbers = number[:, None] | (jnp.where(in_key, 0, step).astype(_INT) << shift)
            (count,) = self.over_edges(
                on_edge, ("sum",), self.as_signed(keys[:, 1:]), numbers[:, 1:]
            )
            best = jnp.sum(count <= ranks[:, None], axis=1)  # counts rise from step to step
            return _taken(keys, best), _taken(numbers, best)

        rows, k = size(self.graph, self.op.into), ranks.shape[1]
        shape = (rows, k, *self.shape)
        start = jnp.zeros(shape, self.unsigned), jnp.zeros(shape, _INT)
        return lax.fori_loop(0, of_keys + of_numbers, turn, start)[1]

    def as_signed(self, key: Any) -> jax.Array:
        """What `sort_key` gives, from the same with the smallest at 0."""
        top = self.unsigned.type(1 << (self.bits - 1))
        return lax.bitcast_convert_type(key ^ top, self.signed)


def _taken(steps: Any, best: Any) -> jax.Array:
    """The candidate of each entry."""
    return jnp.take_along_axis(steps, best[:, None], axis=1)[:, 0]
