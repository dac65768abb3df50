"""A function of a streamed graph: traced, cut into sweeps, planned for a memory budget, run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gnnjit.budget import human
from gnnjit.errors import GraphError, PlanError, StreamError
from gnnjit.frontend import whole
from gnnjit.frontend.whole import Array, Constant, Rows
from gnnjit.grid.blocks import EdgeBlocks
from gnnjit.grid.memory_plan import MemoryPlan, plan_memory, streaming
from gnnjit.grid.pieces import empty
from gnnjit.grid.run import Data, Run, Script, Traffic, room
from gnnjit.grid.script import Pieces, Step, Tensor, operations, serpentine, steps
from gnnjit.grid.streamed import StreamedGraph, VertexArray, fresh_name, stand_in
from gnnjit.grid.sweeps import plan_sweeps

MOST_PARTS = 4096


@dataclasses.dataclass(frozen=True)
class Options:
    """How a function is streamed. Each can be switched off, to see what it is worth.

    Attributes:
        budget: bytes of device memory.
        parts: P; None for the smallest that fits.
        selective: read only the used rows of a block where that is faster (NeuGraph, section 3.2).
        overlapped: move data beside the computation.
        cached: keep on the device what the memory plan says; else nothing stays between operations.
    """

    budget: int
    parts: int | None = None
    selective: bool = True
    overlapped: bool = True
    cached: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A function for arguments of some shapes.

    Attributes:
        pieces: what is compiled.
        degrees: the two inputs that are degrees, if they are read.
        out_tree, out_shapes: of the result.
    """

    pieces: Pieces
    out_tree: Any

    @property
    def function(self) -> whole.Function:
        return self.pieces.streamed.function


def _is_leaf(x: Any) -> bool:
    return isinstance(x, (StreamedGraph, VertexArray))


class Arguments:
    """The arguments of a call, flat: the graph's degrees, arrays of vertices, and what is shared."""

    def __init__(self, args: Any) -> None:
        self.leaves, self.tree = jax.tree.flatten(args, is_leaf=_is_leaf)
        graphs = {id(x): x for x in self.leaves if isinstance(x, StreamedGraph)}
        if len(graphs) != 1:
            raise StreamError(
                f"a streamed function got {len(graphs)} streamed graphs among its arguments, "
                "expected one: make it with StreamedGraph.from_edges"
            )
        (self.graph,) = graphs.values()
        for i, x in enumerate(self.leaves):
            if isinstance(x, VertexArray):
                if x.graph is not self.graph:
                    raise StreamError(
                        f"{x!r} belongs to another graph than the one that came with it: put the "
                        "rows into this graph"
                    )
            elif not isinstance(x, StreamedGraph):
                self.leaves[i] = _as_array(x)

    @property
    def key(self) -> Any:
        """Equal for arguments that the same compiled pieces take."""
        graph = self.graph
        kinds = tuple(
            "graph"
            if isinstance(x, StreamedGraph)
            else (isinstance(x, VertexArray), tuple(x.shape), np.dtype(x.dtype).name
                  if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else str(x.dtype))
            for x in self.leaves
        )  # fmt: skip
        return self.tree, kinds, graph.num_nodes, graph.num_edges

    def shapes(self, num_nodes: int) -> list[Any]:
        """Of the flat inputs: the graph is two arrays of degrees."""
        found: list[Any] = []
        for x in self.leaves:
            if isinstance(x, StreamedGraph):
                found += [jax.ShapeDtypeStruct((num_nodes,), np.int32)] * 2
            elif isinstance(x, VertexArray):
                found.append(jax.ShapeDtypeStruct((num_nodes, *x.shape[1:]), x.dtype))
            else:
                found.append(jax.ShapeDtypeStruct(x.shape, x.dtype))
        return found

    def unflatten(self, values: Sequence[Any], num_nodes: int, num_edges: int) -> Any:
        """The arguments as the function sees them."""
        rest = iter(values)
        leaves = [
            stand_in(num_nodes, num_edges, next(rest), next(rest))
            if isinstance(x, StreamedGraph)
            else next(rest)
            for x in self.leaves
        ]
        return jax.tree.unflatten(self.tree, leaves)


