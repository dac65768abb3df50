"""Reductions over outgoing edges that are no sums: brought to the shards of the sources.

A source's edges lie on the shards of their ends. Each of these reduces those that it has, for the
rows of its table; the owner of a row reduces what comes back. Sums of exponentials come with the
maxima that they were shifted by, and are shifted anew by the maximum of all (online softmax).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from gnnjit.ir.program import Aggregate
from gnnjit.lower.partial_results import BOTH, NEUTRAL, rescaled
from gnnjit.sharding.exchange import Halo


def is_sum(op: Aggregate, outputs: Sequence[int]) -> bool:
    """Whether these outputs are sums, all of them."""
    return all(getattr(op.reductions[k], "kind", "sum") == "sum" for k in outputs)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pieces:
    """What shards found for the rows that they read of one owner. own: of its own edges, if `other`
    is not of all shards. other: of other shards, entry by entry of a halo; or of all shards,
    `[P, rows, ...]`."""

    own: Any
    other: Any


def at_owners(
    device: Any,
    op: Aggregate,
    outputs: Sequence[int],
    found: Sequence[Any],
    degree: Any,
    halo: Halo | None,
) -> list[Any]:
    """The results of these outputs, which are reduced into sources, for the rows of this shard.

    found: what this shard found for the rows of its table, in the order of `outputs`. degree: the
    edges that each of these has here.
    """  # fmt: skip
    by_output = dict(zip(outputs, found, strict=True))
    results: dict[int, Any] = {}
    extremes: dict[int, tuple[_Pieces, Any]] = {}
    for k, x in by_output.items():
        kind = _kind(op, k)
        if kind in NEUTRAL:
            none = jnp.full_like(x, NEUTRAL[kind](x.dtype))
            pieces = _pieces(device, jnp.where(_column(degree > 0, x), x, none), halo)
            best = _reduced(device, kind, pieces, halo)
            extremes[k] = pieces, best
            some = _column(device.shard.out_degree > 0, best)
            results[k] = jnp.where(some, best, jnp.zeros_like(best))
    for k, x in by_output.items():
        r = op.reductions[k]
        assert r is not None
        if r.kind in NEUTRAL:
            continue
        pieces = _pieces(device, x, halo)
        if r.score is not None:
            pieces = _shifted(pieces, *extremes[r.score], halo)
        results[k] = _reduced(device, "sum", pieces, halo)
    return [results[k] for k in outputs]


def _kind(op: Aggregate, k: int) -> str:
    r = op.reductions[k]
    assert r is not None
    return r.kind


def _pieces(device: Any, x: Any, halo: Halo | None) -> _Pieces:
    if halo is None:
        rows = device.shard.num_src
        return _Pieces(None, device.all_to_all(x).reshape(-1, rows, *x.shape[1:]))
    rows = halo.returned.num_rows
    back = device.brought_back([x[rows:]], halo)[0] if halo.rows else None
    return _Pieces(x[:rows], back)


def _reduced(device: Any, kind: str, pieces: _Pieces, halo: Halo | None) -> Any:
    other = pieces.other
    if halo is None:
        over = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "prod": jnp.prod}[kind]
        return over(other, axis=0).astype(other.dtype)
    if other is None:
        return pieces.own
    back = device.returned(other, halo, kind).astype(other.dtype)
    if kind != "sum":
        some = _column(jnp.diff(halo.returned.indptr) > 0, back)
        back = jnp.where(some, back, jnp.full_like(back, NEUTRAL[kind](back.dtype)))
    return BOTH[kind](pieces.own, back)


def _shifted(total: _Pieces, top: _Pieces, best: Any, halo: Halo | None) -> _Pieces:
    """Sums of exponentials, shifted by the maximum `best` of each row in place of each shard's."""
    if halo is None:
        every = [rescaled(t, m, best) for t, m in zip(total.other, top.other, strict=True)]
        return _Pieces(None, jnp.stack(every))
    own = rescaled(total.own, top.own, best)
    if total.other is None:
        return _Pieces(own, None)
    return _Pieces(own, rescaled(total.other, top.other, best[halo.send]))


def _column(rows: Any, like: Any) -> Any:
    return rows.reshape((-1,) + (1,) * (like.ndim - 1))
