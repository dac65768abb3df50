"""The traversals that a call runs, and those that its sketch has, in the same few words."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from gnnjit import _compat
from gnnjit.compiler.call import TracedCall, _distinct, recorded_calls
from gnnjit.compiler.primitive import Call, bind
from gnnjit.cost.machine import machine_of
from gnnjit.cost.sketch import GraphSizes, SketchedTraversal, sketch
from gnnjit.cost.work import _Edges
from gnnjit.ir.program import Aggregate, Program, Value
from gnnjit.ir.space import Space
from gnnjit.lower.application import aggregate_p
from gnnjit.lower.choose import rows_of, traversals
from gnnjit.lower.lowering import Reductions
from gnnjit.passes.pipeline import Choices
from gnnjit.planner.programs import optimise, weighed
from gnnjit.planner.search import force

Kind = tuple[str, tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]
"""Rows; what is read, as (space, scalars); what is reduced or written, as (space, scalars)."""


def traced_call(f: Callable[..., Any], *args: Any) -> TracedCall:
    """The last layer that `f` calls."""
    with recorded_calls() as calls:
        jax.eval_shape(lambda *some: f(*some), *args)
    return calls[-1]


def arrays_of(call: TracedCall) -> tuple[list[Any], tuple[int, ...]]:
    """The arrays of a call, once each, and which one each operand is."""
    return _distinct(call.traced.operands)


def of_sketch(call: TracedCall, moving: tuple[bool, ...] | None, choices: Choices) -> list[Kind]:
    """What the cost model sees."""
    g = call.graph
    program = weighed(call.program, call.padded, choices, online=False)
    sizes = GraphSizes(g.num_src, g.num_dst, g.num_edges)
    made = sketch(program, arrays_of(call)[1], sizes, moving, online=False)
    return sorted(_sketched(t) for t in made.traversals)


def _sketched(t: SketchedTraversal) -> Kind:
    found = _Edges(t, machine_of("cpu"))
    read = [(n.place.value, n.width) for n in found.read if n.place is not Space.SHARED]
    into = [((s or Space.EDGE).value, n.width) for n, s in t.outputs]
    return t.rows.value, tuple(sorted(read)), tuple(sorted(into))


def of_kernels(call: TracedCall, moving: tuple[bool, ...] | None, choices: Choices) -> list[Kind]:
    """What a CPU runs, of the same plan: its aggregates, each as it is lowered."""
    found = collections.Counter[Kind]()
    for body, reductions in _aggregates(call, moving, choices):
        lowered = traversals(body, reductions, call.graph, "cpu")
        ops = (e.op for e in lowered.equations if isinstance(e.op, Aggregate))
        found.update(_lowered(op) for op in ops)
    return sorted(found.elements())


def _aggregates(
    call: TracedCall, moving: tuple[bool, ...] | None, choices: Choices
) -> list[tuple[Program, Reductions]]:
    if moving is None:
        program = optimise(call.program, call.padded, choices)
        ops = (e.op for e in program.equations if isinstance(e.op, Aggregate))
        return [(op.body, op.reductions) for op in ops]
    eqns = (e for e in _equations(_gradient(call, moving, choices)) if e.primitive is aggregate_p)
    return [(e.params["body"], e.params["reductions"]) for e in eqns]


def _lowered(op: Aggregate) -> Kind:
    used = {a for e in op.body.equations for a in e.inputs} | set(op.body.outputs)
    read = [(v.space.value, v.size) for v in op.body.inputs if v in used]
    into = [
        ((r.into if r else Space.EDGE).value, a.size if isinstance(a, Value) else 1)
        for r, a in zip(op.reductions, op.body.outputs, strict=True)
    ]
    read = [(s, n) for s, n in read if s != "shared"]
    return rows_of(op.reductions).value, tuple(sorted(read)), tuple(sorted(into))


def _gradient(call: TracedCall, moving: tuple[bool, ...], choices: Choices) -> Any:
    """The jaxpr of the outputs and their gradients, without what nobody reads."""
    arrays, slots = arrays_of(call)
    at = [i for i, moves in enumerate(moving) if moves]
    bound = Call(call.program, call.output_spaces, slots, call.padded)

    def f(*every: Any) -> Any:
        def part(*some: Any) -> Any:
            full = list(every)
            for i, x in zip(at, some, strict=True):
                full[i] = x
            return bind(bound, call.graph, full)

        outs, back = jax.vjp(part, *(every[i] for i in at))
        return outs, back([jnp.ones_like(o) for o in outs])

    with force(choices):
        closed = jax.make_jaxpr(f)(*map(_compat.like, arrays))
    jaxpr, _ = _compat.open_jaxpr(closed)
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for sub in _compat.subjaxprs(eqn):
            yield from _equations(sub)
