"""The plans of one call, for inference and for training: asked for, measured, learnt from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.compiler.call import TracedCall
from gnnjit.compiler.plan_tables import PlanExplanation, Wrt, explained, shown
from gnnjit.compiler.primitive import Call, bind
from gnnjit.cost.current import current
from gnnjit.cost.learn import learn_points
from gnnjit.errors import LayerError, PlanError
from gnnjit.graph import Graph
from gnnjit.graph.validate import is_traced
from gnnjit.ir.space import Space
from gnnjit.passes.pipeline import Choices
from gnnjit.planner import search, timings
from gnnjit.planner.plan import Plan, Problem
from gnnjit.system.timing import compare


@dataclasses.dataclass(frozen=True)
class Asked:
    """A call, and which of its arrays need gradients: what a plan is made for."""

    traced_call: TracedCall
    call: Call
    arrays: list[Any]
    differentiated: tuple[bool, ...] | None

    @classmethod
    def of(cls, traced_call: TracedCall, wrt: Wrt | None) -> Asked:
        """`wrt`: what gradients are taken of; None for inference."""
        arrays, call = traced_call.call()
        if wrt is None:
            return cls(traced_call, call, arrays, None)
        shared = [v.space is Space.SHARED for v in call.program.inputs]
        params = {slot for slot, is_shared in zip(call.slots, shared, strict=True) if is_shared}
        differentiated = [
            is_float(x) and (wrt == "all" or i in params) for i, x in enumerate(arrays)
        ]
        return cls(traced_call, call, arrays, tuple(differentiated))

    def problem(self) -> Problem:
        differentiated = None
        if self.differentiated is not None:
            differentiated = [
                x for x, wanted in zip(self.arrays, self.differentiated, strict=True) if wanted
            ]
        return self.traced_call.problem(differentiated)

    def plan(self) -> Plan:
        try:
            return search.plan(self.problem())
        except PlanError as error:
            raise PlanError(f"{self.call.label}: {error}") from None

    def function(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The call, or the call and its gradients, and what this is called with."""
        forward = functools.partial(bind, self.call)
        return self.both_ways if self.differentiated else forward, (
            self.traced_call.graph,
            self.arrays,
        )

    def both_ways(self, graph: Graph, arrays: list[Any]) -> Any:
        """The results serve as their own cotangents: with others, forward and backward would
        overlap, as they cannot in training."""
        assert self.differentiated is not None
        at = [i for i, wanted in enumerate(self.differentiated) if wanted]

        def forward(some: list[Any]) -> Any:
            every = list(arrays)
            for i, x in zip(at, some, strict=True):
                every[i] = x
            outs = bind(self.call, graph, every)
            return [o for o in outs if is_float(o)], [o for o in outs if not is_float(o)]

        outs, back, others = jax.vjp(forward, [arrays[i] for i in at], has_aux=True)
        return outs, others, back(outs)

    def measured(self, every: Sequence[Choices]) -> list[float]:
        """Seconds of one call of the layer alone, compiled with each of these choices."""
        function, arguments = self.function()
        compiled = []
        for choices in every:
            with search.force(choices):
                compiled.append(jax.jit(lambda *args: function(*args)).lower(*arguments).compile())
        return compare(compiled, arguments)


def is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def explain_plans(
    call: TracedCall, *, wrt: Wrt | None = "all", measure: bool = False, learn: bool = False
) -> tuple[PlanExplanation, ...]:
    """The plan for inference and, unless `wrt` is None or nothing has a gradient, for training.

    `measure` times the alternatives; `learn` keeps what was measured (`gnnjit.cost.learn`).
    """
    if learn and not measure:
        raise LayerError("explain: learn=True learns from what measure=True measures; give both")
    if measure and is_traced(call.graph, call.traced.operands, jnp.zeros(())):
        own = call.definition
        raise LayerError(
            f"{own.where}: {own.name}: explain(measure=True) needs to run the layer, and it is "
            "only traced here. Call it outside of jax.jit, jax.grad and the like, "
            "and with a function that is not compiled by jax.jit itself"
        )
    asked = [Asked.of(call, None)]
    if wrt is not None and is_differentiable(training := Asked.of(call, wrt)):
        asked.append(training)
    found = tuple(_explained(a, wrt if a.differentiated else None, measure) for a in asked)
    if learn:
        every = [a for plan in found for a in plan.alternatives]
        points = [  # smaller chunks than usual take time that is no part of the work
            (a.work, a.measured)
            for a in every
            if a.measured is not None and a.work and a.choices.limit is None
        ]
        learn_points(points, jax.default_backend())
        for a, plan in zip(asked, found, strict=True):
            times = {x.choices: x.measured for x in plan.alternatives}
            timings.remember(timings.OWN + timings.key_of(a.problem()), times)
    return found


def is_differentiable(asked: Asked) -> bool:
    """Whether a gradient is taken, and some output is a floating-point number."""
    return any(asked.differentiated or ()) and any(is_float(o) for o in asked.call.program.outputs)


def _explained(asked: Asked, wrt: Wrt | None, measure: bool) -> PlanExplanation:
    found = explained(asked.problem(), asked.plan(), wrt, current(jax.default_backend()))
    if not measure:
        return found
    every = [a.choices for a in shown(found.alternatives)]
    times = dict(zip(every, asked.measured(every), strict=True))
    rows = [
        dataclasses.replace(a, measured=times.get(a.choices, a.measured))
        for a in found.alternatives
    ]
    return dataclasses.replace(found, alternatives=tuple(rows))
