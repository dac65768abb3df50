"""The oracle of selections and folds: edges in order, one after the other.

Slow and simple on purpose, as `gnnjit.ir.interpret`, which it is a part of.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.program import Equation, Fold, Select
from gnnjit.ir.sort_keys import sort_key
from gnnjit.ir.space import Space


class Edges(Protocol):
    """The part of an `Incidence` that is needed here."""

    @property
    def mask(self) -> jax.Array | None: ...

    def endpoint(self, space: Space) -> jax.Array: ...

    def size(self, space: Space) -> int: ...

    def spread(self, x: jax.Array, space: Space) -> jax.Array: ...

    def degree(self, space: Space) -> jax.Array: ...


def in_turn(eqn: Equation, edges: Edges, args: list[Any]) -> list[Any]:
    """The results of a `Select` or `Fold`."""
    op = eqn.op
    assert isinstance(op, (Select, Fold))
    ids, n = edges.endpoint(op.into), edges.size(op.into)
    if edges.mask is not None:
        ids = jnp.where(edges.mask, ids, n)  # padding comes last
    read = [
        edges.spread(x, a.space) for x, a in zip(args[op.own :], eqn.inputs[op.own :], strict=True)
    ]
    own = [
        jnp.broadcast_to(x, (n, *a.shape)) if a.space is Space.SHARED else x
        for x, a in zip(args[: op.own], eqn.inputs[: op.own], strict=True)
    ]
    if isinstance(op, Select):
        return [_selected(op, edges, ids, own[0], read)]
    order = [edges.spread(args[0], eqn.inputs[0].space)] if op.ordered else []
    return _folded(op, ids, n, own[op.ordered :], order, read)


def _selected(op: Select, edges: Edges, ids: Any, ranks: Any, read: list[Any]) -> Any:
    value, number = jax.vmap(lambda *xs: evaluate_element(op.body, xs))(*read)
    key, degree = sort_key(value, op.descending), edges.degree(op.into)
    start = jnp.cumsum(degree) - degree
    here = (ranks >= 0) & (ranks < degree[:, None])

    def of_entry(key: Any) -> Any:
        order = jnp.lexsort((number, key, ids))
        at = jnp.clip(start[:, None] + ranks, 0, max(len(order) - 1, 0))
        return jnp.where(here, number[order][at], -1) if len(order) else jnp.where(here, 0, -1)

    flat = jax.vmap(of_entry, 1, 2)(key.reshape(len(ids), -1))
    return flat.reshape(*flat.shape[:2], *value.shape[1:]).astype(jnp.int32)


def _folded(
    op: Fold, ids: Any, n: int, state: list[Any], order: list[Any], read: list[Any]
) -> list[Any]:
    keys = [sort_key(x, False) for x in order]
    every = jnp.lexsort((jnp.arange(len(ids)), *keys, ids))

    def step(state: list[Any], edge: Any) -> tuple[list[Any], None]:
        at = ids[edge]
        before = [x[jnp.minimum(at, n - 1)] for x in state]
        after = evaluate_element(op.body, [*before, *(x[edge] for x in read)])
        return [x.at[at].set(y, mode="drop") for x, y in zip(state, after, strict=True)], None

    return lax.scan(step, state, every)[0] if n and len(ids) else state
