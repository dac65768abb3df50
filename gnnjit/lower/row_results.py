"""What `cpu.row_sums` computes. Parts of results are named by the number of an operand."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """Rows that are not given: `row n = sum over its edges of factor[u] table[u], / divisor[n]`.

    table: `[M, inner]`.
    indptr, neighbor: the edges, sorted by row, as in `graph.Structure`; their dtypes in `index`.
    factor, divisor: `[M]` and `[N]`, or None.
    """

    table: int
    indptr: int
    neighbor: int
    index: tuple[str, str]
    factor: int | None = None
    divisor: int | None = None


Source = int | Neighbours
"""Rows: an operand `[N, inner]`, or sums over edges."""


@dataclasses.dataclass(frozen=True)
class RowProduct:
    """`x @ w`: rows of so many numbers, and a matrix `[inner, columns]`; `turned`: that is given as
    `[columns, inner]`."""

    x: Source
    w: int
    inner: int
    turned: bool = False


@dataclasses.dataclass(frozen=True)
class RowResult:
    """A result `[N, columns]`: the sum of all its parts.

    addends: `y [N, columns]` of each, and what it is divided by, `[N]`, or None.
    biases: `[columns]` each.
    """

    columns: int
    products: tuple[RowProduct, ...]
    addends: tuple[tuple[int, int | None], ...] = ()
    biases: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class TallResult:
    """A result `left.T @ right`, of an operand `[N, F]` and rows `[N, G]`, by its shape."""

    left: int
    right: Source
    shape: tuple[int, int]
