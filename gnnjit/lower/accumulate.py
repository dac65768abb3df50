"""`accumulate`: an aggregate over a chunk of the edges, merged with the chunks before it.

    partials = accumulate(graph, op, operands, limit, before)

are the partial results (`gnnjit.lower.partial_results`) of sums and extremes over the edges of
`graph` and those in `before`. A generated CPU kernel starts each row with its partial result, and
so reads and writes it once; after other code the two are merged. Nothing is differentiated here.
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
from gnnjit.lower.application import out_shape
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
    """One array for each output of `op`: its value on each edge where it reduces nothing, else
    partial results, merged with those in `before`, if any. No reduction may be an `exp_sum`.

    A result takes the memory of its array in `before` where the caller donates that.
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
    operands, started = args[n : n + len(body.inputs)], args[n + len(body.inputs) :]
    before = dict(zip(starts, started, strict=True))
    program = choose.traversals(body, reductions, graph, platform, limit)
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
    partials: list[Any] = []
    for k, (x, r) in enumerate(zip(outs, reductions, strict=True)):
        if r is None:
            x = spread(graph, x, program.outputs[k].space)
        elif k not in done:
            x = merged(r, before.get(k), x, _degree(graph, r.into))
        partials.append(x)
    return partials


def _results(program: Program, eqn: Equation) -> dict[int, int]:
    """The outputs of an equation that are results of the program once and are not read, by number,
    and the number of that result."""
    read = [a for e in program.equations for a in e.inputs]
    results: dict[int, int] = {}
    for j, x in enumerate(eqn.outputs):
        numbers = [k for k, o in enumerate(program.outputs) if o is x]
        if len(numbers) == 1 and not any(a is x for a in read):
            results[j] = numbers[0]
    return results


def _degree(graph: Graph, space: Space) -> Any:
    """Edges of each row. Of all edges, the count of both structures: a chunk has one alone."""
    if space is Space.SHARED:
        return jnp.stack([s.indptr[-1] for s in (graph.in_structure, graph.out_structure)])
    return jnp.diff(graph.structure(space).indptr)


runs_alone(accumulate_p)
lowers_to(accumulate_p, _lower)
