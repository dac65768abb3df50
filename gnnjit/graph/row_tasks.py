"""The rows of a structure as tasks for GPU programs: long rows, short rows, pieces of hubs."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SHORT = 16
"""Rows of at most so many edges share a program."""

PIECE = 1024
"""Rows of more edges are hubs, and are cut into pieces of so many."""


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
        long: pieces of hubs, and rows of more than `SHORT` edges.
        short: all other rows, by falling degree, those without edges too.
        hubs: the rows that were cut; their slots are the pieces.
        pieces: static, how many pieces there are.
    """

    long: TaskList
    short: TaskList
    hubs: TaskList
    pieces: int


def build_tasks(indptr: np.ndarray, short: int = SHORT, piece: int = PIECE) -> RowTasks:
    """The tasks of the rows that `indptr` (`int[rows + 1]`) bounds, made on the host."""
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
