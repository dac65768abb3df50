"""Runs a program whose edge work is all inside aggregates: plain JAX over whole spaces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit.graph import Graph
from gnnjit.ir.evaluate import bind_in_space, literal_array
from gnnjit.ir.program import (
    Aggregate,
    Atom,
    AtVertex,
    Degree,
    Equation,
    Fold,
    Index,
    Lax,
    Literal,
    Network,
    OfGraph,
    Pool,
    Program,
    Select,
    Value,
    op_key,
)
from gnnjit.ir.space import Space
from gnnjit.lower import vertex_matmul
from gnnjit.sharding.local_shard import LocalShard
from gnnjit.sharding.sharded_graph import ShardedGraph

RunGraph = Graph | ShardedGraph | LocalShard
"""A program runs over a graph, over one on many devices, or over one device's shard of it."""

Run = Callable[[Any, Equation, list[Any]], Sequence[Any]]
"""What is no work of each element by itself: traversals, and what goes into graphs or out."""


def size(graph: RunGraph, space: Space) -> int:
    """Number of elements of a space (edges: with padding)."""
    if space is Space.GRAPH:
        assert not isinstance(graph, LocalShard)
        return graph.num_graphs
    return {Space.SRC: graph.num_src, Space.DST: graph.num_dst, Space.EDGE: graph.num_edges}[space]


def execute(program: Program, graph: RunGraph, operands: Sequence[Any], run: Run) -> list[Any]:
    """The outputs of `program` on arrays `[size(space), *shape]`; shared ones are unbatched."""
    env: dict[Value, Any] = dict(zip(program.inputs, operands, strict=True))
    done: dict[Hashable, list[Any]] = {}

    def read(atom: Atom) -> Any:
        return literal_array(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in program.equations:
        args = [read(a) for a in eqn.inputs]
        out = eqn.outputs[0]
        match eqn.op:
            case Lax() | Network():  # sources and destinations may hold the same array: once
                key = (op_key(eqn.op), _operands_key(eqn, args), size_or_shared(graph, eqn.space))
                if key not in done:
                    alone = isinstance(eqn.op, Lax)
                    done[key] = _apply(eqn, graph, args) if alone else [*run(graph, eqn, args)]
                outs = done[key]
            case Aggregate() | Pool() | OfGraph() | Select() | Fold():
                outs = run(graph, eqn, args)
            case AtVertex():
                outs = args
            case Degree() if out.space is Space.GRAPH:
                outs = run(graph, eqn, args)
            case Degree():
                outs = [graph.degree(out.space).astype(out.dtype)]
            case Index():
                outs = [_numbers(graph, out.space).astype(out.dtype)]
            case _:
                raise AssertionError(f"{eqn.op} is left after fuse-scatter-apply-gather")
        env.update(zip(eqn.outputs, outs, strict=True))
    return [read(o) for o in program.outputs]


def _numbers(graph: RunGraph, space: Space) -> Any:
    """The user's numbers of the elements of a space."""
    if isinstance(graph, Graph) or space is Space.GRAPH:
        return jnp.arange(size(graph, space))
    return graph.numbers(space)


def size_or_shared(graph: RunGraph, space: Space) -> int | None:
    return None if space is Space.SHARED else size(graph, space)


def _operands_key(eqn: Equation, args: list[Any]) -> tuple[Hashable, ...]:
    """A key of the operands: the identity of arrays, the values of literals."""
    return tuple(
        (a.dtype.name, np.asarray(a.value).tobytes())
        if isinstance(a, Literal)
        else (id(x), a.space is Space.SHARED)
        for a, x in zip(eqn.inputs, args, strict=True)
    )


def _apply(eqn: Equation, graph: RunGraph, args: list[Any]) -> list[Any]:
    batched = [a.space is not Space.SHARED for a in eqn.inputs]
    assert isinstance(eqn.op, Lax)
    place = None
    if isinstance(graph, ShardedGraph) and not eqn.space.is_replicated:
        place = graph.place
    matmul = vertex_matmul.apply(eqn, args, place)
    if matmul is not None:
        return [matmul]
    outs = bind_in_space(eqn.op, args, batched)
    if eqn.space is not Space.SHARED and not any(batched):
        outs = [jnp.broadcast_to(o, (size(graph, eqn.space), *o.shape)) for o in outs]
    return outs


def spread(graph: Graph | ShardedGraph, x: Any, space: Space) -> Any:
    """A value of any space over all edges, `[E, ...]`; 0 on padding."""
    if space is Space.SHARED:
        x = jnp.broadcast_to(x, (graph.num_edges, *jnp.shape(x)))
    elif space is not Space.EDGE:
        x = x[graph.dst if space is Space.DST else graph.src]
    if graph.mask is None:
        return x
    return jnp.where(graph.mask.reshape((-1,) + (1,) * (x.ndim - 1)), x, jnp.zeros_like(x))
