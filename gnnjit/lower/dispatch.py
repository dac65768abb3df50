"""How `aggregate` becomes code: on one device, or on the shards of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from gnnjit.graph import Graph
from gnnjit.ir.program import Aggregate, Equation, Program
from gnnjit.lower import choose
from gnnjit.lower.execute import execute, spread
from gnnjit.lower.lowering import Reductions, with_fixed
from gnnjit.lower.sharded import aggregate as sharded
from gnnjit.sharding.sharded_graph import ShardedGraph


def lower(
    *args: Any,
    body: Program,
    reductions: Reductions,
    graph_def: Any,
    limit: int | None,
    platform: str,
) -> list[Any]:
    """The aggregate as plain JAX and kernel calls."""
    n, reductions = graph_def[1], with_fixed(reductions)  # nothing is differentiated any more
    graph = jax.tree.unflatten(graph_def[0], list(args[:n]))
    if isinstance(graph, ShardedGraph):
        return sharded.lower(graph, body, reductions, args[n:], platform, limit)
    program = choose.traversals(body, reductions, graph, platform, limit)

    def run(graph: Graph, eqn: Equation, operands: list[Any]) -> Sequence[Any]:
        assert isinstance(eqn.op, Aggregate)
        return choose.choose(eqn.op, graph, platform, limit).run(operands)

    outs = execute(program, graph, args[n:], run)
    return [
        x if r is not None else spread(graph, x, atom.space)
        for x, atom, r in zip(outs, program.outputs, reductions, strict=True)
    ]
