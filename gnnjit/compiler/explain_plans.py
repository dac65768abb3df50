"""What the planner weighed for one call: its alternatives in words, predicted and measured."""

from __future__ import annotations

import dataclasses
import functools
import html
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from gnnjit.compiler.call import Staged
from gnnjit.compiler.primitive import Call, bind
from gnnjit.cost.current import current
from gnnjit.cost.learn import learn_points
from gnnjit.cost.model import Work
from gnnjit.errors import LayerError, PlanError
from gnnjit.graph import Graph
from gnnjit.graph.validate import is_traced
from gnnjit.ir.program import Program
from gnnjit.ir.space import Space
from gnnjit.passes.pipeline import Choices, layer_middle, layer_prefix, run
from gnnjit.passes.reorder_aggregate_combine import movable_matmuls
from gnnjit.passes.scores_as_products import scores
from gnnjit.passes.store_edge_values import storable_values
from gnnjit.planner import search, timings
from gnnjit.planner.plan import Plan, Problem
from gnnjit.system.contexts import cached
from gnnjit.system.memory_budget import human
from gnnjit.system.timing import compare

Wrt = Literal["all", "params"]

SHOWN = 16
"""Alternatives that a table has and that are measured, at most: the fastest as predicted."""

FAULTS = 0.1
"""Share of a call that new memory may take without a word about it."""

_PLURAL = {Space.SRC: "sources", Space.DST: "destinations"}


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One program that would do.

    Attributes:
        choices: what it is made with; `gnnjit.planner.force(choices)` runs layers so.
        words: the same for people, one for each decision that there is.
        work: what the cost model is asked about.
        predicted: seconds of one call.
        peak: bytes that it needs at most, where that is known.
        chosen: whether it runs.
        measured: seconds of one call, if they were asked for.
    """

    choices: Choices
    words: tuple[str, ...]
    work: Work
    predicted: float
    peak: float | None
    chosen: bool
    measured: float | None = None


@dataclasses.dataclass(frozen=True)
class PlanExplanation:
    """The alternatives of one call in one direction, and why one of them runs.

    Attributes:
        direction: "inference", or "training": forward and backward together.
        wrt: for training, what gradients are taken of: "all" or "params".
        program: what runs.
        alternatives: the fastest as predicted first.
        by_kind: seconds that are predicted for each kind of operation of the one that runs.
        model: where the weights of the cost model are from.
        why: a reason if nothing could be predicted, and the layer runs as written.
        by_clock: whether stored times decided (`gnnjit.autotuning`), not the prediction alone.
    """

    direction: Literal["inference", "training"]
    wrt: Wrt | None
    program: Program
    alternatives: tuple[Alternative, ...]
    by_kind: dict[str, float]
    model: str
    why: str = ""
    by_clock: bool = False

    def to_dict(self) -> dict[str, Any]:
        """What JSON holds of it; seconds and bytes."""
        names = ("words", "predicted", "measured", "peak", "chosen")
        return {
            "direction": self.direction,
            "wrt": self.wrt,
            "model": self.model,
            "why": self.why,
            "alternatives": [{n: getattr(a, n) for n in names} for a in self.alternatives],
        }

    @property
    def title(self) -> str:
        of = {"all": ", gradients of all inputs", "params": ", gradients of the parameters"}
        return f"plan for {self.direction}{of[self.wrt] if self.wrt else ''}"

    @property
    def chosen(self) -> Alternative:
        return next(a for a in self.alternatives if a.chosen)

    def table(self) -> str:
        """One line for each alternative; `*` marks the one that runs."""
        shown = _shown(self.alternatives)
        columns = {"": ["*" if a.chosen else "" for a in shown]}
        if not self.why:
            columns["predicted"] = [duration(a.predicted) for a in shown]
        if any(a.measured is not None for a in shown):
            columns["measured"] = ["" if a.measured is None else duration(a.measured)
                                   for a in shown]  # fmt: skip
        if any(a.peak is not None for a in shown):
            columns["peak"] = ["" if a.peak is None else human(math.ceil(a.peak)) for a in shown]
        widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
        rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
        plain = "as written" if len(self.alternatives) > 1 else "nothing to choose"
        texts = ["choices", *("; ".join(a.words) or plain for a in shown)]
        lines = [
            "  ".join([*(c.rjust(w) for c, w in zip(row, widths.values(), strict=True)), text])
            for row, text in zip(rows, texts, strict=True)
        ]
        left = len(self.alternatives) - len(shown)
        return "\n".join([*lines, *([f"and {left} that are slower"] if left else [])])

    def __str__(self) -> str:
        if self.why:
            return f"{self.table()}\nnothing is predicted: {self.why}"
        kinds = sorted(self.by_kind.items(), key=lambda pair: -pair[1])
        parts = ", ".join(f"{kind} {duration(x)}" for kind, x in kinds)
        lines = [self.table(), f"the one that runs, predicted: {parts}"]
        if self.by_kind.get("memory", 0.0) > FAULTS * sum(self.by_kind.values()):
            lines.append("memory: asked of the system anew in every call; see gnnjit.keep_memory()")
        if self.by_clock:
            lines.append("chosen by stored times; see gnnjit.autotuning()")
        return "\n".join([*lines, f"cost model: {self.model}"])

    def _repr_html_(self) -> str:
        return f"<b>{html.escape(self.title)}</b><pre>{html.escape(str(self))}</pre>"


@dataclasses.dataclass(frozen=True)
class Asked:
    """A call, and which of its arrays need gradients: what a plan is made for."""

    staged: Staged
    call: Call
    arrays: list[Any]
    moving: tuple[bool, ...] | None

    @classmethod
    def of(cls, staged: Staged, wrt: Wrt | None) -> Asked:
        """`wrt`: what gradients are taken of; None for inference."""
        arrays, call = staged.call()
        if wrt is None:
            return cls(staged, call, arrays, None)
        shared = [v.space is Space.SHARED for v in call.program.inputs]
        params = {slot for slot, is_shared in zip(call.slots, shared, strict=True) if is_shared}
        moving = [is_float(x) and (wrt == "all" or i in params) for i, x in enumerate(arrays)]
        return cls(staged, call, arrays, tuple(moving))

    def problem(self) -> Problem:
        moving = None
        if self.moving is not None:
            moving = [x for x, moves in zip(self.arrays, self.moving, strict=True) if moves]
        return self.staged.problem(moving)

    def plan(self) -> Plan:
        try:
            return search.plan(self.problem())
        except PlanError as error:
            raise PlanError(f"{self.call.label}: {error}") from None

    def function(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The call, or the call and its gradients, and what this is called with."""
        forward = functools.partial(bind, self.call)
        return self.both_ways if self.moving else forward, (self.staged.graph, self.arrays)

    def both_ways(self, graph: Graph, arrays: list[Any]) -> Any:
        """The results are their own cotangents: with others, forward and backward overlap, as they
        cannot in training."""
        assert self.moving is not None
        at = [i for i, moves in enumerate(self.moving) if moves]

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
    staged: Staged, *, wrt: Wrt | None = "all", measure: bool = False, learn: bool = False
) -> tuple[PlanExplanation, ...]:
    """The plan for inference and, unless `wrt` is None or nothing has a gradient, for training.

    `measure` times the alternatives; `learn` keeps what was measured (`gnnjit.cost.learn`).
    """
    if learn and not measure:
        raise LayerError("explain: learn=True learns from what measure=True measures; give both")
    if measure and is_traced(staged.graph, staged.traced.operands, jnp.zeros(())):
        own = staged.definition
        raise LayerError(
            f"{own.where}: {own.name}: explain(measure=True) needs to run the layer, and it is "
            "only traced here. Call it outside of jax.jit, jax.grad and the like, "
            "and with a function that is not compiled by jax.jit itself"
        )
    asked = [Asked.of(staged, None)]
    if wrt is not None and is_differentiable(training := Asked.of(staged, wrt)):
        asked.append(training)
    found = tuple(_explained(a, wrt if a.moving else None, measure) for a in asked)
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
    """Whether something moves, and some output is a floating-point number."""
    return any(asked.moving or ()) and any(is_float(o) for o in asked.call.program.outputs)


