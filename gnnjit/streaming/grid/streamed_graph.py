"""A graph whose edges and vertex data live in a store, and handles of its arrays."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from gnnjit.distributed.process_group import ProcessGroup, digest
from gnnjit.errors import GraphError, StoreError, StreamError
from gnnjit.graph import relations
from gnnjit.graph.reading import as_indices, read_on_host
from gnnjit.graph.validate import refuse_sparse, shown
from gnnjit.ir.array_program import Rows
from gnnjit.partition.locality import Ordering, order_vertices
from gnnjit.partition.validate import whole
from gnnjit.shapes import ArrayLike, HostArray
from gnnjit.store.array_info import NAME
from gnnjit.store.memory import HostStore
from gnnjit.store.store import VertexStore
from gnnjit.streaming.grid.arrays import EdgeArray, VertexArray
from gnnjit.streaming.grid.blocks import COMPLETE, EdgeBlocks
from gnnjit.streaming.grid.selective import Rates

PIECE = 1 << 22
"""Edges, or bytes of rows, that are handled at a time."""

RATE_BYTES = 16 << 20
"""Bytes that are moved to measure the rates."""

GRID = r"grid\.\d+\."
"""What arrays of a grid begin with: its edges, and copies of edge data in its order."""
USER = {Rows.VERTEX: "user.vertex.", Rows.EDGE: "user.edge."}
"""What the store puts before the names of the user's arrays, so that they meet no others."""
LONGEST = 160
"""Characters of such a name."""

GRAPH_INDEX = "graph_index"
"""What the store calls the graph of each row's vertex."""

RELATION, RELATION_DEGREE = "edge.relation", "edge.relation_degree"
"""What it calls the two arrays of a graph's `Relations`, in the user's order of the edges."""

_count = itertools.count()


def _copied(name: str, parts: int) -> str:
    """The name of an array of edges in the order of a grid."""
    return f"grid.{parts}.order.{name}"


