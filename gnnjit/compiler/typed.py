"""A layer's call on a typed graph: traced once for each vertex type, run relation by relation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit import _compat
from gnnjit.compiler.call import (
    Definition,
    TracedCall,
    check_mesh,
    is_reference,
    owner_missing,
)
from gnnjit.compiler.joined import joined
from gnnjit.compiler.merged import graph_of, merge, operands_of
from gnnjit.errors import LayerError
from gnnjit.frontend.arguments import checked
from gnnjit.frontend.by_hand import muted
from gnnjit.frontend.state import active_linen, unchanged
from gnnjit.frontend.trace_layer import Arguments, TracedLayer, refuse_batched_constants
from gnnjit.frontend.trace_typed import TracedType, TypedArguments, trace_type
from gnnjit.frontend.typed_capture import TypedProgram, Union
from gnnjit.frontend.typed_parts import Part, split
from gnnjit.graph import Graph, TypedGraph
from gnnjit.graph.parted import PartedTypedGraph
from gnnjit.graph.schema import Relation, shown_key
from gnnjit.ir.evaluate import literal_array
from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.program import Atom, Index, Literal, Program, Value
from gnnjit.ir.space import Space
from gnnjit.lower.run_program import run_program
from gnnjit.sharding.sharded_graph import AnyGraph, ShardedGraph
from gnnjit.sharding.sharded_typed_graph import ShardedTypedGraph
from gnnjit.system.memory_budget import default_budget

AnyTyped = TypedGraph | ShardedTypedGraph | PartedTypedGraph


def is_typed(args: Sequence[Any]) -> bool:
    """Whether a layer is called on a typed graph."""
    return any(isinstance(a, AnyTyped) for a in args[:2])


@dataclasses.dataclass(frozen=True)
class _PartCall(TracedCall):
    """The call of one part, on the graph of its relation."""

    def by_hand(self) -> None:
        """Nothing: no function of the user's is this part alone."""
        return None


def call_typed(
    definition: Definition, args: Any, edges: Any, keywords: dict[str, Any], of_graphs: Any
) -> dict[str, Any]:
    """The results of the layer for each vertex type of the graph."""
    where = f"{definition.where}: {definition.name}"
    owner, graph, x, params = _taken_apart(definition, args)
    _refuse(definition, where, of_graphs)
    if isinstance(graph, ShardedTypedGraph):
        check_mesh(definition)
    graph.check_nodes(x, f"{where}: x")
    data = graph.check_edges(edges, f"{where}: edges")
    x = {t: checked(x[t], f"x[{t!r}]", where) for t in graph.types}
    data = {k: checked(d, f"edges[{shown_key(k)}]", where) for k, d in data.items()}
    static = {k: keywords[k] for k in definition.statics if k in keywords}
    shared = {k: v for k, v in keywords.items() if k not in static}
    arguments = TypedArguments(x, data, params, shared)
    fn = functools.partial(definition.fn, *owner, **static)
    call = _Call(definition, fn, graph, arguments)
    own = owner[0] if owner else None
    if _is_initialising(active_linen(own)):
        raise LayerError(
            f"{where}: a linen module is initialised on a gnnjit.TypedGraph, expected parameters "
            "that exist: make them in setup(), or use nnx"
        )
    traced = {}
    with unchanged(own, where):
        for node_type in graph.types:
            found = traced[node_type] = call.trace(node_type)
            if isinstance(graph, PartedTypedGraph):
                refuse_in_parts(found.typed, where)
                continue
            for key in graph.into(node_type):
                refuse_batched_constants(found.typed, graph[key], where)
    _refuse_unread(traced.values(), data, where)

    def run() -> dict[str, list[Any]]:
        return {node_type: call.run(node_type, found) for node_type, found in traced.items()}

    if isinstance(graph, TypedGraph) and not is_reference():
        operands = [a for found in traced.values() for a in found.operands]
        results = joined(run, [*jax.tree.leaves(graph), *operands], _work(graph, traced))
    else:
        results = run()
    return _alike(results, traced, graph.lengths)


def _work(graph: TypedGraph, traced: Mapping[str, TracedType]) -> int:
    """Multiplications of all parameters with the vertices of the largest type."""
    sizes = {
        id(x): math.prod(v.shape)
        for found in traced.values()
        for v, x in zip(found.typed.program.inputs, found.operands, strict=True)
        if v.space is Space.SHARED
    }
    return max(graph.lengths.values(), default=0) * sum(sizes.values())


def _alike(
    results: dict[str, list[Any]], traced: Mapping[str, TracedType], counts: Mapping[str, int]
) -> dict[str, Any]:
    """The results as trees. What is shared in one type and has a value for each vertex in another,
    as the sum over the relations of a type that has none, has one for each vertex in both."""
    rows: dict[tuple[Any, int], Any] = {}
    for node_type, found in traced.items():
        for i, x in enumerate(found.typed.outputs):
            if _space(x) is Space.DST:
                rows.setdefault((found.out_tree, i), results[node_type][i])
    out = {}
    for node_type, found in traced.items():
        leaves = list(results[node_type])
        for i, x in enumerate(found.typed.outputs):
            like = rows.get((found.out_tree, i))
            if like is not None and _space(x) is Space.SHARED:
                leaf = jnp.asarray(leaves[i])
                shape = leaf.shape or like.shape[1:]
                dtype = jnp.result_type(leaf, like) if x.shape == () else leaf.dtype
                leaves[i] = jnp.broadcast_to(leaf, (counts[node_type], *shape)).astype(dtype)
        out[node_type] = jax.tree.unflatten(found.out_tree, leaves)
    return out


