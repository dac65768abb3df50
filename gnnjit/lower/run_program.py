"""Running an optimised program on the arrays of a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.errors import LayerError
from gnnjit.ir.evaluate import is_shared
from gnnjit.ir.interpret import Incidence
from gnnjit.ir.program import (
    Aggregate,
    Atom,
    Degree,
    Equation,
    Fold,
    Network,
    OfGraph,
    Pool,
    Program,
    Select,
    Value,
)
from gnnjit.ir.space import Space
from gnnjit.lower import members
from gnnjit.lower.aggregate import aggregate
from gnnjit.lower.execute import execute, size, spread
from gnnjit.lower.fold import fold
from gnnjit.lower.lowering import with_fixed
from gnnjit.lower.select import select
from gnnjit.lower.sharded import fold as sharded_fold
from gnnjit.lower.vertex_networks import own_edges, with_networks
from gnnjit.passes.analysis.no_gradient import stopped_values
from gnnjit.sharding.sharded_graph import AnyGraph, ShardedGraph


def run_program(
    program: Program,
    output_spaces: Sequence[Space],
    graph: AnyGraph,
    operands: Sequence[Any],
    limit: int | None = None,
) -> list[Any]:
    """The outputs as the user gets them, in `output_spaces`; `limit` as in `aggregate`."""

    read: dict[tuple[int, bool], Any] = {}  # sources may be the destinations: once is enough
    stopped = stopped_values(program)

    def run(graph: AnyGraph, eqn: Equation, args: list[Any]) -> list[Any]:
        match eqn.op:
            case Aggregate(body, reductions):
                fixed = [out in stopped for out in eqn.outputs]
                return aggregate(graph, body, with_fixed(reductions, fixed), args, limit)
            case Network(body):
                elements = own_edges(size(graph, eqn.space))
                return aggregate(elements, body, (None,) * len(body.outputs), args)
            case Pool(kind):
                rows = [over_rows(graph, x, a) for x, a in zip(args, eqn.inputs, strict=True)]
                return [members.pool(graph, kind, rows[0], rows[1:])]
            case OfGraph():
                key = id(args[0]), graph.bipartite and eqn.space is Space.SRC
                if key not in read:
                    read[key] = members.of_graph(graph, args[0], eqn.space)
                return [read[key]]
            case Degree():
                return [members.num_vertices(graph)]
            case Select():
                _refuse_streamed(graph, eqn, "ranks of edges (gnnjit.argmax, sort and their like)")
                ranks = at_rows(graph, args[0], eqn.inputs[0], eqn.op.into)
                return [select(graph, eqn.op, ranks, args[1:], limit)]
            case Fold():
                return _folded(graph, eqn, eqn.op, args)
        raise AssertionError(eqn.op)

    found = execute(with_networks(program, graph), graph, operands, run)
    return outputs(graph, program, output_spaces, found)


def outputs(
    graph: AnyGraph, program: Program, output_spaces: Sequence[Space], outs: Sequence[Any]
) -> list[Any]:
    """The outputs as the user gets them, in whichever smaller space each was computed: a value
    returned on the edges has one row per edge, 0 on padding; a vertex value one per destination."""
    result = []
    for x, atom, space in zip(outs, program.outputs, output_spaces, strict=True):
        if space in (Space.EDGE, Space.SRC):
            x = on_edges(graph, x, atom)
        elif atom.space is Space.SHARED and space is not Space.SHARED:
            x = jnp.broadcast_to(x, (size(graph, space), *jnp.shape(x)))
        result.append(x)
    return result


def _folded(graph: AnyGraph, eqn: Equation, op: Fold, args: Sequence[Any]) -> list[Any]:
    _refuse_streamed(graph, eqn, "gnnjit.fold")
    order = on_edges(graph, args[0], eqn.inputs[0]) if op.ordered else None
    own = zip(args[op.ordered : op.own], eqn.inputs[op.ordered : op.own], strict=True)
    start = [at_rows(graph, x, a, op.into) for x, a in own]
    if isinstance(graph, ShardedGraph):
        where = str(eqn.location or "layer")
        return sharded_fold.fold(graph, op, order, start, args[op.own :], where)
    return fold(graph, op, order, start, args[op.own :])


def _refuse_streamed(graph: AnyGraph, eqn: Equation, what: str) -> None:
    """Error where the edges are not at hand: they are taken one after the other, or often."""
    if not isinstance(graph, ShardedGraph) and not hasattr(graph.src, "shape"):
        raise LayerError(
            f"{eqn.location or 'layer'}: {what} on a streamed graph, whose edges come block by "
            "block: call the layer on a gnnjit.Graph in memory, outside of gnnjit.stream"
        )


def at_rows(graph: AnyGraph, x: Any, atom: Atom, space: Space) -> Any:
    """A value of vertices, one for each also if it is shared."""
    return jnp.broadcast_to(x, (size(graph, space), *jnp.shape(x))) if is_shared(atom) else x


def over_rows(graph: AnyGraph, x: Any, atom: Atom) -> Any:
    """A value of destinations, one for each also if it is shared."""
    return at_rows(graph, x, atom, Space.DST)


def on_edges(graph: AnyGraph, x: Any, atom: Atom) -> Any:
    """A value over all edges, 0 on padding."""
    if isinstance(graph, ShardedGraph) and atom.space.is_vertex:
        value = Value(tuple(atom.shape), atom.dtype, atom.space)
        return aggregate(graph, Program((value,), (), (value,)), (None,), [x])[0]
    return spread(graph, x, atom.space)


def incidence(graph: AnyGraph) -> Incidence:
    """The edges between the rows of arrays of vertices."""
    if not isinstance(graph, ShardedGraph):
        src, dst = (real_edges(graph, x) for x in (graph.src, graph.dst))
        return Incidence(
            src, dst, graph.num_src, graph.num_dst, graph.mask, None, _members_of(graph),
            graph.num_graphs,
        )  # fmt: skip

    def ends(space: Space) -> Any:
        row = jnp.arange(size(graph, space))
        return on_edges(graph, row, Value((), row.dtype, space))

    src, dst = ends(Space.SRC), ends(Space.DST)
    return Incidence(
        src, dst, graph.num_src, graph.num_dst, graph.mask, graph.numbers, _members_of(graph),
        graph.num_graphs,
    )  # fmt: skip


def _members_of(graph: AnyGraph) -> Callable[[Space], tuple[Any, Any]]:
    def found(space: Space) -> tuple[Any, Any]:
        ids, real = members.members(graph, space)
        rows = size(graph, space)
        ids = jnp.zeros(rows, jnp.int32) if ids is None else ids
        return ids, jnp.ones(rows, jnp.bool_) if real is None else real

    return found


def real_edges(graph: AnyGraph, x: Any) -> Any:
    """An array over the edges, with the first real edge in the place of padding.

    Results on padding are masked, but their derivatives are not safe: 0 times NaN is NaN, and
    padding may hold anything (its endpoints, both 0, look like a self loop).
    """
    if isinstance(graph, ShardedGraph) or graph.mask is None or not len(graph.mask):
        return x
    found = x[jnp.where(graph.mask, jnp.arange(len(graph.mask)), jnp.argmax(graph.mask))]
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):  # random keys have no zero
        return found
    return jnp.where(graph.mask.any(), found, jnp.zeros_like(found))


def shape_of(graph: AnyGraph, atom: Atom, space: Space) -> jax.ShapeDtypeStruct:
    """The shape of an output returned in a space: there, or on the edges instead of the sources."""
    rows = {
        Space.SHARED: (), Space.GRAPH: (graph.num_graphs,), Space.DST: (size(graph, Space.DST),),
    }  # fmt: skip
    shape = rows.get(space, (size(graph, Space.EDGE),))
    return jax.ShapeDtypeStruct((*shape, *atom.shape), atom.dtype)


def num_bytes(x: Any) -> int:
    """Bytes of an array, or of the array that a `ShapeDtypeStruct` describes."""
    return math.prod(x.shape) * x.dtype.itemsize