def _as_array(x: Any) -> Any:
    if isinstance(x, (jax.Array, np.ndarray, np.generic)):
        return x
    if isinstance(x, (bool, int, float, complex)):
        return jax.numpy.asarray(x)
    raise StreamError(
        f"an argument of a streamed function is a {type(x).__name__}, expected arrays, numbers, a "
        "StreamedGraph and its arrays: bind anything else with functools.partial"
    )


class StreamedFunction:
    """`fn` over a streamed graph; see `gnnjit.stream`."""

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        expand: whole.Expand,
        planned: Callable[[int, int], contextlib.AbstractContextManager[None]],
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.options = fn, options
        self._expand, self._planned = expand, planned
        self._traced: dict[Any, Traced] = {}
        self._ready: dict[Any, Ready] = {}
        self.traffic: Traffic | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result; arrays of vertices as `VertexArray`s."""
        arguments = Arguments((args, kwargs))
        graph = arguments.graph
        graph.forget()
        ready = self.prepare(arguments)
        return ready.run(arguments, self)

    def prepare(self, arguments: Arguments) -> Ready:
        """Everything that is done once for a graph and shapes of arguments."""
        key = (arguments.key, id(arguments.graph))
        if key not in self._ready:
            traced = self.trace(arguments)
            self._ready[key] = Ready(traced, arguments.graph, self.options)
        return self._ready[key]

    def trace(self, arguments: Arguments) -> Traced:
        if arguments.key not in self._traced:
            n, e = arguments.graph.num_nodes, arguments.graph.num_edges
            sizes = whole.Sizes((n, n + 1), (e, e + 2))

            def at(k: int) -> Any:
                def fn(*values: Any) -> Any:
                    args, kwargs = arguments.unflatten(values, sizes.vertices[k], sizes.edges[k])
                    return self.fn(*args, **kwargs)

                return fn, arguments.shapes(sizes.vertices[k])

            with self._planned(n, e):
                function, shape = whole.trace(at, sizes, self._expand)
            pieces = Pieces(plan_sweeps(function))
            self._traced[arguments.key] = Traced(pieces, jax.tree.structure(shape))
        return self._traced[arguments.key]


class Ready:
    """A traced function for one graph: its grid, its script, where its arrays are."""

    def __init__(self, traced: Traced, graph: StreamedGraph, options: Options) -> None:
        self.traced, self.graph, self.options = traced, graph, options
        self.blocks, self.script = self._fit()
        self.temporary = {
            x: fresh_name("temporary")
            for sweep in traced.pieces.sweeps
            for x in sweep.stores
        }
        self.made: set[str] = set()

    def _fit(self) -> tuple[EdgeBlocks, Script]:
        """The smallest P that fits."""
        if self.options.parts is not None:
            blocks = self.graph.blocks(self.options.parts)
            return blocks, self._script(blocks)
        parts, least = 1, math.inf
        while parts <= min(MOST_PARTS, max(1, self.graph.num_nodes)):
            need = need_of(self.traced.pieces, self.graph, parts)
            if need <= self.options.budget:
                blocks = self.graph.blocks(parts)
                try:
                    return blocks, self._script(blocks)
                except PlanError:  # chunks are larger than they are on average
                    need = math.inf
            least = min(least, need)
            parts = max(parts + 1, min(math.ceil(parts * need / self.options.budget), 2 * parts))
        raise StreamError(
            f"no grid of up to {MOST_PARTS} x {MOST_PARTS} chunks fits the memory budget of "
            f"{human(self.options.budget)}; the least that is needed is about {human(least)}"
        )

    def _script(self, blocks: EdgeBlocks) -> Script:
        pieces = self.traced.pieces
        script = tuple(steps(pieces, blocks.num_parts, serpentine(blocks.counts, pieces.sweeps)))
        rows = int(np.diff(blocks.bounds).max(initial=1))
        names: dict[Tensor, str] = {}
        work = Workspace(pieces, rows, lambda s: int(blocks.counts[_cell(pieces, s)]))
        ops = operations(script, names, work.of(script))
        sizes = {name: rows * t.array.row_bytes for t, name in names.items()}
        results = {x for x in pieces.streamed.function.outputs if isinstance(x, Array)}
        wanted = [name for t, name in names.items() if t.array in results]
        made = {name for op in ops for name in op.outputs}
        wanted = [name for name in wanted if name in made]
        if self.options.cached:
            plan = plan_memory(ops, sizes, self.options.budget, wanted, keep_order=True)
        else:
            plan = streaming(ops, sizes, self.options.budget, wanted)
        selected = self._selected(script, plan, names, blocks) if self.options.selective else ()
        return Script(script, plan, names, frozenset(selected))

    def _selected(
        self,
        script: Sequence[Step],
        plan: MemoryPlan,
        names: Mapping[Tensor, str],
        blocks: EdgeBlocks,
    ) -> Iterator[tuple[int, int, int]]:
        """Chunks for which it is faster to read only the used rows of the other block: few are
        used, and the plan would read all of them for this chunk alone."""
        limit = self.graph.rates.threshold
        for step, planned in zip(script, plan.steps, strict=True):
            if step.kind != "chunk":
                continue
            cell = _cell(self.traced.pieces, step)
            side = self.traced.pieces.sweeps[step.sweep].side
            assert side is not None
            size = np.diff(blocks.bounds)[step.other]
            others = {names[t] for t in step.partial}
            alone = others <= {*planned.loads} - {*planned.cached}
            if alone and blocks.used_counts(side)[cell] < limit * size:
                yield step.sweep, step.block, step.other

    def run(self, arguments: Arguments, owner: StreamedFunction) -> Any:
        function = self.traced.function
        names: dict[Array, str] = dict(self.temporary)
        shared: dict[Array, Any] = dict(function.constants)
        inputs = iter(function.inputs)
        for leaf in arguments.leaves:
            if isinstance(leaf, StreamedGraph):
                names[next(inputs)] = self.blocks.in_degree
                names[next(inputs)] = self.blocks.out_degree
            elif isinstance(leaf, VertexArray):
                names[next(inputs)] = leaf.name
            else:
                shared[next(inputs)] = leaf
        kept = {x: fresh_name("result") for x in function.outputs
                if isinstance(x, Array) and x in self.temporary}  # fmt: skip
        names.update(kept)
        self._make_room(names, kept)
        data = Data(self.graph.store, self.blocks, names, self.graph.vertex)
        run = Run(self.traced.pieces, self.script, data, shared, self.options.overlapped)
        owner.last = run
        owner.traffic = run()
        return jax.tree.unflatten(
            self.traced.out_tree, [self._result(x, names, kept, shared) for x in function.outputs]
        )

    def _make_room(self, names: Mapping[Array, str], kept: Mapping[Array, str]) -> None:
        for x in self.temporary:
            name = names[x]
            if name in self.made:
                continue
            rows = self.graph.num_nodes if x.rows is Rows.VERTEX else self.graph.num_edges
            self.graph.store.add(name, rows, x.shape, x.dtype)
            if x not in kept:
                self.made.add(name)

    def _result(
        self, x: Any, names: Mapping[Array, str], kept: Mapping[Array, str], shared: Any
    ) -> Any:
        if isinstance(x, Constant):
            return jax.numpy.asarray(x.value, x.dtype)
        if x.rows is None:
            return shared[x]
        if x.rows is Rows.EDGE:
            raise StreamError(
                f"a streamed function returns {x}, expected arrays of vertices and shared ones"
            )
        return VertexArray(self.graph, names[x], x.shape, x.dtype, owned=x in kept)


def _cell(pieces: Pieces, step: Step) -> tuple[int, int]:
    by_column = pieces.sweeps[step.sweep].side != "src"
    return (step.other, step.block) if by_column else (step.block, step.other)


class Workspace:
    """Bytes on the device beside the tensors of a step: temporaries, results that are not stored,
    partial results, and what is loaded ahead."""

    def __init__(self, pieces: Pieces, rows: int, edges: Callable[[Step], int]) -> None:
        self.pieces, self.rows, self.edges = pieces, rows, edges

    def of(self, script: Sequence[Step]) -> Callable[[Step], int]:
        following = {id(a): b for a, b in zip(script, script[1:], strict=False)}

        def workspace(step: Step) -> int:
            after = following.get(id(step))
            return self.alone(step) + (0 if after is None else self.ahead(step, after))

        return workspace

    def alone(self, step: Step) -> int:
        held = self.held(step.sweep, step.stage, step.kind)
        if step.kind == "chunk":
            slots = room(self.edges(step))
            return held + self.chunk(step.sweep, step.stage, slots) + self.edge_bytes(step)
        return held + self.block(step.sweep, step.stage)

    def ahead(self, step: Step, after: Step) -> int:
        """Of the next step's loads, which may be there already."""
        new = set(after.inputs) - set(step.inputs)
        loads = sum(self.rows * t.array.row_bytes for t in new)
        return loads + (self.edge_bytes(after) if after.kind == "chunk" else 0)

    def edge_bytes(self, step: Step) -> int:
        piece = self.pieces.chunks[step.sweep][step.stage]
        assert piece is not None
        each = 4 + 4 * piece.numbered + sum(x.row_bytes for x in piece.edge_loads)
        return room(self.edges(step)) * each + 4 * self.rows

    def held(self, sweep: int, stage: int, kind: str) -> int:
        """Results of earlier stages that are not tensors, and partial results."""
        stores = set(self.pieces.sweeps[sweep].stores)
        last = stage if kind == "block" else stage + 1
        total = 0
        for piece in self.pieces.blocks[sweep][:last]:
            total += sum(self.rows * x.row_bytes for x in piece.outputs if x not in stores)
        return total + self.partial(sweep, stage - (kind == "block"))

    def partial(self, sweep: int, stage: int) -> int:
        piece = self.pieces.chunks[sweep][stage] if stage >= 0 else None
        if piece is None:
            return 0
        return sum(_bytes(x) for g in piece.gathers for x in empty_shapes(g, self.rows))

    def block(self, sweep: int, stage: int) -> int:
        return block_scratch(self.pieces, sweep, stage, self.rows)

    def chunk(self, sweep: int, stage: int, slots: int) -> int:
        return chunk_scratch(self.pieces, sweep, stage, self.rows, slots)


