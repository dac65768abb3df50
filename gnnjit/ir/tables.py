"""Rows of tables, picked by an index of the edge: `w[e.data]`, and the gradient of such a table.

JAX writes `table[i]` as `dynamic_slice` or `gather`, and its transpose as `dynamic_update_slice` or
`scatter-add` of a table of zeros for each edge. Found here, an edge reads its rows from the one
table, and adds its gradient to the rows of the one sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.ir import build
from gnnjit.ir.program import Atom, Equation, Lax, Program, Reduce
from gnnjit.ir.space import Space

READS = ("dynamic_slice", "gather")
SUMS = ("dynamic_update_slice", "scatter-add")
MOST_ROWS = 32
"""At most as many rows are picked by one element."""


@dataclasses.dataclass(frozen=True)
class TableRows:
    """Which rows of a table are meant: `[*leading, *row]`, the first axes by index.

    index: a scalar for each leading axis, or one value `[*batch, axes]`.
    fill: what is read beyond the table, where nothing is added; None: the nearest row is meant.
    """

    table: Atom
    index: tuple[Atom, ...]
    leading: int
    fill: Any = None

    @property
    def key(self) -> Hashable:
        """The same for rows that the same numbers are picked of, of whatever table."""
        return self.index, self.lengths, self.fill is None

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.table.shape[: self.leading])

    @property
    def row(self) -> tuple[int, ...]:
        return tuple(self.table.shape[self.leading :])

    @property
    def batch(self) -> tuple[int, ...]:
        """The shape in which one element picks its rows; () for one row."""
        first = self.index[0]
        return () if len(self.index) > 1 or not first.shape else tuple(first.shape[:-1])

    def number(self, index: list[Any]) -> tuple[Any, Any]:
        """The number of each picked row, given the arrays of `index`, and whether it is in the
        table (None: the nearest row is meant, so all are)."""
        at = index
        if self.index[0].shape:
            at = [index[0][..., k] for k in range(self.leading)]
        inside, number = True, jnp.zeros((), jnp.int32)
        for i, length in zip(at, self.lengths, strict=True):
            inside = inside & (i >= 0) & (i < length)
            number = number * length + jnp.clip(i, 0, length - 1).astype(jnp.int32)
        return number, None if self.fill is None else inside


@dataclasses.dataclass(frozen=True)
class RowSum:
    """`update`, of the shape `[*batch, *row]`, is added to rows."""

    rows: TableRows
    update: Atom


def read_of(eqn: Equation) -> TableRows | None:
    """What an equation reads, if it reads whole rows of a table."""
    if not isinstance(eqn.op, Lax) or eqn.op.name not in READS:
        return None
    table, *index = eqn.inputs
    if eqn.op.name == "dynamic_slice":
        return _sliced(table, index, tuple(eqn.op["slice_sizes"]))
    numbers, shape, sizes = eqn.op["dimension_numbers"], table.shape, eqn.op["slice_sizes"]
    count = len(numbers.start_index_map)
    found = _gathered(eqn, numbers.start_index_map, numbers.collapsed_slice_dims, numbers)
    whole = tuple(sizes) == (*(1,) * count, *shape[count:])
    trailing = range(len(index[0].shape) - 1, len(eqn.outputs[0].shape))
    if not found or not whole or tuple(numbers.offset_dims) != tuple(trailing):
        return None
    fill = _fill(eqn, table.dtype)
    return _some(TableRows(table, tuple(index), count, fill))


def sum_of(eqn: Equation, made: Mapping[Any, Equation]) -> RowSum | None:
    """What an equation adds to which rows of a table of zeros, if it does."""
    if not isinstance(eqn.op, Lax) or eqn.op.name not in SUMS:
        return None
    table = eqn.inputs[0]
    if not build.is_filled_with(table, 0, made):  # type: ignore[arg-type]
        return None
    if eqn.op.name == "dynamic_update_slice":
        _, update, *index = eqn.inputs
        rows = _sliced(table, index, tuple(update.shape))
        return RowSum(rows, update) if rows else None
    _, index, update = eqn.inputs
    numbers = eqn.op["dimension_numbers"]
    count = len(numbers.scatter_dims_to_operand_dims)
    dims = numbers.scatter_dims_to_operand_dims
    found = _gathered(eqn, dims, numbers.inserted_window_dims, numbers)
    trailing = range(len(index.shape) - 1, len(update.shape))
    if not found or tuple(numbers.update_window_dims) != tuple(trailing):
        return None
    # What only promises to be inside is read at the nearest row, but its gradient is dropped.
    nearest = eqn.op["mode"] == jax.lax.GatherScatterMode.CLIP
    rows = _some(TableRows(table, (index,), count, None if nearest else 0))
    return RowSum(rows, update) if rows else None


def _sliced(table: Atom, index: list[Atom], sizes: tuple[int, ...]) -> TableRows | None:
    """Axes of which all is read start at 0, whatever their index is."""
    shape = tuple(table.shape)
    count = next((k for k, n in enumerate(sizes) if n != 1), len(sizes))
    while count > 1 and shape[count - 1] == 1:
        count -= 1
    if count == 0 or sizes[count:] != shape[count:]:
        return None
    return TableRows(table, tuple(index[:count]), count)


def _gathered(eqn: Equation, dims: Any, gone: Any, numbers: Any) -> bool:
    """Whether the first axes are those that are picked from, and none is batched."""
    first = tuple(range(len(dims)))
    batched = [getattr(numbers, f"{who}_batching_dims", ()) for who in
               ("operand", "start_indices", "scatter_indices")]  # fmt: skip
    return tuple(dims) == tuple(gone) == first and bool(first) and not any(batched)


def _fill(eqn: Equation, dtype: Any) -> Any:
    """What is read where there is no row, as JAX says it: None if the nearest row is meant."""
    assert isinstance(eqn.op, Lax)
    if eqn.op["mode"] != jax.lax.GatherScatterMode.FILL_OR_DROP:
        return None
    given = dict(eqn.op.params).get("fill_value")
    if given is not None:
        return given
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.nan
    if jnp.issubdtype(dtype, jnp.bool_):
        return True
    info = jnp.iinfo(dtype)
    return info.min if jnp.issubdtype(dtype, jnp.signedinteger) else info.max


def _some(rows: TableRows) -> TableRows | None:
    return rows if 0 < math.prod(rows.batch) <= MOST_ROWS and math.prod(rows.lengths) else None


def row_sums(body: Program, reductions: Sequence[Reduce | None]) -> dict[int, tuple[RowSum, ...]]:
    """The outputs that are sums over all edges of what each adds to rows of a table, by number."""
    made: dict[Any, Equation] = {o: e for e in body.equations for o in e.outputs}
    found = {}
    for number, (atom, r) in enumerate(zip(body.outputs, reductions, strict=True)):
        parts = _parts(atom, made) if r == Reduce("sum", Space.SHARED) else ()
        if parts:
            found[number] = parts
    return found


def _parts(atom: Atom, made: Mapping[Any, Equation]) -> tuple[RowSum, ...]:
    """Several where a table is read more than once."""
    eqn = made.get(atom)
    if eqn is None:
        return ()
    if eqn.op.name in ("add", "add_any"):
        both = [_parts(a, made) if a.shape == atom.shape else () for a in eqn.inputs]
        return (*both[0], *both[1]) if all(both) else ()
    one = sum_of(eqn, made)
    return () if one is None else (one,)
