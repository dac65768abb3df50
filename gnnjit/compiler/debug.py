"""`GNNJIT_DEBUG`: what the compiler decided about a plan, printed to standard error.

`config.DEBUG` says what each level prints. A plan is printed when this process first runs it: once,
however often the layer is traced, also where the plan comes from a cache; again where a context
(`gnnjit.portable`) may choose other code for it. Printing changes no code, so it is in no cache's
key.
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax

from gnnjit import _compat, config
from gnnjit.compiler.explain_traversals import backward_choices, forward_choices, kernel_of
from gnnjit.compiler.plan_tables import explained
from gnnjit.cost.current import current
from gnnjit.frontend.capture import inline_custom_calls
from gnnjit.graph import Graph
from gnnjit.ir.program import Program
from gnnjit.ir.show import show
from gnnjit.lower import cpu
from gnnjit.lower.choose import Choice
from gnnjit.lower.execute import size_or_shared
from gnnjit.passes.pipeline import layer_passes, run
from gnnjit.planner.candidate import CallShapes, Candidate, alone
from gnnjit.planner.plan import Plan, Problem
from gnnjit.sharding.local_shard import shapes
from gnnjit.sharding.sharded_graph import AnyGraph, ShardedGraph
from gnnjit.system.contexts import values

_printed: set[Hashable] = set()


def print_plan(
    label: str, problem: Problem, plan: Plan, graph: AnyGraph, call_shapes: Callable[[], CallShapes]
) -> None:
    """Print `plan` as `config.DEBUG` says, unless it was printed before.

    label: where the layer stands and its name. call_shapes: of the call's graph and arrays.
    """
    key = values(), problem, plan.chosen.choices
    if not config.DEBUG or key in _printed:
        return
    _printed.add(key)
    with jax.disable_jit(False), _compat.without_mesh():
        lines = [f"gnnjit: {label}: {_title(problem)}"]
        for part in _parts(problem, plan, graph, call_shapes, config.DEBUG):
            lines += textwrap.indent(part, "  ").splitlines()
    print("\n".join(lines), file=sys.stderr, flush=True)


def _title(problem: Problem) -> str:
    if problem.differentiated is None:
        return "plan for inference"
    slots = zip(problem.slots, problem.program.inputs, strict=True)
    names = [v.name or f"constant {i}" for i, v in slots if problem.differentiated[i]]
    return f"plan for training, gradients of {', '.join(names) or 'nothing'}"


def _parts(
    problem: Problem, plan: Plan, graph: AnyGraph, call_shapes: Callable[[], CallShapes], level: int
) -> Iterator[str]:
    """The parts of what is printed, in order."""
    choices = plan.chosen.choices
    after: list[tuple[str, Program]] = []

    def observe(step: Any, before: Program, made: Program) -> None:
        if made != before:
            after.append((step.name, made))

    run(problem.program, layer_passes(problem.padded, choices), [observe])
    yield f"passes: {', '.join(name for name, _ in after) or 'none changed it'}"
    if level >= 2:
        yield str(explained(problem, plan, None, current(problem.platform)))
    if level >= 3:
        yield f"--- as written\n{_text(problem.program)}"
        yield from (f"--- after {name}\n{_text(program)}" for name, program in after)
    here = shapes(graph) if isinstance(graph, ShardedGraph) else graph
    for direction, choice in _traversals(problem, plan, here, call_shapes):
        kernel = kernel_of(direction, choice, here)
        yield kernel.reasons if level < 3 else str(kernel)
        if level >= 4:
            yield f"--- code\n{_code(choice, choice.request.graph, choices.limit)}"


def _text(program: Program) -> str:
    return show(inline_custom_calls(program), objects=[])


def _traversals(
    problem: Problem, plan: Plan, graph: Graph, call_shapes: Callable[[], CallShapes]
) -> Iterator[tuple[str, Choice]]:
    """With the direction of each."""
    yield from forward_choices(plan.program, graph)
    if any(problem.differentiated or ()):
        limit = plan.chosen.choices.limit
        call = Candidate(plan.program, limit, problem.slots, problem.differentiated, call_shapes())
        jaxpr = jax.make_jaxpr(alone(call))(call.shapes.graph, call.shapes.arrays)
        yield from backward_choices(plan.program, jaxpr.jaxpr, graph)


def _code(choice: Choice, graph: Graph, limit: int | None) -> str:
    """LLVM's IR of a CPU kernel; of all else the jaxpr, with the bodies of Pallas kernels in it."""
    if choice.kernel == "cpu":
        return cpu.code(choice.request)
    leaves, treedef = jax.tree.flatten(graph)

    def traversal(leaves: Any, operands: Any) -> Any:
        here = jax.tree.unflatten(treedef, leaves)
        request = dataclasses.replace(choice.request, graph=here, limit=limit)
        return choice.lowering.run(request, operands)

    every = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    operands = []
    for v in choice.request.body.inputs:
        rows = size_or_shared(graph, v.space)
        shape = tuple(v.shape) if rows is None else (rows, *v.shape)
        operands.append(jax.ShapeDtypeStruct(shape, v.dtype))
    return str(jax.make_jaxpr(traversal)(every, operands))