def _bytes(x: jax.ShapeDtypeStruct) -> int:
    return math.prod(x.shape) * x.dtype.itemsize


def need_of(pieces: Pieces, graph: StreamedGraph, parts: int) -> int:
    """Bytes that the largest operation needs with `parts` blocks, as far as is known without the
    chunks: of edges as many as if they were spread evenly, twice."""
    rows = -(-graph.num_nodes // parts)
    edges = min(graph.num_edges, 2 * graph.num_edges // parts**2 + 1)
    work = Workspace(pieces, rows, lambda s: edges)
    most = 0
    script = list(steps(pieces, min(parts, 3), lambda s, b: range(min(parts, 2))))
    workspace = work.of(script)
    for step in script:
        tensors = sum(rows * t.array.row_bytes for t in {*step.inputs, *step.outputs})
        most = max(most, tensors + workspace(step))
    return most


def shapes_of(arrays: Sequence[Array], rows: int | None) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(x.shape if rows is None else (rows, *x.shape), x.dtype)
        for x in arrays
    ]


def empty_shapes(gather: Any, rows: int) -> Any:
    return jax.eval_shape(lambda: [jax.numpy.asarray(x) for x in empty(gather, rows)])


def block_scratch(pieces: Pieces, sweep: int, stage: int, rows: int) -> int:
    piece = pieces.blocks[sweep][stage]
    index = jax.ShapeDtypeStruct((rows,), np.int32)
    count = jax.ShapeDtypeStruct((), np.int32)
    partial = [empty_shapes(g, rows) for g in piece.gathers]
    args = (index, count, shapes_of(piece.rows, rows), shapes_of(piece.shared, None), partial)
    found = piece.run.scratch((*args, None))
    return found + 4 * rows


def chunk_scratch(pieces: Pieces, sweep: int, stage: int, rows: int, slots: int) -> int:
    piece = pieces.chunks[sweep][stage]
    assert piece is not None
    number = jax.ShapeDtypeStruct((slots,), np.int32)
    return piece.run.scratch(
        (
            jax.ShapeDtypeStruct((rows + 1,), np.int32),
            number,
            number if piece.numbered else None,
            shapes_of(piece.own, rows),
            shapes_of(piece.other, rows),
            shapes_of(piece.edge_loads, slots),
            shapes_of(piece.shared, None),
            [empty_shapes(g, rows) for g in piece.gathers],
        )
    )