class StreamedGraph:
    """A directed graph in a store, to be passed to functions that `gnnjit.stream` made.

    `from_edges` makes one; so does the constructor, from what is in a store already. Inside a
    streamed function it stands for a `gnnjit.Graph` whose edges cannot be looked at: the function
    calls layers, and reads degrees and sizes.

    Attributes:
        store: holds everything that belongs to the graph.
        num_nodes, num_edges: N and E.
        num_graphs: of a batch; 1 of any other graph.
        graph_index: `int32[N]`, the graph of each vertex in a batch; None of any other graph.
        num_relations: of the edges; 0 where edges have none.
        relations: two `int32[E]`, the relation of each edge, and the edges of that relation into
            its destination; None where edges have no relations.
        unwanted: names of results that nobody holds any more.
        held: what stays on the device between calls, by what it is.
        layouts: numbers of blocks, and of slices of each, that functions of the graph have, the
            newest first: others try these first.
        watch: a function that is called with (done, all) while chunks are made; None for silence.
    """

    def __init__(
        self,
        store: VertexStore,
        num_nodes: int,
        num_edges: int,
        edges: Callable[[], Iterator[tuple[HostArray, HostArray]]],
        *,
        vertex: str | None = None,
        num_graphs: int = 1,
        num_relations: int | None = None,
    ) -> None:
        """A graph whose rows lie in `store`.

        Args:
            store: where the grid's chunks, and what is streamed, are put.
            num_nodes, num_edges: N and E.
            edges: called for blocks `(src, dst)` of all edges, in the order that is cut.
            vertex: the array `int32[N]` in the store that has the user's number of each row; None
                where the rows are in the user's order.
            num_graphs: of a batch; if more than 1, the store has the graph of each row's vertex, as
                `from_edges` puts it there.
            num_relations: of the edges, whose relations the store then has, as `from_edges` puts
                them there; None where edges have none.
        """
        self.store = store
        self._tenant = store.tenant
        self.num_nodes = whole("num_nodes", num_nodes, 0)
        self.num_edges = whole("num_edges", num_edges, 0)
        self.edges = edges
        self.vertex = vertex
        self.unwanted: list[str] = []
        self.held: dict[Any, Any] = {}
        self.layouts: list[tuple[int, int]] = []
        self.watch: Callable[[int, int], None] | None = None
        self._versions: dict[str, int] = {}
        self._blocks: dict[int, EdgeBlocks] = {}
        self.num_graphs = num_graphs
        self.graph_index = self.column(GRAPH_INDEX) if num_graphs > 1 else None
        self.num_relations = num_relations or 0
        self.relations: tuple[EdgeArray, EdgeArray] | None = None
        if num_relations is not None:
            number, degree = (self._handle(EdgeArray, x, x) for x in (RELATION, RELATION_DEGREE))
            self.relations = number, degree

    @classmethod
    def from_edges(
        cls,
        src: ArrayLike,
        dst: ArrayLike,
        num_nodes: int,
        *,
        store: VertexStore | None = None,
        order: Any = "auto",
        seed: int = 0,
        graph_index: ArrayLike | None = None,
        num_graphs: int | None = None,
        relation: ArrayLike | None = None,
        num_relations: int | None = None,
    ) -> StreamedGraph:
        """The graph of the edges `src[e] -> dst[e]`, its vertices ordered for locality.

        A store holds one graph: what another one has left there of its edges is dropped, and that
        one cannot be used any more.

        Args:
            src, dst: `int[E]`, no padding.
            num_nodes: N.
            store: memory of this process (the default), or a `DiskStore`.
            order: of the vertices: "metis" (needs `pymetis`), "rcm" (reverse Cuthill-McKee),
                "given", "auto" ("metis" where `pymetis` is installed, else "rcm"), or `int[N]`, the
                old number of each new vertex.
            seed: of METIS's random choices.
            graph_index: `int[N]`, of a batch: the number of each vertex's graph, as
                `gnnjit.graph.batch` gives it. One graph if left out.
            num_graphs: of a batch; the largest number plus one if left out.
            relation: `int[E]`, the relation of each edge, which layers read as `e.relation`.
            num_relations: the number of relations; the largest one plus one if left out.

        Raises:
            GraphError: endpoints, numbers of graphs, relations or sizes that do not fit.
            StoreError: `store` is none.
        """
        if not (store is None or isinstance(store, VertexStore)):
            raise StoreError(
                f"store is {shown(store)}, expected a vertex store: pass "
                "gnnjit.store.DiskStore.create(folder), or leave it out for memory of this process"
            )
        ordering = order_vertices(src, dst, num_nodes, method=order, seed=seed)
        store = HostStore() if store is None else store
        store.tenant = object()
        vertex = None if ordering.method == "given" else "vertex"
        first, last = (_ranked(ordering, x) for x in (src, dst))
        index, graphs = _graphs(graph_index, num_graphs, num_nodes)
        of_edges = relations.of_concrete(relation, num_relations, last, num_nodes)
        more = () if of_edges is None else (of_edges.number,)
        store.group.same("the graph", lambda: digest(ordering.vertex, first, last, index, *more))

        def begin() -> None:
            # First what says that the others are complete.
            for name in sorted(store.names(), key=lambda name: not name.endswith(COMPLETE)):
                if re.match(GRID, name):
                    store.drop(name)
            if vertex is not None:
                _put(store, vertex, ordering.vertex.astype(np.int32))
            if graphs > 1:
                _put(store, GRAPH_INDEX, index[ordering.vertex])
            if of_edges is not None:
                _put(store, RELATION, of_edges.number)
                _put(store, RELATION_DEGREE, of_edges.degree)

        store.once(begin)
        edges = functools.partial(_in_pieces, first, last)
        count = None if of_edges is None else of_edges.count
        return cls(
            store, num_nodes, len(first), edges, vertex=vertex, num_graphs=graphs,
            num_relations=count,
        )  # fmt: skip

    def put(self, name: str, rows: ArrayLike) -> VertexArray:
        """Write vertex data to the store, and give its handle, as `array` does.

        Args:
            name: for `array`. Vertex data, edge data and the store's own arrays have names apart.
            rows: `[N, ...]` in the user's order.

        Raises:
            GraphError: there is not one row for each vertex, or NumPy cannot read them.
            StoreError: the name or the dtype is none for a store.
        """
        rows = self._whole("put", name, rows, Rows.VERTEX)
        self._put(name, rows, Rows.VERTEX)
        return self.array(name)

    def put_edges(self, name: str, rows: ArrayLike) -> EdgeArray:
        """Write edge data to the store, and give its handle: what layers take as `edges=`.

        A function that reads it makes one copy in the order of its grid.

        Args:
            name: for `edge_array`.
            rows: `[E, ...]` in the order in which the edges were given.

        Raises:
            GraphError: there is not one row for each edge.
            StoreError: the name or the dtype is none for a store.
        """
        rows = self._whole("put_edges", name, rows, Rows.EDGE)
        self._put(name, rows, Rows.EDGE)
        return self.edge_array(name)

    def _whole(self, call: str, name: str, rows: ArrayLike, of: Rows) -> HostArray:
        _full_name(name, of)
        refuse_sparse(f"{call}({name!r}): rows", rows)
        rows, count = read_on_host(f"{call}({name!r}): rows", rows), self.num_rows(of)
        if rows.shape[:1] != (count,):
            raise GraphError(
                f"{call}({name!r}) got an array of shape {rows.shape}, expected one row for each "
                f"of the {count} {of.value}: pass [{count}, ...]"
            )
        return rows

    def check(self) -> None:
        """Raises StreamError where the store has become that of another graph, or is not that of
        all processes."""
        if self._tenant is not self.store.tenant:
            raise StreamError(
                f"another graph was made in the store of {self!r}, which has dropped its edges: "
                "give each graph a store of its own"
            )
        connected = ProcessGroup.here().processes
        if connected > self.store.group.processes:
            raise StreamError(
                f"{connected} processes are connected, and the store of {self!r} is this one's "
                "alone: make it with CollectiveStore.create or CollectiveStore.open in all of "
                "them, and they stream together"
            )

    def _put(self, name: str, rows: HostArray, of: Rows) -> None:
        self.check()
        name = _full_name(name, of)
        self._versions[name] = self._versions.get(name, 0) + 1

        def work() -> None:
            for copy in self._copies(name) if of is Rows.EDGE else ():
                self.store.drop(copy)
            self.store.add(name, len(rows), rows.shape[1:], rows.dtype, replace=True)
            for start, stop in self.pieces(rows[:1].nbytes, of):
                here = slice(start, stop) if of is Rows.EDGE else self.numbers(start, stop)
                self.store.write(name, start, rows[here])
            self.store.seal(name)

        self.store.once(work)

    def array(self, name: str) -> VertexArray:
        """Vertex data that `put` wrote under `name`, in this process or in an earlier one.

        Raises GraphError where it has another number of rows, StoreError where it is not there.
        """
        return self._users(VertexArray, name)

    def edge_array(self, name: str) -> EdgeArray:
        """Data of the edges that `put_edges` wrote under `name`, its rows in the user's order.
        Raises as `array` does."""
        return self._users(EdgeArray, name)

    def _users(self, kind: Any, name: str) -> Any:
        """The handle of an array of the user's."""
        of, full = kind.rows, _full_name(name, kind.rows)
        if full not in self.store.names():
            put = "put" if of is Rows.VERTEX else "put_edges"
            found = [x.removeprefix(USER[of]) for x in self.store.names() if x.startswith(USER[of])]
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            has = ", ".join(map(repr, found[:5])) + more if found else "nothing"
            raise StoreError(
                f"{self!r} has no array {name!r} of the {of.value}, {put} has written {has}: pass "
                f"one of these, or write it with {put}({name!r}, ...)"
            )
        return self._handle(kind, full, name)

    def column(self, name: str) -> VertexArray:
        """Vertex data that is the store's own, such as the features of a stored dataset, its rows
        in the order that is cut. Raises as `array` does."""
        return self._handle(VertexArray, name, name)

    def _handle(self, kind: Any, full: str, name: str) -> Any:
        info, count = self.store.info(full), self.num_rows(kind.rows)
        if info.rows != count:
            raise GraphError(
                f"the array {name!r} has {info.rows} rows, expected {count}, one for each of the "
                f"{kind.rows.value}"
            )
        return kind(self, full, info.shape, info.dtype, version=self._versions.get(full, 0))

    def num_rows(self, of: Rows) -> int:
        """N or E."""
        return self.num_nodes if of is Rows.VERTEX else self.num_edges

    def numbers(self, start: int, stop: int) -> HostArray:
        """The user's numbers of some rows."""
        if self.vertex is None:
            return np.arange(start, stop, dtype=np.int32)
        return self.store.read(self.vertex, start, stop)

    def pieces(self, row_bytes: int, of: Rows = Rows.VERTEX) -> Iterator[tuple[int, int]]:
        """Ranges of rows of a few MiB."""
        step, count = max(1, PIECE // max(1, row_bytes)), self.num_rows(of)
        for start in range(0, count, step):
            yield start, min(start + step, count)

    @property
    def parts(self) -> set[int]:
        """The numbers of blocks for which the edges are in chunks already."""
        return set(self._blocks)

    def keep_blocks(self, parts: set[int]) -> None:
        """Drop the chunks of all other numbers of blocks; no function may use them any more."""
        gone = [self._blocks.pop(number) for number in sorted(self.parts - parts)]
        self.layouts = [layout for layout in self.layouts if layout[0] in parts]

        def work() -> None:
            for blocks in gone:
                blocks.drop()
                for name in self.store.names():
                    if name.startswith(_copied("", blocks.num_parts)):
                        self.store.drop(name)

        if gone:
            self.store.once(work)

    def blocks(self, parts: int, memory: int = 256 << 20) -> EdgeBlocks:
        """The edges as `parts` x `parts` chunks, made when they are first asked for; `memory` as in
        `EdgeBlocks.build`."""
        if parts not in self._blocks:
            name = f"grid.{parts}"
            built = name + ".complete" in self.store.names()
            if not (built and self.store.info(name + ".complete").sealed):
                self.store.once(
                    lambda: EdgeBlocks.build(
                        self.store, name, self.edges, self.num_nodes, parts=parts, memory=memory,
                        watch=self.watch,
                    )
                )  # fmt: skip
            self._blocks[parts] = EdgeBlocks.open(self.store, name)
        return self._blocks[parts]

    def in_order_of(self, blocks: EdgeBlocks, array: EdgeArray) -> str:
        """The name of an array of edges in the order of a grid, made when it is first asked for."""
        if array.parts == blocks.num_parts:
            return array.name
        if array.parts is not None:
            raise StreamError(
                f"{array!r} was made in {array.parts} blocks, and this function streams in "
                f"{blocks.num_parts}: give both the same `parts`, or pass its numpy.asarray to "
                "put_edges"
            )
        name = _copied(array.name, blocks.num_parts)
        if name not in self.store.names() or not self.store.info(name).sealed:
            self.store.once(lambda: self._copy(array, name, blocks))
        return name

    def _copy(self, array: EdgeArray, name: str, blocks: EdgeBlocks) -> None:
        self.store.add(name, self.num_edges, array.shape[1:], array.dtype, replace=True)
        row_bytes = self.store.info(name).row_bytes + 4
        for start, stop in self.pieces(row_bytes, Rows.EDGE):
            numbers = blocks.numbers_between(start, stop)
            self.store.write(name, start, self.store.gather(array.name, numbers))
        self.store.seal(name)

    def _copies(self, name: str) -> list[str]:
        """Copies of an array of edges in the orders of grids."""
        return [
            x for x in self.store.names() if re.fullmatch(rf"{GRID}order\.{re.escape(name)}", x)
        ]

    @functools.cached_property
    def rates(self) -> Rates:
        """How fast rows are collected and moved, measured once."""
        rows = np.ones((RATE_BYTES // 256, 64), np.float32)
        some = np.random.default_rng(0).permutation(len(rows))
        return Rates.measure(
            lambda: rows[some],
            lambda: jax.block_until_ready(jax.device_put(rows)),
            bytes=rows.nbytes,
        )

    def forget(self) -> None:
        """Drop the results that nobody holds any more, in any of the processes that share them."""
        group, mine = self.store.group, [*self.unwanted]
        every = [json.loads(x) for x in group.gather("results", json.dumps(mine).encode())]
        gone = set(mine).intersection(*every)
        if gone:
            self.unwanted[:] = [name for name in self.unwanted if name not in gone]
            self.store.once(lambda: [self.store.drop(name) for name in sorted(gone)])

    def __repr__(self) -> str:
        graphs = "" if self.num_graphs == 1 else f", {self.num_graphs} graphs"
        kinds = "" if self.relations is None else f", {self.num_relations} relations"
        return f"StreamedGraph({self.num_nodes} vertices, {self.num_edges} edges{graphs}{kinds})"


def fresh_name(kind: str) -> str:
    """A name that no other array of this process has."""
    return f"{kind}.{next(_count)}"


def _full_name(name: str, of: Rows) -> str:
    """What the store calls an array that the user calls `name`."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name) or len(name) > LONGEST:
        shown = repr(name) if len(repr(name)) <= 60 else repr(name)[:57] + "..."
        raise StoreError(
            f"{shown} is no name for data of the {of.value}, expected 1 to {LONGEST} of the "
            "characters A-Z a-z 0-9 _ . -"
        )
    return USER[of] + name


def _put(store: VertexStore, name: str, rows: HostArray) -> None:
    store.add(name, len(rows), rows.shape[1:], rows.dtype, replace=True)
    store.write(name, 0, rows)
    store.seal(name)


def _graphs(index: Any, num_graphs: Any, num_nodes: int) -> tuple[HostArray, int]:
    """`int32[N]`, the graph of each vertex, and how many graphs there are."""
    if index is None:
        if num_graphs not in (None, 1):
            raise GraphError(
                f"num_graphs is {shown(num_graphs)} without a graph_index, expected both: pass the "
                "second result of gnnjit.graph.batch as graph_index"
            )
        return np.zeros(0, np.int32), 1
    index = np.asarray(as_indices("graph_index", index))
    if index.shape != (num_nodes,):
        raise GraphError(
            f"graph_index has {len(index)} entries, expected {num_nodes}: pass the graph of each "
            "vertex"
        )
    most = int(index.max(initial=-1)) + 1
    graphs = max(most, 1) if num_graphs is None else whole("num_graphs", num_graphs, 1)
    if most > graphs or index.min(initial=0) < 0:
        wrong = index.min(initial=0) if index.min(initial=0) < 0 else most - 1
        raise GraphError(
            f"graph_index holds {wrong}, expected numbers from 0 to {graphs - 1}: pass a larger "
            "num_graphs, or number the graphs from 0"
        )
    return index.astype(np.int32), graphs


def _ranked(ordering: Ordering, ends: ArrayLike) -> HostArray:
    ends = np.asarray(ends)
    return ordering.rank[ends if ends.size else ends.astype(np.int32)].astype(np.int32)


def _in_pieces(src: HostArray, dst: HostArray) -> Iterator[tuple[HostArray, HostArray]]:
    for start in range(0, len(src), PIECE):
        yield src[start : start + PIECE], dst[start : start + PIECE]