def _space(x: Atom | Union) -> Space | None:
    return None if isinstance(x, Union) else x.space


def _is_initialising(owner: Any) -> bool:
    check = getattr(owner, "is_initializing", None)
    return callable(check) and bool(check())


def _taken_apart(definition: Definition, args: Any) -> tuple[Any, AnyTyped, Any, Any]:
    """The owner of a method (or nothing), the graph, the features, the parameters."""
    at = next(i for i, a in enumerate(args) if isinstance(a, AnyTyped))
    if len(args) == at + 1:
        raise LayerError(
            f"{definition.where}: {definition.name} is called as layer(graph, x, *params), with "
            "features of each vertex type as x; got a TypedGraph alone"
        )
    if at == 0 and definition.is_method:
        raise LayerError(owner_missing(definition))
    return args[:at], args[at], args[at + 1], args[at + 2 :]


def _refuse(definition: Definition, where: str, of_graphs: Any) -> None:
    if of_graphs is not None:
        raise LayerError(
            f"{where}: globals= on a gnnjit.TypedGraph, expected none: batched typed graphs have "
            "no values of graphs yet; give each vertex its graph's row as a feature, as in "
            "globals[index['paper']]"
        )
    if definition.budget is not None or default_budget() is not None:
        raise LayerError(
            f"{where}: a memory budget for a layer on a gnnjit.TypedGraph, expected none: its "
            "relations are planned one by one. Leave memory_budget= out"
        )


def refuse_in_parts(typed: TypedProgram, where: str) -> None:
    """Error where a result of some vertices needs more than the edges into these."""
    numbered = next((e for e in typed.program.equations if isinstance(e.op, Index)), None)
    if numbered is not None:
        at = f" ({numbered.location})" if numbered.location is not None else ""
        raise LayerError(
            f"{where}: the layer needs the numbers of vertices or edges{at}, as random draws for "
            "each do, and a typed graph in parts does not have them: leave it out, or use a "
            "TypedGraph"
        )
    if any(_space(x) not in (Space.DST, Space.SHARED) for x in typed.outputs):
        raise LayerError(
            f"{where}: a value of edges is returned on a typed graph in parts, expected values of "
            "vertices: reduce it, or use a TypedGraph"
        )


def _some(x: Any, rows: Any) -> Any:
    """Some rows of an array; zeros where there is no such row."""
    if len(x) == 0:
        return jnp.zeros((len(rows), *x.shape[1:]), x.dtype)
    return x.at[rows].get(mode="fill", fill_value=0)


