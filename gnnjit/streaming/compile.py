"""Trace a function of a streamed graph, cut it into sweeps, fit it to a budget, and run it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gnnjit.distributed.process_group import digest, hashed
from gnnjit.errors import StreamError
from gnnjit.frontend import trace_arrays
from gnnjit.graph import TypedGraph
from gnnjit.graph.members import Members
from gnnjit.graph.parted import PartedTypedGraph
from gnnjit.graph.relations import Relations
from gnnjit.graph.validate import is_traced
from gnnjit.ir.array_program import Array, ArrayProgram, Constant, Rows
from gnnjit.streaming.explain import GridExplanation, explain
from gnnjit.streaming.grid.arrays import EdgeArray, RowArray, VertexArray
from gnnjit.streaming.grid.graph_proxy import graph_proxy, no_edges_in
from gnnjit.streaming.grid.streamed_graph import StreamedGraph, fresh_name
from gnnjit.streaming.memory.layout import Layout, Options, find_layout, reordered
from gnnjit.streaming.program.steps import Executables
from gnnjit.streaming.program.sweeps import described, plan_sweeps
from gnnjit.streaming.runtime.executor import Executor
from gnnjit.streaming.runtime.traffic import Traffic, refined_order
from gnnjit.streaming.runtime.transfers import Data
from gnnjit.system import contexts


@dataclasses.dataclass(frozen=True, eq=False)
class TracedFunction:
    """A function for arguments of some shapes.

    Attributes:
        executables: what is compiled.
        out_tree: of the result.
    """

    executables: Executables
    out_tree: Any

    @property
    def function(self) -> ArrayProgram:
        return self.executables.streamed.function


def _is_leaf(x: Any) -> bool:
    return isinstance(x, (StreamedGraph, RowArray, TypedGraph, PartedTypedGraph))


class StreamedArguments:
    """The arguments of a call, flat: the graph, arrays of its vertices and edges, and what is
    shared."""

    def __init__(self, args: Any) -> None:
        self.leaves, self.tree = jax.tree.flatten(args, is_leaf=_is_leaf)
        typed = [x for x in self.leaves if isinstance(x, (TypedGraph, PartedTypedGraph))]
        if typed:
            raise StreamError(
                f"a streamed function got a {type(typed[0]).__name__}, expected a StreamedGraph: "
                "call layers on gnnjit.streaming.StreamedTypedGraph, under jax.jit, which reads "
                "edges from a store; or deal the types out to several devices with gnnjit.shard"
            )
        graphs = {id(x): x for x in self.leaves if isinstance(x, StreamedGraph)}
        if len(graphs) != 1:
            raise StreamError(
                f"a streamed function got {len(graphs)} streamed graphs among its arguments, "
                "expected one: make it with StreamedGraph.from_edges"
            )
        if is_traced(self.leaves):
            raise StreamError(
                "a streamed function was called while JAX traces (inside jax.jit, jax.grad, "
                "jax.vmap or jax.export), expected arrays: it moves blocks of data while it runs. "
                "Call it directly, and put jax.grad and the like inside the function that "
                "gnnjit.stream gets"
            )
        (self.graph,) = graphs.values()
        self.graph.check()
        self.leaves = [self._checked(x) for x in self.leaves]

    def _checked(self, x: Any) -> Any:
        """An argument as it is streamed."""
        if isinstance(x, RowArray) and x.graph is not self.graph:
            raise StreamError(
                f"{x!r} belongs to another graph than the one that came with it: put the rows into "
                "this graph"
            )
        return x if _is_leaf(x) else _as_array(x)

    @property
    def key(self) -> Any:
        """Equal for arguments that the same executables take."""
        graph = self.graph
        kinds = tuple(
            "graph"
            if isinstance(x, StreamedGraph)
            else (getattr(x, "rows", None), tuple(x.shape), np.dtype(x.dtype).name
                  if not jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else str(x.dtype))
            for x in self.leaves
        )  # fmt: skip
        graphs = graph.num_graphs, graph.graph_index is None
        graphs += graph.num_relations, graph.relations is None
        return self.tree, kinds, graph.num_nodes, graph.num_edges, graphs

    def shapes(self, num_nodes: int, num_edges: int) -> list[Any]:
        """The shapes of the flat inputs: the graph is two arrays of degrees, in a batch also the
        graph of each vertex, and where edges have relations two arrays of these."""
        found: list[Any] = []
        count = {Rows.VERTEX: num_nodes, Rows.EDGE: num_edges}
        for x in self.leaves:
            if isinstance(x, StreamedGraph):
                count_of = 2 if x.graph_index is None else 3
                found += [jax.ShapeDtypeStruct((num_nodes,), np.int32)] * count_of
                found += [jax.ShapeDtypeStruct((num_edges,), np.int32)] * len(x.relations or ())
            elif isinstance(x, RowArray):
                found.append(jax.ShapeDtypeStruct((count[x.rows], *x.shape[1:]), x.dtype))
            else:
                found.append(jax.ShapeDtypeStruct(x.shape, x.dtype))
        return found

    def unflatten(self, values: Sequence[Any], num_nodes: int, num_edges: int) -> Any:
        """The arguments as the function sees them."""
        rest = iter(values)
        leaves = [
            graph_proxy(
                num_nodes,
                num_edges,
                next(rest),
                next(rest),
                _members(x, rest),
                _relations(x, rest),
            )
            if isinstance(x, StreamedGraph)
            else next(rest)
            for x in self.leaves
        ]
        return jax.tree.unflatten(self.tree, leaves)


def _members(graph: StreamedGraph, values: Iterator[Any]) -> Members | None:
    """The graph of each vertex, the next of `values` where there are several."""
    if graph.graph_index is None:
        return None
    return Members(next(values), num_graphs=graph.num_graphs, rising=False)


def _relations(graph: StreamedGraph, values: Iterator[Any]) -> Relations | None:
    """The relations of the edges, the next two of `values`, where they have any."""
    if graph.relations is None:
        return None
    return Relations(next(values), next(values), graph.num_relations)


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
    """A function over a streamed graph, as `gnnjit.stream` gives it.

    Attributes:
        traffic: what the last run moved between store, memory and device; None before one.
        watch: a function that is called with (operations done, all) during a run; None for silence.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options,
        expand: trace_arrays.Expand,
        planned: Callable[[int, int], contextlib.AbstractContextManager[None]],
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.options = fn, options
        self._expand, self._planned = expand, planned
        self._traced: dict[Any, TracedFunction] = {}
        self._ready: dict[Any, PreparedFunction] = {}
        self.traffic: Traffic | None = None
        self.watch: Callable[[int, int], None] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it. Results with a row for each vertex are `VertexArray`s, those with one for each
        edge `EdgeArray`s, and all others JAX arrays. Raises as `gnnjit.stream` says."""
        arguments = StreamedArguments((args, kwargs))
        return self._prepared(arguments).run(arguments, self)

    def prepare(self, *args: Any, **kwargs: Any) -> Layout:
        """Do all that comes before this call's first run: choose a layout that fits the budget,
        build the grid, compile. A second call does it anew.

        Where the budget is that of a process, prepare all functions that run in it before any of
        them runs, and then prepare them again: the memory that they take themselves counts too.
        """
        arguments = StreamedArguments((args, kwargs))
        ready = self._prepared(arguments, again=True)
        return ready.layout

    def explain(self, *args: Any, **kwargs: Any) -> GridExplanation:
        """The grid, the sweeps, the memory plan, and the times of the last run with such arguments,
        if there was one: as text, and as plots by its `plot`."""
        ready = self._prepared(StreamedArguments((args, kwargs)))
        return explain(ready.layout, ready.traced.executables, ready.traffic)

    def _prepared(self, arguments: StreamedArguments, again: bool = False) -> PreparedFunction:
        key = (arguments.key, id(arguments.graph), contexts.values())
        if key not in self._ready:
            self._ready[key] = PreparedFunction(
                self.trace(arguments), arguments.graph, self.options
            )
        elif again:
            self._ready[key].plan_again()
        return self._ready[key]

    def trace(self, arguments: StreamedArguments) -> TracedFunction:
        """The function as a program of sweeps, kept for arguments of the same shapes."""
        key = (arguments.key, contexts.values())
        if key not in self._traced:
            n, e = arguments.graph.num_nodes, arguments.graph.num_edges
            sizes = trace_arrays.TracedSizes((n, n + 1), (e, e + 2))

            def at(k: int) -> Any:
                def fn(*values: Any) -> Any:
                    args, kwargs = arguments.unflatten(values, sizes.vertices[k], sizes.edges[k])
                    return no_edges_in(self.fn(*args, **kwargs))

                return fn, arguments.shapes(sizes.vertices[k], sizes.edges[k])

            with self._planned(n, e):
                function, shape = trace_arrays.trace(at, sizes, self._expand)
            executables = Executables(plan_sweeps(function))
            self._traced[key] = TracedFunction(executables, jax.tree.structure(shape))
        return self._traced[key]


def _shown(options: Options) -> str:
    """Those that all processes must have alike: each may have a budget of its own."""
    return str((options.parts, options.slices, options.process, options.refined))


def _state(
    names: Mapping[Array, str], versions: Mapping[Array, int], shared: Mapping[Array, Any]
) -> str:
    """Equal where a function is called with the same arguments, which go to the same arrays."""
    keys = jax.dtypes.prng_key
    values = [
        jax.random.key_data(x) if jax.numpy.issubdtype(x.dtype, keys) else x
        for x in shared.values()
    ]
    return hashed(*names.values(), str([*versions.values()]), digest(*values))


class PreparedFunction:
    """A traced function for one graph: its layout, and where its arrays are.

    layout: `refined` tells whether its order is that of measured times.
    traffic: of the last run, if there was one with this layout.
    temporary: the arrays in the store for what sweeps leave each other.
    """

    def __init__(self, traced: TracedFunction, graph: StreamedGraph, options: Options) -> None:
        self.traced, self.graph, self.options = traced, graph, options
        graph.store.group.same(
            "the streamed function",
            lambda: hashed(described(traced.executables.streamed), _shown(options)),
        )
        self.layout = find_layout(traced.executables, graph, options)
        self.refined = False
        self.traffic: Traffic | None = None
        self.temporary = {
            x: fresh_name("temporary") for sweep in traced.executables.sweeps for x in sweep.stores
        }
        self.made: set[str] = set()

    def plan_again(self) -> None:
        """With the memory that there is now."""
        self.refined, self.traffic = False, None
        self.layout = find_layout(self.traced.executables, self.graph, self.options)

    def run(self, arguments: StreamedArguments, owner: StreamedFunction) -> Any:
        self.graph.forget()
        function = self.traced.function
        names: dict[Array, str] = dict(self.temporary)
        shared: dict[Array, Any] = dict(function.constants)
        versions: dict[Array, int] = {}
        inputs = iter(function.inputs)
        for leaf in arguments.leaves:
            if isinstance(leaf, StreamedGraph):
                names[next(inputs)] = self.layout.blocks.in_degree
                names[next(inputs)] = self.layout.blocks.out_degree
                if leaf.graph_index is not None:
                    names[next(inputs)] = leaf.graph_index.name
                for array in leaf.relations or ():
                    names[next(inputs)] = self._name(array)
            elif isinstance(leaf, RowArray):
                array = next(inputs)
                names[array], versions[array] = self._name(leaf), leaf.version
            else:
                shared[next(inputs)] = leaf
        kept = {x: fresh_name("result") for x in function.outputs
                if isinstance(x, Array) and x in self.temporary}  # fmt: skip
        names.update(kept)
        self.graph.store.group.same(
            "what a streamed function is called with", lambda: _state(names, versions, shared)
        )
        self._make_room(names, kept)
        data = Data(
            self.graph.store,
            self.layout.blocks,
            names,
            versions,
            self.graph.vertex,
            self.graph.held,
        )
        run = Executor(self.traced.executables, self.layout, data, shared, self.options.overlapped)
        owner.traffic = self.traffic = run(owner.watch)
        if self.options.refined and not self.refined:
            self.refined = True
            order = refined_order(self.layout, self.traffic)
            self.layout = reordered(
                self.layout, self.traced.executables, self.graph, self.options, order
            )
        return jax.tree.unflatten(
            self.traced.out_tree, [self._result(x, names, kept, shared) for x in function.outputs]
        )

    def _name(self, array: RowArray) -> str:
        """Where an argument's rows are, in the order of the grid."""
        if isinstance(array, EdgeArray):
            return self.graph.in_order_of(self.layout.blocks, array)
        return array.name

    def _make_room(self, names: Mapping[Array, str], kept: Mapping[Array, str]) -> None:
        missing = [x for x in self.temporary if names[x] not in self.made]

        def work() -> None:
            for x in missing:
                assert x.rows is not None
                rows = self.graph.num_rows(x.rows)
                self.graph.store.add(names[x], rows, x.shape, x.dtype, replace=True)

        if missing:
            self.graph.store.once(work)
        self.made.update(names[x] for x in missing if x not in kept)

    def _result(
        self, x: Any, names: Mapping[Array, str], kept: Mapping[Array, str], shared: Any
    ) -> Any:
        if isinstance(x, Constant):
            return jax.numpy.asarray(x.value, x.dtype)
        if x.rows is None:
            return shared[x]
        args, owned = (self.graph, names[x], x.shape, x.dtype), x in kept
        if x.rows is Rows.VERTEX:
            return VertexArray(*args, owned=owned)
        return EdgeArray(*args, owned=owned, parts=self.layout.blocks.num_parts)
