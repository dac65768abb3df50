"""How `aggregate` becomes code: on one device, or on the shards of a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gnnjit import _compat
from gnnjit._compat import mlir
from gnnjit.graph import Graph
from gnnjit.graph.sharded import ShardedGraph
from gnnjit.ir.program import Aggregate, Equation, Program
from gnnjit.lower import choose, sharded
from gnnjit.lower.aggregate import Reductions, aggregate_p
from gnnjit.lower.execute import execute, spread


def lower(
    *args: Any,
    body: Program,
    reductions: Reductions,
    graph_def: Any,
    limit: int | None,
    platform: str,
) -> list[Any]:
    """The aggregate as plain JAX and kernel calls."""
    n = graph_def[1]
    graph = jax.tree.unflatten(graph_def[0], list(args[:n]))
    if isinstance(graph, ShardedGraph):
        return sharded.lower(graph, body, reductions, args[n:], platform, limit)
    program = choose.traversals(body, reductions, graph, platform)

    def run(graph: Graph, eqn: Equation, operands: list[Any]) -> Sequence[Any]:
        assert isinstance(eqn.op, Aggregate)
        choice = choose.choose(eqn.op.body, eqn.op.reductions, graph, platform)
        return choose.run_choice(choice, graph, operands, limit)

    outs = execute(program, graph, args[n:], run)
    return [
        x if r is not None else spread(graph, x, atom.space)
        for x, atom, r in zip(outs, program.outputs, reductions, strict=True)
    ]


aggregate_p.def_impl(functools.partial(_compat.run_compiled, aggregate_p))


def register(primitive: Any, lower: Callable[..., list[Any]]) -> None:
    """`lower(..., platform=)` is how a primitive becomes code, on each platform."""
    for platform in (None, "cpu", "cuda", "rocm", "tpu"):
        fn = functools.partial(lower, platform=platform or "other")
        rule = mlir.lower_fun(fn, multiple_results=True)
        if platform is None:
            mlir.register_lowering(primitive, rule)
        else:
            mlir.register_lowering(primitive, rule, platform=platform)


register(aggregate_p, lower)
