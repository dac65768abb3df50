"""The nearest vertices of each: exact, of a static size, and by cells where there are many.

A search in cells is one within a radius that is grown until it holds the nearest of each; vertices
that are far from all others look at every pair.
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
from gnnjit.geometry.radius import Found, RadiusSearch, cells_of, fit_cells, read_graphs
from gnnjit.graph import Graph
from gnnjit.graph.validate import as_count, is_traced
from gnnjit.shapes import ArrayLike

DISTANCES = 1 << 22
"""Distances in memory at a time, about."""

MANY = 1 << 14
"""Vertices from which on `nearest` searches in cells, where positions are concrete."""

GROW = 1.3
"""What a radius grows by that does not hold the nearest."""

_NORMAL = 1 << 23

ALONE = 1 / 64
"""Vertices whose nearest are not within the radius, as a share of all, that look at every pair."""


def nearest(
    positions: ArrayLike,
    k: int,
    *,
    box: Any = None,
    graph_index: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    loops: bool = False,
) -> Graph:
    """The graph of an edge to each vertex from each of its k nearest, also inside `jit`.

    Outside `jit` tens of thousands of vertices are sorted into cells. Inside, every pair is looked
    at, and `NearestSearch` is for many. Of equally near vertices the one of the lower number comes
    first.

    Args:
        positions: `[N, D]`.
        k: edges of each vertex.
        box: the sides of a periodic orthogonal box, a number or `[D]`; 0: a side is open.
        graph_index: `int[N]`, which graph of a batch each vertex belongs to; neighbours are of the
            same.
        mask: `bool[N]`, False on padding, which has no edges.
        loops: whether a vertex counts as a neighbour of its own.

    Returns:
        a graph of `N * k` edges, sorted by destination, each vertex's by distance. Where a graph
        has too few vertices, or some are padding, edges are padding too.

    Raises:
        GraphError: an argument is none of these, or k is larger than the other vertices are many.
    """
    x = read_positions(positions)
    sides, k = read_box(box, x.shape[1]), _read_k(k, x.shape[0], loops)
    graphs = read_graphs(graph_index, x.shape[0])
    mask = None if mask is None else jnp.asarray(mask, bool)
    search = None
    if x.shape[0] >= MANY and not is_traced(x, graphs, mask):
        search = _fit(x, k, sides, graphs, mask, bool(loops), slack=1, alone=ALONE)
    if search is None:
        every = jnp.arange(x.shape[0], dtype=jnp.int32)
        src, real = _every_pair(x, every, k, sides, graphs, mask, bool(loops))
    else:
        src, real, lacks, _, _ = _in_cells(x, None, graphs, mask, search)
        rows = np.flatnonzero(lacks)
        if len(rows):
            more = _every_pair(x, jnp.asarray(rows), k, sides, graphs, mask, bool(loops))
            src, real = src.at[rows].set(more[0]), real.at[rows].set(more[1])
    return _graph(src, None if graphs is None and mask is None else real)


@dataclasses.dataclass(frozen=True)
class NearestSearch:
    """Finds the k nearest of each vertex inside `jit`, in cells. Hashable; `fit` makes one.

    Attributes:
        k: edges of each vertex.
        within: the radius that holds them, and its cells.
    """

    k: int
    within: RadiusSearch

    @classmethod
    def fit(
        cls,
        positions: ArrayLike,
        k: int,
        *,
        box: Any = None,
        graph_index: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        loops: bool = False,
        slack: float = 1.25,
    ) -> NearestSearch:
        """A search whose radius and capacity are `slack` times what these positions need.

        Args:
            positions: `[N, D]`, concrete.
            slack: how much larger than needed, >= 1.
            k, box, graph_index, mask, loops: as in `nearest`.

        Raises:
            GraphError: an argument is none of these, positions are traced, or a vertex's nearest
                are further away than half of a periodic side.
        """
        if is_traced(positions, graph_index, mask):
            raise GraphError(
                "NearestSearch.fit was called on traced positions, expected concrete ones: fit "
                "outside jit, and call what it returns inside"
            )
        x = read_positions(positions)
        sides, k = read_box(box, x.shape[1]), _read_k(k, x.shape[0], loops)
        graphs = read_graphs(graph_index, x.shape[0])
        mask = None if mask is None else jnp.asarray(mask, bool)
        found = _fit(x, k, sides, graphs, mask, bool(loops), slack=slack, alone=0)
        if found is None:
            raise GraphError(
                f"the {k} nearest of some vertex are further away than half of a periodic side, "
                "expected them within: a search in cells does not find them; call nearest, which "
                "looks at every pair"
            )
        return found

    def __call__(
        self,
        positions: ArrayLike,
        *,
        box: ArrayLike | None = None,
        graph_index: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Found:
        """The k nearest of each, in a graph as `nearest` gives it. `overflow` is True where a
        capacity did not hold, or the nearest of some vertex are not within the radius: edges are
        missing.

        Args:
            positions: `[N, D]`; traced inside `jit`.
            box: `[D]`, sides that differ from those fitted.
            graph_index, mask: as in `fit`.

        Raises:
            GraphError: positions are concrete and do not fit, or have another shape.
        """
        x = read_positions(positions)
        self.within.check(x, box)
        graphs = read_graphs(graph_index, x.shape[0])
        mask = None if mask is None else jnp.asarray(mask, bool)
        src, real, lacks, most, fits = _in_cells(x, box, graphs, mask, self)
        overflow = lacks.any() | (most > self.within.room) | ~fits
        graph = _graph(src, real)
        if not is_traced(*jax.tree.leaves(graph), overflow) and bool(overflow):
            raise GraphError(
                f"the search holds neighbours within {self.within.cutoff:g} and "
                f"{self.within.room:,} particles in a row of cells, and these positions need more "
                f"({int(lacks.sum()):,} vertices lack some of their {self.k}): fit a new one to "
                "them"
            )
        return Found(graph, overflow, real.sum(dtype=jnp.int32))


def _read_k(k: Any, count: int, loops: bool) -> int:
    k, others = as_count("k", k), count - (not loops)
    if k > max(0, others) or k == 0:
        raise GraphError(
            f"k is {k}, expected 1 to {max(0, others)}, the neighbours that a vertex of "
            f"{count} can have"
        )
    return k


def _graph(src: jax.Array, real: jax.Array | None) -> Graph:
    count, k = src.shape
    dst = np.repeat(np.arange(count, dtype=np.int32), k)
    return Graph.from_edges(
        src.reshape(-1), dst, num_nodes=count, sorted_by="dst",
        edge_mask=None if real is None else real.reshape(-1),
    )  # fmt: skip


def _fit(
    x: jax.Array, k: int, sides: tuple[float, ...] | None, graphs: Any, mask: Any, loops: bool, *,
    slack: float, alone: float,
) -> NearestSearch | None:  # fmt: skip
    """A search whose radius holds the nearest of all but a share `alone` of the vertices; None
    where half of a periodic side does not, or cells tell no vertices apart."""
    held = np.asarray(x) if mask is None else np.asarray(x)[np.asarray(mask)]
    side = np.array(sides or (0.0,) * x.shape[1])
    length = np.where(side > 0, side, np.ptp(held, axis=0) if len(held) else 0)
    most = min((s / 2 for s in side if s > 0), default=math.inf)
    cutoff = min(_guess(k, held, length, graphs), most)
    while True:
        within = fit_cells(x, cutoff, sides, graphs, mask, loops, slack)
        search = NearestSearch(k, within)
        if alone and _width(within) > len(x) / 2:
            return None  # every pair is as quick
        lacks = int(_in_cells(x, None, graphs, mask, search)[2].sum())
        if lacks <= alone * len(x):
            break
        if cutoff >= most:
            return search if alone and lacks < len(x) / 2 else None
        cutoff = min(GROW * cutoff, most)
    if slack > 1:
        wide = min(slack ** (1 / x.shape[1]) * cutoff, most)
        within = fit_cells(x, wide, sides, graphs, mask, loops, slack)
        search = NearestSearch(k, within)
    return search


def _guess(k: int, held: np.ndarray, length: np.ndarray, graphs: Any) -> float:
    """The radius of a ball that would hold twice as many, were all vertices spread evenly."""
    each = len(held) / (1 if graphs is None else int(np.max(graphs, initial=0)) + 1)
    flat = length[length > 0]
    if not len(flat):
        return 1.0  # all in one place
    dimensions = len(flat)
    ball = math.pi ** (dimensions / 2) / math.gamma(dimensions / 2 + 1)
    return float((2 * (k + 1) * flat.prod() / max(1, each) / ball) ** (1 / dimensions))


def _width(search: RadiusSearch) -> int:
    """Vertices that are looked at for each."""
    around = [1 if n == 1 else 2 if n == 2 else 3 for n in search.cells[:-1]]
    return math.prod(around) * search.room


@functools.partial(jax.jit, static_argnames="search")
def _in_cells(
    x: jax.Array, box: Any, graphs: Any, mask: Any, search: NearestSearch
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """`int[N, k]`, sources; `bool[N, k]`, which are there; `bool[N]`, which vertices lack some
    within the radius; `int[]`, the most of a row of cells; `bool[]`, whether cells are large
    enough."""
    within, k, count = search.within, search.k, x.shape[0]
    x = jax.lax.stop_gradient(x)
    found, fits = cells_of(x, box, graphs, mask, within)
    sides = (within.box if box is None else box) if any(within.periodic) else None
    real = jnp.ones(count, bool) if mask is None else mask

    def row(v: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        alone = found._replace(own=found.own[v][None])
        place, valid, most = cells.around(alone, within.shape, within.periodic, within.room)
        other = found.order[place[0]]
        apart = jnp.square(displacement(x[other], x[v], sides)).sum(axis=-1)
        wanted = valid[0] & (apart <= within.cutoff**2) & real[v]
        if not within.loops:
            wanted &= other != v
        short = max(0, k - len(other))
        apart = jnp.pad(jnp.where(wanted, apart, jnp.inf), (0, short), constant_values=jnp.inf)
        near, first = _first(apart, jnp.pad(other, (0, short)), k)
        return first, near < jnp.inf, most

    batch = max(1, min(count, DISTANCES // _width(within)))
    vertices = jnp.arange(count, dtype=jnp.int32)
    src, there, most = jax.lax.map(row, vertices, batch_size=batch)
    graph = jnp.zeros(count, jnp.int32) if graphs is None else jnp.asarray(graphs)
    others = jnp.zeros(within.num_graphs, jnp.int32).at[graph].add(real)[graph] - (not within.loops)
    lacks = real & (there.sum(axis=1) < jnp.minimum(k, others))
    return jnp.where(there, src, 0), there, lacks, most.max(), fits


def _first(apart: jax.Array, vertex: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k least of `apart`, and their vertices; of equal ones those of the lower number."""
    near, place = jax.lax.top_k(-apart, k)
    last = -near[-1]
    # The vertices at just this distance; of whole numbers `top_k` would sort all, so they are
    # read as floats, in the same order, above the denormal ones.
    key = jax.lax.bitcast_convert_type(vertex.astype(jnp.int32) + _NORMAL, jnp.float32)
    equal = -jax.lax.top_k(jnp.where(apart == last, -key, -jnp.inf), k)[0]
    lowest = jax.lax.bitcast_convert_type(equal, jnp.int32) - _NORMAL
    both = (
        jnp.concatenate([jnp.where(-near < last, -near, jnp.inf), jnp.full(k, last)]),
        jnp.concatenate([vertex[place], lowest]),  # infinity comes after all vertices
    )
    near, first = jax.lax.sort(both, num_keys=2)
    return near[:k], first[:k]


@functools.partial(jax.jit, static_argnames=("k", "sides", "loops"))
def _every_pair(
    x: jax.Array,
    rows: jax.Array,
    k: int,
    sides: tuple[float, ...] | None,
    graphs: Any,
    mask: Any,
    loops: bool,
) -> tuple[jax.Array, jax.Array]:
    """Of the vertices `rows`: `int[R, k]`, and `bool[R, k]`: False where there are fewer."""
    count = x.shape[0]
    x, vertices = jax.lax.stop_gradient(x), jnp.arange(count, dtype=jnp.int32)
    real = jnp.ones(count, bool) if mask is None else mask
    graph = jnp.zeros(count, jnp.int32) if graphs is None else jnp.asarray(graphs)

    def row(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        way = displacement(x, x[v], sides)
        wanted = real & real[v] & (graph == graph[v])
        if not loops:
            wanted &= vertices != v
        near, found = jax.lax.top_k(jnp.where(wanted, -jnp.square(way).sum(axis=-1), -jnp.inf), k)
        return found.astype(jnp.int32), near > -jnp.inf

    return jax.lax.map(row, rows, batch_size=max(1, min(len(rows), DISTANCES // count)))
