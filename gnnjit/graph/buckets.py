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
    data_fields=["row", "start", "length", "piece_of_row", "hub_row", "hub_pieces"],
    meta_fields=["classes"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """The rows of a structure as pieces of at most `MAX_WIDTH` edges, sorted by padded width.

    Attributes:
        row, start, length: `int[P]` of each piece: its row, its first slot, its number of edges.
        piece_of_row: `int[rows]`, the piece that holds the row; P for rows without edges, and
            `P + 1 + h` for hub `h`.
        hub_row: `int[H]`, the rows cut into several pieces.
        hub_pieces: `int[H, M]`, their pieces in order, filled up with P.
        classes: static `(number of pieces, width)`, in the order of the pieces.
    """

    row: jax.Array
    start: jax.Array
    length: jax.Array
    piece_of_row: jax.Array
    hub_row: jax.Array
    hub_pieces: jax.Array
    classes: tuple[tuple[int, int], ...]


def widths(limit: int) -> np.ndarray:
    """The padded widths: every number to 4, then four steps for each doubling."""
    out = [1, 2, 3, 4]
    while out[-1] < limit:
        out.append(max(out[-1] + 1, int(np.ceil(out[-1] * 2**0.25))))
    out[-1] = limit
    return np.asarray(out)


def build_buckets(indptr: np.ndarray, max_width: int = MAX_WIDTH) -> Buckets:
    """The pieces of the rows that `indptr` (`int[rows + 1]`) bounds. O(rows), on the host."""
    degree = np.diff(indptr)
    count = -(-degree // max_width)
    total = int(count.sum())
    row = np.repeat(np.arange(len(degree), dtype=indptr.dtype), count)
    first = np.repeat(np.cumsum(count) - count, count)
    offset = (np.arange(total) - first) * max_width
    start = indptr[row] + offset
    length = np.minimum(degree[row] - offset, max_width)
    table = widths(max_width)
    kind = np.searchsorted(table, length)
    order = np.argsort(kind, kind="stable")
    classes = [(int(n), int(table[k])) for k, n in enumerate(np.bincount(kind)) if n]
    place = np.empty(total, indptr.dtype)
    place[order] = np.arange(total)
    piece_of_row = np.full(len(degree), total, indptr.dtype)
    single = np.flatnonzero(count == 1)
    first_piece = (np.cumsum(count) - count)[single]
    piece_of_row[single] = place[first_piece]
    hubs = np.flatnonzero(count > 1)
    pieces = _hub_pieces(hubs, count, place, total)
    piece_of_row[hubs] = total + 1 + np.arange(len(hubs))

    def on_device(array: np.ndarray) -> jax.Array:
        return jnp.asarray(array.astype(indptr.dtype))

    return Buckets(
        row=on_device(row[order]),
        start=on_device(start[order]),
        length=on_device(length[order]),
        piece_of_row=on_device(piece_of_row),
        hub_row=on_device(hubs),
        hub_pieces=on_device(pieces),
        classes=tuple(classes),
    )


def _hub_pieces(hubs: np.ndarray, count: np.ndarray, place: np.ndarray, total: int) -> np.ndarray:
    most = int(count[hubs].max()) if len(hubs) else 1
    first = np.cumsum(count) - count
    table = np.full((len(hubs), most), total)
    for h, row in enumerate(hubs):
        table[h, : count[row]] = place[first[row] : first[row] + count[row]]
    return table


def make_buckets(indptr: np.ndarray, wanted: bool | None = None) -> Buckets | None:
    """Buckets where a lowering uses them: by default not on a CPU with generated kernels.

    Their static classes follow the degrees, so each graph compiles anew: worth it only where
    they are used.
    """
    if wanted is None:
        generated = importlib.util.find_spec("llvmlite") is not None
        wanted = not (generated and jax.default_backend() == "cpu")
    return build_buckets(np.asarray(indptr)) if wanted else None
