"""Hierarchical dependency graphs that a device never holds whole: some roots after the other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph.validate import is_traced, shown
from gnnjit.neighborhood.hdg import HDG
from gnnjit.neighborhood.owners import owners
from gnnjit.neighborhood.some_roots import Room, cut, neighbors_of, of_roots, padded
from gnnjit.shapes import PyTree
from gnnjit.store import HostStore, VertexStore


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["place"],
    meta_fields=["part", "num_parts", "num_roots", "store"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class StreamedHDG:
    """An HDG in a store, in parts of some roots each: a frozen pytree that holds none of them.

    It is called as an `HDG` is, inside `jit` and `grad` too. Each part is read, aggregated and
    forgotten; for a gradient it is read and computed once more. So the device holds the features,
    the results, and one part with all that is computed on its levels.

    Attributes:
        place: `int32[roots]`, the row of each root among those of all parts.
        part: the HDG of one part, in shapes (static).
        num_parts, num_roots: how many there are (static).
        store: where they are (static).
    """

    place: Any
    part: HDG
    num_parts: int
    num_roots: int
    store: VertexStore

    @property
    def num_levels(self) -> int:
        """The levels: 1 to 3."""
        return self.part.num_levels

    @property
    def num_types(self) -> int:
        """Neighbour types, as of `HDG`."""
        return self.part.num_types

    @property
    def longest(self) -> int:
        """The most vertices of an instance, as of `HDG`."""
        return self.part.longest

    @property
    def types(self) -> tuple[str, ...]:
        """Vertex types, as of `HDG`."""
        return self.part.types

    @property
    def edges(self) -> tuple[PyTree, ...]:
        """The data of each level's edges in a part, in shapes, or None."""
        return self.part.edges

    def __call__(self, x: PyTree, *stages: Callable[..., Any]) -> PyTree:
        """Aggregate and update, as `HDG` does. Stages see the levels of some roots at a time.

        Raises GraphError as `HDG` does.
        """
        return self.apply(lambda hdg, x: hdg(x, *stages), x)

    def apply(self, fn: Callable[..., PyTree], *args: Any) -> PyTree:
        """`fn(hdg, *args)` for the HDG of each part, a row for each root: `[roots, ...]`."""
        leaves, tree = jax.tree.flatten(self.part)

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def one(number: Any, args: Any) -> PyTree:
            found = jax.pure_callback(self._read, leaves, number)
            return fn(jax.tree.unflatten(tree, found), *args)

        numbers = jnp.arange(self.num_parts, dtype=jnp.int32)
        _, rows = jax.lax.scan(lambda _, i: (None, one(i, args)), None, numbers)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[self.place], rows)

    def mean_of_roots(self, rows: PyTree) -> PyTree:
        """The mean over all roots of a pytree of `[roots, ...]`."""
        return jax.tree.map(lambda a: a.mean(axis=0), rows)

    def _read(self, number: Any) -> list[np.ndarray]:
        found = []
        for k, leaf in enumerate(jax.tree.leaves(self.part)):
            first = int(number) * len(leaf)
            found.append(self.store.read(_name(k), first, first + len(leaf)))
        return found

    def __repr__(self) -> str:
        return (
            f"StreamedHDG({self.num_roots} roots in {self.num_parts} parts of at most "
            f"{self.part.num_roots - 1}; {self.num_levels} levels)"
        )


def _name(number: int) -> str:
    return f"hdg.{number}"


def stream(hdg: HDG, parts: int, *, store: VertexStore | None = None) -> StreamedHDG:
    """Cut an HDG into parts, each some roots with all of their neighbourhoods, and keep them in a
    store.

    Args:
        hdg: a concrete HDG.
        parts: their number. Roots are cut as they are numbered, where the sums of their costs are
            equal, as `shard` does.
        store: empty, such as `gnnjit.store.DiskStore.create(folder)`; memory of the host if left
            out. It must stay open.

    Raises:
        GraphError: `hdg` is none, or `parts` is not from 1 to the number of its roots.
        StoreError: as of the store.
    """
    if not isinstance(hdg, HDG) or is_traced(hdg):
        got = "a traced HDG" if isinstance(hdg, HDG) else shown(hdg)
        raise GraphError(f"stream() got {got}, expected a concrete HDG: stream outside jit")
    whole = isinstance(parts, int | np.integer) and not isinstance(parts, bool)
    if not whole or not 1 <= parts <= max(1, hdg.num_roots):
        raise GraphError(
            f"parts is {shown(parts)}, expected a whole number from 1 to the {hdg.num_roots} roots"
        )
    store = HostStore() if store is None else store
    own, found = owners(hdg, parts, None), neighbors_of(hdg)
    roots = [np.flatnonzero(own == i) for i in range(parts)]
    room = Room.for_all([cut(found, some) for some in roots])
    shapes = None
    for i, some in enumerate(roots):
        part = of_roots(hdg, padded(cut(found, some), room), some)
        if shapes is None:
            shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), part)
            _make_room(store, shapes, parts)
        for k, leaf in enumerate(jax.tree.leaves(part)):
            store.write(_name(k), i * len(leaf), np.asarray(leaf))
    assert shapes is not None
    for k in range(len(jax.tree.leaves(shapes))):
        store.seal(_name(k))
    place = np.empty(hdg.num_roots, np.int32)
    for i, some in enumerate(roots):
        place[some] = i * room.roots + np.arange(len(some))
    return StreamedHDG(jnp.asarray(place), shapes, int(parts), hdg.num_roots, store)


def _make_room(store: VertexStore, shapes: HDG, parts: int) -> None:
    for k, leaf in enumerate(jax.tree.leaves(shapes)):
        store.add(_name(k), parts * leaf.shape[0], leaf.shape[1:], leaf.dtype)
