"""Relations whose sums are merged: where that pays, and the graph of all their edges."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.cost.machine import platform_here
from gnnjit.cost.sketch import GraphSizes
from gnnjit.frontend.merge_relations import MergedEdges, merged
from gnnjit.frontend.trace_typed import TracedType
from gnnjit.frontend.typed_capture import TypedProgram
from gnnjit.frontend.typed_parts import Part, split
from gnnjit.graph import Graph, TypedGraph
from gnnjit.graph.joining import joined
from gnnjit.graph.schema import Relation
from gnnjit.graph.validate import is_traced
from gnnjit.ir.program import Value
from gnnjit.planner.plan import Problem
from gnnjit.planner.search import plan
from gnnjit.system.contexts import Context

LEAST_STEP = 1.25
"""Numbers of edges are rounded up to powers of it where parts are weighed, so that relations of
about as many edges are weighed once."""


_forced: Context[bool | None] = Context(None)


@contextlib.contextmanager
def force(merging: bool) -> Iterator[None]:
    """Within it, all sums over relations that can be merged are, or none is: to test and to measure
    either."""
    with _forced(merging):
        yield


def merge(
    traced: TracedType, graph: TypedGraph, node_type: str
) -> tuple[TypedProgram, dict[str, MergedEdges]]:
    """The program of a vertex type, with the sums of relations merged where the cost model has it
    that value and gradients take less time so; and the merged edges by name.

    On a CPU, which has a kernel for products with the matrix that an edge picks.
    """
    forced = _forced.value
    if len(traced.relations) < 2 or forced is False or platform_here() != "cpu":
        return traced.typed, {}
    arrays = dict(zip(traced.typed.program.inputs, map(id, traced.operands), strict=True))

    def same(a: Value, b: Value) -> bool:
        return arrays[a] == arrays[b]

    def worth(before: TypedProgram, after: TypedProgram, edges: Mapping[str, MergedEdges]) -> bool:
        if forced:
            return True
        seconds = _Seconds(traced, graph, node_type, arrays, edges)
        now, then = seconds.of(before), seconds.of(after)
        return now is not None and then is not None and then < now

    return merged(traced.typed, traced.relations, same, worth)


@dataclasses.dataclass(frozen=True)
class _Seconds:
    """What the cost model predicts for a program of a vertex type."""

    traced: TracedType
    graph: TypedGraph
    node_type: str
    arrays: Mapping[Value, int]
    edges: Mapping[str, MergedEdges]

    def of(self, typed: TypedProgram) -> float | None:
        """Seconds of value and gradients; None where an operation is unknown."""
        total = 0.0
        for part in split(typed, not self.is_padded()):
            found = plan(self.problem(part))
            if found.why:
                return None
            total += found.chosen.seconds
        return total

    def is_padded(self) -> bool:
        return any(self.graph[key].mask is not None for key in self.keys(self.traced.relations))

    def keys(self, names: Any) -> list[Relation]:
        return [self.traced.relations[name] for name in names]

    def problem(self, part: Part) -> Problem:
        operands = [self.operand(v) for v in part.inputs]
        slots = tuple(operands.index(x) for x in operands)
        number = {slot: i for i, slot in enumerate(sorted(set(slots)))}
        first = [part.inputs[slot] for slot in sorted(set(slots))]
        wanted = tuple(bool(jnp.issubdtype(v.dtype, jnp.inexact)) for v in first)
        return Problem(
            part.program, tuple(number[s] for s in slots), self.is_padded(), self.sizes(part),
            wanted, None, platform_here(),
        )  # fmt: skip

    def sizes(self, part: Part) -> GraphSizes:
        rows = self.graph.num_nodes[self.node_type]
        if not part.relation:
            return GraphSizes(rows, rows, 0)
        edges = self.edges.get(part.relation)
        keys = self.keys(edges.relations if edges else [part.relation])
        count = sum(self.graph[key].num_edges for key in keys)
        sources = self.graph.num_nodes[keys[0][0]]
        return GraphSizes(sources, rows, count if edges else rounded(count))

    def operand(self, v: Value) -> Any:
        """What is the same for inputs that are one array."""
        for edges in self.edges.values():
            if v in edges.inputs and v.space.kind == "src":
                v = edges.inputs[v][0]
        return self.arrays.get(v, v)


def rounded(count: int) -> int:
    """The least power of `LEAST_STEP` that is not below."""
    power = 1.0
    while power < count:
        power *= LEAST_STEP
    return int(power)


def graph_of(graph: TypedGraph, keys: Sequence[Relation]) -> Graph:
    """The graph of the edges of these relations, in their order. Known edges are sorted once for
    each typed graph, traced ones in each call."""
    parts = [graph[key] for key in keys]
    if is_traced(*jax.tree.leaves(parts)):
        return joined(parts)
    known = graph.__dict__.setdefault("_joined", {})
    if tuple(keys) not in known:
        with jax.ensure_compile_time_eval():
            known[tuple(keys)] = joined(parts)
    return known[tuple(keys)]


def operands_of(edges: MergedEdges, graph: Graph, env: Mapping[Value, Any]) -> dict[Value, Any]:
    """The arrays of the inputs of merged edges, on their graph."""
    assert graph.relations is not None
    found = {edges.number: graph.relations.number, edges.degree: graph.relations.degree}
    for made, of in edges.inputs.items():
        rows = [env[v] for v in of]
        found[made] = rows[0] if made.space.kind == "src" else jnp.concatenate(rows)
    return found
