"""`accumulate`: an aggregate over some of the edges, added to what others gave.

    partials = accumulate(graph, op, operands, limit, before)

are the partial results (`gnnjit.lower.partial_results`) of sums and extremes over the edges of
`graph`, with those `before`. A generated CPU kernel starts each row with what is given, and so
reads and writes partial results once; after other code they are merged. Nothing is differentiated
here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit.graph import Graph
from gnnjit.ir.program import Aggregate, Equation, Program
from gnnjit.ir.space import Space
from gnnjit.lower import choose
from gnnjit.lower.aggregate import out_shape
from gnnjit.lower.execute import execute, spread
from gnnjit.lower.lowering import Reductions
from gnnjit.lower.partial_results import merged
from gnnjit.lower.primitives import lowers_to, runs_alone

accumulate_p = _compat.Primitive("accumulate")
accumulate_p.multiple_results = True


def accumulate(
    graph: Graph,
    op: Aggregate,
    operands: Sequence[Any],
    limit: int | None,
    before: Sequence[Any | None],
) -> list[Any]:
    """One result for each output of `op`: what it has of each edge where it reduces nothing, else
    partial results, with those in `before`, if any. No reduction may be an `exp_sum`.

    Each row of `before` is given up: its place is the result's where the caller donates it.
    """
    leaves, treedef = jax.tree.flatten(graph)
    starts = tuple(k for k, x in enumerate(before) if x is not None)
    return accumulate_p.bind(
        *leaves, *operands, *(before[k] for k in starts), body=op.body, reductions=op.reductions,
        graph_def=(treedef, len(leaves)), limit=limit, starts=starts,
    )  # fmt: skip


@accumulate_p.def_abstract_eval
def _abstract(
    *args: Any, body: Program, reductions: Reductions, graph_def: Any, **_: Any
) -> list[Any]:
    graph = jax.tree.unflatten(graph_def[0], list(args[: graph_def[1]]))
    return [
        _compat.result_aval(args, out_shape(graph, atom, r), atom.dtype)
        for atom, r in zip(body.outputs, reductions, strict=True)
    ]


def _lower(
    *args: Any,
    body: Program,
    reductions: Reductions,
    graph_def: Any,
    limit: int | None,
    starts: tuple[int, ...],
    platform: str,
) -> list[Any]:
    n = graph_def[1]
    graph: Graph = jax.tree.unflatten(graph_def[0], list(args[:n]))
    operands, given = args[n : n + len(body.inputs)], args[n + len(body.inputs) :]
    before = dict(zip(starts, given, strict=True))
    program = choose.traversals(body, reductions, graph, platform)
    done: set[int] = set()

    def run(graph: Graph, eqn: Equation, operands: list[Any]) -> Sequence[Any]:
        assert isinstance(eqn.op, Aggregate)
        choice = choose.choose(eqn.op, graph, platform, limit)
        why_no_start = choice.lowering.why_no_start
        if why_no_start is None:
            return choice.run(operands)
        results = _results(program, eqn)
        extremes = {j for j, r in enumerate(eqn.op.reductions) if r and r.kind != "sum"}
        partial = extremes <= results.keys()  # else somebody else reads them
        if not partial:
            results = {j: k for j, k in results.items() if j not in extremes}
        onto = {
            j: before[k]
            for j, k in results.items()
            if k in before and not why_no_start(choice.request, j)
        }
        done.update(k for j, k in results.items() if j in onto or k not in before)
        request = dataclasses.replace(choice.request, partial=partial, starts=onto)
        return choice.lowering.run(request, operands)

    outs = execute(program, graph, operands, run)
    found: list[Any] = []
    for k, (x, r) in enumerate(zip(outs, reductions, strict=True)):
        if r is None:
            x = spread(graph, x, program.outputs[k].space)
        elif k not in done:
            x = merged(r, before.get(k), x, _degree(graph, r.into))
        found.append(x)
    return found


def _results(program: Program, eqn: Equation) -> dict[int, int]:
    """Outputs of an equation that are results of the program, once, and nothing else."""
    read = [a for e in program.equations for a in e.inputs]
    found: dict[int, int] = {}
    for j, x in enumerate(eqn.outputs):
        places = [k for k, o in enumerate(program.outputs) if o is x]
        if len(places) == 1 and not any(a is x for a in read):
            found[j] = places[0]
    return found


def _degree(graph: Graph, space: Space) -> Any:
    """Edges of each row; of all, by either structure: a chunk has one."""
    if space is Space.SHARED:
        return jnp.stack([s.indptr[-1] for s in (graph.in_structure, graph.out_structure)])
    return jnp.diff(graph.structure(space).indptr)


runs_alone(accumulate_p)
lowers_to(accumulate_p, _lower)
