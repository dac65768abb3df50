"""All pairs within a radius, found in cells: static sizes, so that it runs inside `jit`.

Cells and capacities are those of molecular dynamics (Verlet lists, as jax-md keeps them): sizes
are fitted to concrete positions once, and every later search with them says whether they held.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.geometry import cells
from gnnjit.geometry.box import displacement, read_box, read_positions
from gnnjit.graph import Graph
from gnnjit.graph.pairs import with_pairs
from gnnjit.graph.validate import as_count, is_traced, shown
from gnnjit.shapes import ArrayLike

MOST_CELLS = 1 << 20
"""Cells at most: larger ones hold more particles, and stay correct."""

MARGIN = 1 + 1e-4
"""Cells are larger than the radius by this factor, so that rounded positions lose no pair."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["graph", "overflow", "num_found"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What a search finds.

    Attributes:
        graph: the edges `u -> v` of all pairs within the radius, both ways, sorted by destination,
            padded to the capacity.
        overflow: `bool[]`, True where a capacity did not hold, or cells are smaller than the
            radius: edges are missing, so fit a new search to these positions.
        num_found: `int[]`, the edges there are. Where a row of cells was too full, at least these.
    """

    graph: Graph
    overflow: jax.Array
    num_found: jax.Array


@dataclasses.dataclass(frozen=True)
class RadiusSearch:
    """Finds all pairs within a radius inside `jit`. Hashable, to be closed over or static; `fit`
    makes one.

    Attributes:
        cutoff: the radius, in the unit of the positions. Pairs at just this distance count.
        box: the sides of a periodic box, 0 where open; None: all sides are open.
        cells: cells along each axis.
        widths: of a cell along each open axis; of a periodic one its share of the side.
        room: the most particles in neighbouring cells along the last axis (three, or fewer).
        num_edges: the capacity of the graph.
        num_graphs: graphs of a batch; only pairs of one graph count.
        loops: whether each vertex has an edge to itself.
    """

    cutoff: float
    box: tuple[float, ...] | None
    cells: tuple[int, ...]
    widths: tuple[float, ...]
    room: int
    num_edges: int
    num_graphs: int = 1
    loops: bool = False

    @classmethod
    def fit(
        cls,
        positions: ArrayLike,
        cutoff: float,
        *,
        box: Any = None,
        graph_index: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        loops: bool = False,
        slack: float = 1.25,
    ) -> RadiusSearch:
        """A search whose capacities are `slack` times what these positions need.

        Args:
            positions: `[N, D]`, concrete.
            cutoff: the radius; in a periodic box at most half of each of its sides.
            box: the sides of a periodic orthogonal box, a number or `[D]`; 0: a side is open.
            graph_index: `int[N]`, which graph of a batch each vertex belongs to.
            mask: `bool[N]`, False on padding, which has no edges.
            loops: whether each vertex has an edge to itself.
            slack: how much larger than needed, >= 1.

        Raises:
            GraphError: an argument is none of these, or the positions are traced.
        """
        if is_traced(positions, graph_index, mask):
            raise GraphError(
                "RadiusSearch.fit was called on traced positions, expected concrete ones: fit "
                "outside jit, and call what it returns inside"
            )
        x = read_positions(positions)
        sides = read_box(box, x.shape[1])
        if not (isinstance(slack, int | float) and slack >= 1):
            raise GraphError(f"slack is {shown(slack)}, expected a number >= 1")
        graphs = read_graphs(graph_index, x.shape[0])
        search = fit_cells(x, cutoff, sides, graphs, mask, bool(loops), slack)
        mask = None if mask is None else np.asarray(mask, bool)
        count = int(_search(x, None, graphs, mask, search).num_found)
        return dataclasses.replace(search, num_edges=math.ceil(slack * count))

    def check(self, x: jax.Array, box: Any) -> None:
        """Raises GraphError for positions of other dimensions, or a box where none was fitted."""
        if x.shape[1] != len(self.cells):
            raise GraphError(
                f"positions have {x.shape[1]} dimensions, expected {len(self.cells)}, as "
                "those that the search was fitted to"
            )
        if box is not None and self.box is None:
            raise GraphError(
                "box was given to a search fitted without one: pass box= to fit, which makes cells "
                "that wrap around"
            )

    @property
    def periodic(self) -> tuple[bool, ...]:
        """Of each axis."""
        return tuple(side > 0 for side in self.box or (0,) * len(self.cells))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of graphs, and of cells along each axis."""
        return (self.num_graphs, *self.cells)

    def __call__(
        self,
        positions: ArrayLike,
        *,
        box: ArrayLike | None = None,
        graph_index: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Found:
        """All pairs within the radius.

        Args:
            positions: `[N, D]`; traced inside `jit`.
            box: `[D]`, sides that differ from those fitted, as when a barostat changes them.
            graph_index, mask: as in `fit`.

        Raises:
            GraphError: an argument has another shape than the search was fitted to; positions are
                concrete and a capacity does not hold.
        """
        x = read_positions(positions)
        self.check(x, box)
        graphs = read_graphs(graph_index, x.shape[0])
        found = _search(x, box, graphs, mask, self)
        if not is_traced(*jax.tree.leaves(found)) and bool(found.overflow):
            raise GraphError(
                f"the search holds {self.num_edges:,} edges and {self.room:,} particles in a row "
                f"of cells, and these positions need more (at least {int(found.num_found):,} "
                "edges): fit a new one to them"
            )
        return found


def fit_cells(
    x: jax.Array,
    cutoff: float,
    sides: tuple[float, ...] | None,
    graphs: Any,
    mask: Any,
    loops: bool,
    slack: float,
) -> RadiusSearch:
    """A search whose cells hold `slack` times these concrete positions, without room for edges.

    Raises GraphError where the radius is none, or more than half of a periodic side.
    """
    held = np.ones(len(x), bool) if mask is None else np.asarray(mask, bool)
    cutoff = _read_cutoff(cutoff, sides)
    search = _without_room(np.asarray(x)[held], cutoff, sides, graphs, loops)
    cell, _ = _cell(x, None if mask is None else held, sides, search)
    own = np.zeros(len(x), int) if graphs is None else graphs
    most = cells.most_in_a_row(np.asarray(cell)[held], own[held], search.shape, search.periodic)
    return dataclasses.replace(search, room=max(1, math.ceil(slack * most)))


def _without_room(
    x: np.ndarray, cutoff: float, box: tuple[float, ...] | None, graphs: Any, loops: bool
) -> RadiusSearch:
    """With as many cells along each axis as are larger than the radius, and no room."""
    num_graphs = 1 if graphs is None else int(graphs.max(initial=0)) + 1
    extent = np.ptp(x, axis=0) if len(x) else np.zeros(x.shape[1])
    sides = np.array(box or (0,) * x.shape[1])
    length = np.where(sides > 0, sides, extent)
    wanted = np.maximum(1, np.floor(length / (MARGIN * cutoff)).clip(max=1 << 20))
    most = max(1, min(MOST_CELLS, 4 * len(x)) // num_graphs)
    while np.prod(wanted) > most:
        wanted = np.where(wanted == wanted.max(), np.floor(0.9 * wanted), wanted)
    widths = np.maximum(length / wanted, MARGIN * cutoff)
    return RadiusSearch(
        cutoff, box, tuple(int(n) for n in wanted), tuple(widths.tolist()), 1, 1, num_graphs,
        loops,
    )  # fmt: skip


def radius(
    positions: ArrayLike,
    cutoff: float,
    *,
    box: Any = None,
    graph_index: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    loops: bool = False,
) -> Graph:
    """The graph of all pairs within a radius, without padding; outside `jit`, where
    `RadiusSearch` is for inside. Arguments and errors are those of `RadiusSearch.fit`.

    Returns:
        the edges `u -> v`, both ways, sorted by destination.
    """
    search = RadiusSearch.fit(
        positions, cutoff, box=box, graph_index=graph_index, mask=mask, loops=loops, slack=1
    )
    found = search(positions, graph_index=graph_index, mask=mask)
    count, graph = int(found.num_found), found.graph
    return Graph.from_edges(
        np.asarray(graph.src)[:count], np.asarray(graph.dst)[:count], num_nodes=graph.num_nodes,
        sorted_by="dst", symmetric=True,
    )  # fmt: skip


def _read_cutoff(cutoff: Any, sides: tuple[float, ...] | None) -> float:
    if not (isinstance(cutoff, int | float | np.number) and math.isfinite(cutoff) and cutoff > 0):
        raise GraphError(f"cutoff is {shown(cutoff)}, expected a number > 0")
    small = [s for s in sides or () if 0 < s < 2 * cutoff]
    if small:
        raise GraphError(
            f"cutoff is {cutoff:g} in a periodic box with a side of {small[0]:g}, expected at most "
            f"half of it: a vertex would meet several images of another; repeat the box, or lower "
            "the cutoff"
        )
    return float(cutoff)


def read_graphs(graph_index: ArrayLike | None, count: int) -> Any:
    """Raises GraphError unless it is an integer for each vertex, or None."""
    if graph_index is None:
        return None
    found: Any = graph_index if is_traced(graph_index) else np.asarray(graph_index)
    if found.shape != (count,) or not np.issubdtype(found.dtype, np.integer):
        raise GraphError(
            f"graph_index is {found.dtype} of shape {tuple(found.shape)}, expected integers of "
            f"shape ({as_count('vertices', count)},), the graph of each vertex"
        )
    return found


@functools.partial(jax.jit, static_argnames="search")
def _search(x: jax.Array, box: Any, graphs: Any, mask: Any, search: RadiusSearch) -> Found:
    if not x.shape[0]:
        nothing = jnp.zeros(0, jnp.int32)
        return Found(Graph.from_edges(nothing, nothing, 0), jnp.asarray(False), jnp.asarray(0))
    other, order, near, most, fits = _pairs(jax.lax.stop_gradient(x), box, graphs, mask, search)
    count = near.sum(dtype=jnp.int32)
    width = near.shape[1]
    place = jnp.cumsum(near.reshape(-1), dtype=jnp.int32) - 1
    place = jnp.where(near.reshape(-1), place, search.num_edges)
    where = jnp.full(search.num_edges, x.shape[0] * width, jnp.int32)
    where = where.at[place].set(jnp.arange(near.size, dtype=jnp.int32), mode="drop")
    real = jnp.arange(search.num_edges) < count
    picked = jnp.where(real, where, 0)
    graph = Graph.from_edges(
        order[other.reshape(-1)[picked]], picked // width, num_nodes=x.shape[0], edge_mask=real,
        sorted_by="dst", symmetric=True,
    )  # fmt: skip
    if not search.loops:
        graph = with_pairs(graph, sorted_by="dst")
    overflow = (most > search.room) | (count > search.num_edges) | ~fits
    return Found(graph, overflow, count)


def _pairs(
    x: jax.Array, box: Any, graphs: Any, mask: Any, search: RadiusSearch
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """`int[N, W]`, places of the vertices in the cells around each; `int[N]`, the vertices in these
    places; `bool[N, W]`, which are within the radius; `int[]`, the most of a row of cells;
    `bool[]`, whether cells are large enough."""
    mask = None if mask is None else jnp.asarray(mask, bool)
    found, fits = cells_of(x, box, graphs, mask, search)
    other, valid, most = cells.around(found, search.shape, search.periodic, search.room)
    sides = (search.box if box is None else box) if any(search.periodic) else None
    apart = jnp.zeros(other.shape, x.dtype)
    for axis, column in enumerate(x.T):  # axis by axis: no [N, W, D] array
        side = None if sides is None else jnp.broadcast_to(jnp.asarray(sides), x.shape[1])[axis]
        way = displacement(column[:, None], column[found.order][other], side)
        apart = apart + way * way
    near = valid & (apart <= search.cutoff**2)
    if not search.loops:
        place = jnp.zeros_like(found.order).at[found.order].set(jnp.arange(len(x), dtype=jnp.int32))
        near &= other != place[:, None]
    if mask is not None:
        near &= mask[:, None]
    return other, found.order, near, most, fits


def cells_of(
    x: jax.Array, box: Any, graphs: Any, mask: Any, search: RadiusSearch
) -> tuple[cells.Sorted, jax.Array]:
    """The vertices sorted into the search's cells; `bool[]`, whether cells are large enough."""
    cell, fits = _cell(x, mask, search.box if box is None else box, search)
    graphs = None if graphs is None else jnp.asarray(graphs)
    return cells.sort(cell, graphs, mask, search.shape), fits


def _cell(x: jax.Array, mask: Any, sides: Any, search: RadiusSearch) -> tuple[jax.Array, jax.Array]:
    """`int[N, D]`, the cell of each particle; `bool[]`, whether cells are large enough."""
    count = jnp.asarray(search.cells, jnp.int32)
    low = x.min(axis=0, initial=jnp.inf, where=None if mask is None else mask[:, None])
    low = jnp.where(jnp.isfinite(low), low, 0)
    cell = jnp.floor((x - low) / jnp.asarray(search.widths, x.dtype))
    cell = jnp.clip(cell, 0, (count - 1).astype(x.dtype)).astype(jnp.int32)
    if not any(search.periodic):
        return cell, jnp.asarray(True)
    wraps = jnp.asarray(search.periodic)
    length = jnp.where(wraps, jnp.broadcast_to(jnp.asarray(sides, x.dtype), count.shape), 1)
    wide = length / count
    wrapped = jnp.floor(x / wide).astype(jnp.int32) % count
    enough = (wide >= search.cutoff) | (count == 1)
    fits = (~wraps | (enough & (length >= 2 * search.cutoff))).all()
    return jnp.where(wraps, wrapped, cell), fits