def _explained(asked: Asked, wrt: Wrt | None, measure: bool) -> PlanExplanation:
    plan = asked.plan()
    program, padded = asked.call.program, asked.call.padded
    every = [
        Alternative(
            a.choices, in_words(program, padded, a.choices), a.work, a.seconds,
            a.peak if 0 < a.peak < math.inf else None, a is plan.chosen, a.measured,
        )
        for a in sorted((plan.chosen, *plan.others), key=lambda a: a.seconds)
    ]  # fmt: skip
    if measure:
        shown = [a.choices for a in _shown(every)]
        times = dict(zip(shown, asked.measured(shown), strict=True))
        every = [dataclasses.replace(a, measured=times.get(a.choices, a.measured)) for a in every]
    model = current(jax.default_backend())
    kinds = {} if plan.why else model.by_kind(plan.chosen.work)
    direction = "training" if wrt else "inference"
    return PlanExplanation(
        direction, wrt, plan.program, tuple(every), kinds, model.source, plan.why,
        by_clock=plan.chosen.measured is not None,
    )  # fmt: skip


def _shown(every: Sequence[Alternative]) -> list[Alternative]:
    """The fastest, and the one that runs (a budget may have taken a slow one)."""
    return [a for i, a in enumerate(every) if i < SHOWN or a.chosen]


def in_words(program: Program, padded: bool, choices: Choices) -> tuple[str, ...]:
    """What `choices` say, for each decision that `program`, as written, leaves."""
    before = _before(program, padded, choices.on_edges)
    words = [
        f"{' '.join(filter(None, [site.name, site.kind]))} ({site.location}): "
        f"{order or site.written}"
        for site, order in itertools.zip_longest(movable_matmuls(before), choices.orders)
    ]
    if scores(before):
        words.append("scores as products" if choices.products else "scores as sums")
    if choices.stored:
        middle = dataclasses.replace(choices, stored=(), split=False, limit=None)
        every = storable_values(_middle(program, padded, middle))
        words += [f"stores {every[i].description}" for i in choices.stored]
    if choices.split:
        words.append("one traversal for each reduction")
    if choices.on_edges:
        ends = sorted(choices.on_edges, key=list(_PLURAL).index)
        words.append(f"work of {' and '.join(_PLURAL[s] for s in ends)} on the edges")
    if choices.limit is not None:
        words.append(f"edges in chunks of {choices.limit:,} numbers")
    return tuple(words)


@cached(maxsize=64)
def _before(program: Program, padded: bool, on_edges: frozenset[Space]) -> Program:
    return run(program, layer_prefix(padded, on_edges))


@cached(maxsize=64)
def _middle(program: Program, padded: bool, choices: Choices) -> Program:
    return run(_before(program, padded, choices.on_edges), layer_middle(choices))


def duration(amount: float) -> str:
    """Seconds for people."""
    scale, unit = next(
        (pair for pair in ((1.0, "s"), (1e-3, "ms")) if amount >= pair[0]), (1e-6, "us")
    )
    number = amount / scale
    digits = 0 if number >= 100 or number == 0 else 1 if number >= 10 else 2
    return f"{number:.{digits}f} {unit}"
