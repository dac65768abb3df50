"""Particles sorted into cells, and the particles in the cells around each."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Cells = tuple[int, ...]


class Sorted(NamedTuple):
    """Particles by the cell that they are in.

    Attributes:
        own: `int[N, 1 + D]`, the graph of each particle, and its cell along each axis.
        order: `int[N]`, the particles sorted by cell; those that are masked come last.
        begin: `int[cells + 1]`, where in `order` the particles of a cell begin.
    """

    own: jax.Array
    order: jax.Array
    begin: jax.Array


def sort(
    cell: jax.Array, graph_index: jax.Array | None, mask: jax.Array | None, shape: Cells
) -> Sorted:
    """`cell`: `int[N, D]`. `shape`: the number of graphs, and of cells along each axis."""
    count = cell.shape[0]
    graph = jnp.zeros(count, jnp.int32) if graph_index is None else graph_index.astype(jnp.int32)
    own = jnp.concatenate([graph[:, None], cell], axis=1)
    flat, total = _flat(own, shape), int(np.prod(shape))
    if mask is not None:
        flat = jnp.where(mask, flat, total)
    order = jnp.argsort(flat).astype(jnp.int32)
    each = jnp.zeros(total + 1, jnp.int32).at[flat + 1].add(1, mode="drop")
    return Sorted(own, order, jnp.cumsum(each, dtype=jnp.int32))


def _flat(cell: jax.Array, shape: Cells) -> jax.Array:
    strides = np.cumprod((1, *shape[:0:-1]))[::-1].astype(np.int32)
    return (cell * jnp.asarray(strides)).sum(axis=1, dtype=jnp.int32)


def most_in_a_row(
    cell: np.ndarray, graph_index: np.ndarray, shape: Cells, periodic: tuple[bool, ...]
) -> int:
    """The most particles in neighbouring cells along the last axis, of concrete particles."""
    count = np.zeros(shape, int)
    np.add.at(count, (graph_index, *cell.T), 1)
    steps = _steps(shape[-1], periodic[-1])
    if len(steps) == 1:
        return int(count.max(initial=0))
    if periodic[-1]:
        return int(np.sum([np.roll(count, step, axis=-1) for step in steps], axis=0).max(initial=0))
    wide = np.pad(count, [(0, 0)] * (count.ndim - 1) + [(1, 1)])
    return int((wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]).max(initial=0))


def around(
    found: Sorted, shape: Cells, periodic: tuple[bool, ...], room: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Where the particles in the cells around each are in `order`, row by row of the last axis.

    Args:
        room: the most particles in the neighbouring cells of one row.

    Returns:
        `int[N, rows * room]`, places; `bool` of that shape, which of them hold one; and `int[]`,
        the most that a row has.
    """
    steps = [_steps(n, p) for n, p in zip(shape[1:], periodic, strict=True)]
    parts, valid, most = [], [], jnp.zeros((), jnp.int32)
    place = jnp.arange(room, dtype=jnp.int32)
    for row in itertools.product(*steps[:-1]):
        begins, counts = zip(
            *(_cell(found, shape, periodic, (*row, last)) for last in steps[-1]), strict=True
        )
        begin, passed = begins[0][:, None] + place, counts[0]
        for start, count in zip(begins[1:], counts[1:], strict=True):
            later = place >= passed[:, None]
            begin = jnp.where(later, (start - passed)[:, None] + place, begin)
            passed = passed + count
        valid.append(place < passed[:, None])
        parts.append(begin)
        most = jnp.maximum(most, passed.max(initial=0))
    inside = jnp.concatenate(valid, axis=1)
    return jnp.where(inside, jnp.concatenate(parts, axis=1), 0), inside, most


def _steps(cells: int, periodic: bool) -> tuple[int, ...]:
    """To the cells around along an axis, each once."""
    if cells == 1:
        return (0,)
    return (0, 1) if periodic and cells == 2 else (-1, 0, 1)


def _cell(
    found: Sorted, shape: Cells, periodic: tuple[bool, ...], step: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """Where the particles of a neighbouring cell begin, and how many there are."""
    cell = found.own.at[:, 1:].add(jnp.asarray(step, jnp.int32))
    sizes = jnp.asarray(shape[1:], jnp.int32)
    wrapped = jnp.where(jnp.asarray(periodic), cell[:, 1:] % sizes, cell[:, 1:])
    there = ((wrapped >= 0) & (wrapped < sizes)).all(axis=1)
    cell = cell.at[:, 1:].set(jnp.clip(wrapped, 0, sizes - 1))
    flat = _flat(cell, shape)
    begin = found.begin[flat]
    return begin, jnp.where(there, found.begin[flat + 1] - begin, 0)
