"""The rows of a structure as tasks for GPU programs: long rows, short rows, pieces of hubs."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SHORT = 32
"""Rows of at most so many edges share a program."""

FEW = 1 << 14
"""Of so many rows, each has a program of its own: a launch costs more than it saves."""

PIECE = 1024
"""Rows of more edges are hubs, and are cut into pieces of so many, or of fewer in small graphs:
the longest piece runs on when all others are done."""

LEAST_PIECE = 128
PIECES = 1024
"""About as many pieces as all edges should make: some for each multiprocessor."""


class TaskList(NamedTuple):
    """`int[T]` each: the row that a task works for, its first slot, its number of slots.

    piece: which piece of a hub the task is, -1 for a whole row; None where all are whole.
    """

    row: jax.Array
    start: jax.Array
    length: jax.Array
    piece: jax.Array | None


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["long", "short", "hubs"], meta_fields=["pieces"]
)
@dataclasses.dataclass(frozen=True, eq=False)
class RowTasks:
    """Every row of a structure exactly once, rows of many edges first.

    Attributes:
        long: pieces of hubs, and rows of more than `SHORT` edges, or all others.
        short: all other rows, by falling degree, those without edges too.
        hubs: the rows that were cut; their slots are the pieces.
        pieces: static, how many pieces there are.
    """

    long: TaskList
    short: TaskList
    hubs: TaskList
    pieces: int


def piece_size(num_edges: int) -> int:
    """Edges of a piece of a hub, a power of two."""
    size = 1 << max(num_edges // PIECES, 1).bit_length()
    return min(max(size, LEAST_PIECE), PIECE)


def build_tasks(indptr: np.ndarray, short: int | None = None, piece: int | None = None) -> RowTasks:
    """The tasks of the rows that `indptr` (`int[rows + 1]`) bounds, made on the host.

    short, piece: instead of `SHORT` and `piece_size`.
    """
    piece = piece_size(int(indptr[-1])) if piece is None else piece
    if short is None:
        short = SHORT if len(indptr) - 1 > FEW else -1
    degree = np.diff(indptr)
    order = np.argsort(-degree, kind="stable")
    hubs = order[degree[order] > piece]
    long = order[(degree[order] <= piece) & (degree[order] > short)]
    rest = order[len(hubs) + len(long) :]
    count = -(-degree[hubs] // piece)
    first = np.cumsum(count) - count
    pieces = int(count.sum())
    offset = (np.arange(pieces) - np.repeat(first, count)) * piece
    cut = np.repeat(hubs, count)

    def whole(rows: np.ndarray) -> list[np.ndarray]:
        return [rows, indptr[rows], degree[rows]]

    parts = [cut, indptr[cut] + offset, np.minimum(degree[cut] - offset, piece), np.arange(pieces)]
    alone = [*whole(long), np.full(len(long), -1)]
    both = [np.concatenate(pair) for pair in zip(parts, alone, strict=True)]

    def tasks(columns: list[np.ndarray]) -> TaskList:
        row, start, length, *piece = (jnp.asarray(c.astype(indptr.dtype)) for c in columns)
        return TaskList(row, start, length, piece[0] if piece else None)

    return RowTasks(
        long=tasks(both if pieces else whole(long)),
        short=tasks(whole(rest)),
        hubs=tasks([hubs, first, count]),
        pieces=pieces,
    )


def make_tasks(indptr: np.ndarray, wanted: bool | None = None) -> RowTasks | None:
    """Tasks where a kernel uses them: by default on a GPU.

    Their numbers are static and follow the degrees, so each graph compiles anew.
    """
    if wanted is None:
        wanted = jax.default_backend() == "gpu"
    return build_tasks(np.asarray(indptr)) if wanted else None
