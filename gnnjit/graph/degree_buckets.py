"""Rows grouped by degree, so that a traversal is a short list of dense, regular loops."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np

MAX_WIDTH = 1024


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["row", "start", "length", "piece_of_row", "hub_pieces", "hubs"],
    meta_fields=["classes"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """The rows of a structure as pieces of at most `MAX_WIDTH` edges, sorted by padded width.

    Attributes:
        row, start, length: `int[P]` of each piece: its row, its first slot, its number of edges.
        piece_of_row: `int[rows]`, the piece that holds the row; P for rows without edges, and
            `P + 1 + h` for hub `h`, a row cut into several pieces.
        hub_pieces: `int[Q]`, the pieces of the hubs, hub by hub, in order within each.
        hubs: the hubs as rows whose edges are those Q pieces, none of them cut; None without hubs.
        classes: static `(number of pieces, width)`, in the order of the pieces.
    """

    row: jax.Array
    start: jax.Array
    length: jax.Array
    piece_of_row: jax.Array
    hub_pieces: jax.Array
    hubs: Buckets | None
    classes: tuple[tuple[int, int], ...]


def widths(limit: int) -> np.ndarray:
    """The padded widths: every number to 4, then four steps for each doubling."""
    out = [1, 2, 3, 4]
    while out[-1] < limit:
        out.append(max(out[-1] + 1, int(np.ceil(out[-1] * 2**0.25))))
    return np.asarray([*(w for w in out if w < limit), limit])


def build_buckets(indptr: np.ndarray, max_width: int = MAX_WIDTH) -> Buckets:
    """The pieces of the rows that `indptr` (`int[rows + 1]`) bounds. O(rows), on the host."""
    degree = np.diff(indptr)
    count = -(-degree // max_width)
    total = int(count.sum())
    row = np.repeat(np.arange(len(degree), dtype=indptr.dtype), count)
    before = np.cumsum(count) - count
    offset = (np.arange(total) - np.repeat(before, count)) * max_width
    start = indptr[row] + offset
    length = np.minimum(degree[row] - offset, max_width)
    table = widths(max_width)
    kind = np.searchsorted(table, length)
    order = np.argsort(kind, kind="stable")
    classes = [(int(n), int(table[k])) for k, n in enumerate(np.bincount(kind)) if n]
    place = np.empty(total, indptr.dtype)
    place[order] = np.arange(total)
    piece_of_row = np.full(len(degree), total, indptr.dtype)
    single, hubs = np.flatnonzero(count == 1), np.flatnonzero(count > 1)
    piece_of_row[single] = place[before[single]]
    piece_of_row[hubs] = total + 1 + np.arange(len(hubs))

    def on_device(array: np.ndarray) -> jax.Array:
        return jnp.asarray(array.astype(indptr.dtype))

    return Buckets(
        row=on_device(row[order]),
        start=on_device(start[order]),
        length=on_device(length[order]),
        piece_of_row=on_device(piece_of_row),
        hub_pieces=on_device(place[np.repeat(count > 1, count)]),
        hubs=_hubs(count[hubs], indptr.dtype),
        classes=tuple(classes),
    )


def _hubs(count: np.ndarray, dtype: np.dtype) -> Buckets | None:
    """The hubs as rows of `count` pieces each, grouped by that number: one with very many does not
    make room for as many in the others."""
    if not len(count):
        return None
    indptr = np.concatenate([[0], np.cumsum(count)]).astype(dtype)
    return build_buckets(indptr, int(count.max()))


def make_buckets(indptr: np.ndarray, wanted: bool | None = None) -> Buckets | None:
    """Buckets where a lowering uses them: by default not on a CPU with generated kernels.

    Their static classes follow the degrees, so each graph compiles anew: worth it only where
    they are used.
    """
    if wanted is None:
        generated = importlib.util.find_spec("llvmlite") is not None
        wanted = not (generated and jax.default_backend() == "cpu")
    return build_buckets(np.asarray(indptr)) if wanted else None
