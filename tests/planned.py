"""Layers run with passes and limits that nothing chooses yet, as `compiler.call` runs its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from reads import reads_edges

from gnnjit.compiler.call import Definition, TracedCall, outputs, trace_call
from gnnjit.graph import Graph
from gnnjit.ir.program import Aggregate, Equation, Program
from gnnjit.lower.aggregate import aggregate
from gnnjit.lower.execute import execute
from gnnjit.passes.pipeline import Pass, default_passes, run
from gnnjit.passes.shield_unread_vertices import ShieldUnreadVertices


def traced_call(fn: Callable[..., Any], graph: Graph, *args: Any, edges: Any = None) -> TracedCall:
    """A call of `fn` as a layer; `edges` are left out where it reads none."""
    edges = edges if reads_edges(fn) else None
    return trace_call(Definition(fn, (), "test.py:1"), (graph, *args), edges, {})


def optimised(call: TracedCall, passes: Sequence[Pass]) -> Program:
    return run(call.program, (ShieldUnreadVertices(call.padded), *passes))


def planned(
    fn: Callable[..., Any], passes: Sequence[Pass] | None = None, limit: int | None = None
) -> Callable[..., Any]:
    """`layer(graph, x, *params, edges=)`, after `passes` (by default, the usual ones)."""

    def bind(graph: Graph, eqn: Equation, args: list[Any]) -> list[Any]:
        assert isinstance(eqn.op, Aggregate)
        return aggregate(graph, eqn.op.body, eqn.op.reductions, args, limit)

    @functools.wraps(fn)
    def layer(graph: Graph, *args: Any, edges: Any = None) -> Any:
        call = traced_call(fn, graph, *args, edges=edges)
        program = optimised(call, default_passes() if passes is None else passes)
        outs = execute(program, graph, call.traced.operands, bind)
        return jax.tree.unflatten(
            call.traced.out_tree, outputs(graph, program, call.output_spaces, outs)
        )

    return layer