def _refuse_unread(traced: Any, data: Mapping[Relation, Any], where: str) -> None:
    """Error where a call brought edge data that no result depends on."""
    given, unread = 0, 0
    for found in traced:
        inputs = [v for v in found.typed.program.inputs if v.space.kind == "edge"]
        given += len(inputs)
        unread += len(found.typed.unread.intersection(inputs))
    if data and given and given == unread:
        raise LayerError(
            f"{where} was given edges=, and its results depend on none of it: read it as r.data of "
            "a relation, or leave edges= out"
        )


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call on a typed graph."""

    definition: Definition
    fn: Any
    graph: AnyTyped
    arguments: TypedArguments

    def trace(self, node_type: str) -> TracedType:
        own = self.definition
        trace = functools.partial(
            trace_type, self.fn, self.arguments, node_type, self.graph.into(node_type),
            next(iter(self.graph.relations), None), name=own.name, where=own.where,
        )  # fmt: skip
        if not _compat.jit_is_disabled():
            return trace()
        with jax.disable_jit(False), muted():
            return trace()

    def run(self, node_type: str, traced: TracedType) -> list[Any]:
        """The results for one vertex type, the leaves of their tree."""
        if isinstance(self.graph, PartedTypedGraph):
            return self.run_in_parts(self.graph, node_type, traced)
        graphs = {name: self.relation_graph(key) for name, key in traced.relations.items()}
        env = dict(zip(traced.typed.program.inputs, traced.operands, strict=True))
        padded = (g.mask is not None for g in graphs.values() if not isinstance(g, ShardedGraph))
        hoisted = not any(padded)
        typed, every = traced.typed, {}
        if not is_reference() and isinstance(self.graph, TypedGraph):
            typed, every = merge(traced, self.graph, node_type)
            for name, edges in every.items():
                keys = [traced.relations[r] for r in edges.relations]
                merged = graph_of(self.graph, keys)
                env |= operands_of(edges, merged, env)
                graphs[name] = merged
        count = self.graph.lengths[node_type]
        for part in split(typed, hoisted):
            operands = [env[v] for v in part.inputs]
            if part.relation:
                outs = self.run_part(part, graphs[part.relation], operands, node_type)
            else:
                outs = self.at_vertices(part, operands, node_type, count)
            env.update(zip(part.outputs, outs, strict=True))
        return [self.result(x, env, traced) for x in typed.outputs]

    def run_in_parts(
        self, graph: PartedTypedGraph, node_type: str, traced: TracedType
    ) -> list[Any]:
        """As `run`, where the edges into some vertices come after those into others."""
        at, typed = graph.types.index(node_type), traced.typed
        rows, place = graph.rows[at], graph.place[at]

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def one(number: Any) -> list[Any]:
            found, own, env = graph.read(node_type, number), rows[number], {}
            count = len(own)
            graphs = {
                name: found[key][0] if key in found else self.without_edges(key, count)
                for name, key in traced.relations.items()
            }
            for v, x in zip(typed.program.inputs, traced.operands, strict=True):
                if v.space.kind == "dst":
                    x = _some(x, own)
                elif v.space.kind == "edge" and v.space.of is not None:
                    key = traced.relations[v.space.of]
                    x = _some(x, found[key][1]) if key in found else x
                env[v] = x
            for part in split(typed, hoisted=False):
                operands = [env[v] for v in part.inputs]
                if part.relation:
                    outs = self.run_part(part, graphs[part.relation], operands, node_type)
                else:
                    outs = _at_vertices(part.program, count, operands, run=_planned)
                env.update(zip(part.outputs, outs, strict=True))
            return [self.result(x, env, traced) for x in typed.outputs]

        every = jnp.arange(graph.num_parts, dtype=jnp.int32)
        _, outs = jax.lax.scan(lambda _, number: (None, one(number)), None, every)
        return [
            x.reshape(-1, *x.shape[2:])[place] if _space(o) is Space.DST else x[0]
            for o, x in zip(typed.outputs, outs, strict=True)
        ]

    def without_edges(self, key: Relation, count: int) -> Graph:
        """A relation without edges into `count` vertices."""
        none = np.zeros(0, np.int32)
        return Graph.from_edges(none, none, num_src=self.graph.lengths[key[0]], num_dst=count)

    def at_vertices(
        self, part: Part, operands: Sequence[Any], node_type: str, count: int
    ) -> list[Any]:
        """A part without edges; on shards with zeros in padding, as parts with edges have."""
        if not isinstance(self.graph, ShardedTypedGraph):
            return _at_vertices(part.program, count, operands, run=_planned)
        rows, place = self.graph.of_types()[node_type], self.graph.sharding
        operands = [
            rows.without_padding(x) if v.space.is_vertex else x
            for v, x in zip(part.inputs, operands, strict=True)
        ]
        outs = _at_vertices(part.program, count, operands)
        return [
            jax.lax.with_sharding_constraint(x, place) if v.space.is_vertex else x
            for v, x in zip(part.outputs, outs, strict=True)
        ]

    def relation_graph(self, key: Relation) -> AnyGraph:
        """The graph of a relation; without edges, of one that stands in for others."""
        if key in self.graph.relations:
            return self.graph[key]
        count = self.graph.lengths[key[2]]
        if key[0] == key[2]:
            none = np.zeros(0, np.int32)
            return Graph.from_edges(none, none, count)
        return self.without_edges(key, count)

    def run_part(
        self, part: Part, graph: AnyGraph, operands: Sequence[Any], node_type: str
    ) -> list[Any]:
        _, tree = jax.tree.flatten([0] * len(part.outputs))
        traced = TracedLayer(part.program, tuple(operands), tree)
        x = self.arguments.x
        arguments = Arguments(None, x[node_type], None, self.arguments.params, {})
        return _PartCall(self.definition, self.fn, graph, arguments, traced).run_recorded()

    def result(self, x: Atom | Union, env: Mapping[Value, Any], traced: TracedType) -> Any:
        """An output as the user gets it: one on the edges of all relations is one for each."""
        if isinstance(x, Union):
            if traced.stand_in:
                return {}
            parts = zip(traced.relations.values(), x.parts, strict=True)
            return {key: self.result(part, env, traced) for key, part in parts}
        return literal_array(x) if isinstance(x, Literal) else env[x]


def _at_vertices(
    program: Program, count: int, operands: Sequence[Any], run: Any = None
) -> list[Any]:
    if _compat.jit_is_disabled():
        return _evaluated(program, count, operands)
    return _compiled(run or _evaluated, program, count, list(operands))


def _evaluated(program: Program, count: int, operands: Sequence[Any]) -> list[Any]:
    none = jnp.zeros(0, jnp.int32)
    return interpret(program, Incidence(none, none, count, count), operands)


def _planned(program: Program, count: int, operands: Sequence[Any]) -> list[Any]:
    """As a layer runs what it does on vertices: a gradient of a matrix is a kernel of its own."""
    none = np.zeros(0, np.int32)
    spaces = [o.space for o in program.outputs]
    return run_program(program, spaces, Graph.from_edges(none, none, count), operands)


_compiled = functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)(
    lambda run, program, count, operands: run(program, count, operands)
)
