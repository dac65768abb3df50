"""Which program runs a layer: every choice of the compiler for one call, made together.

The alternatives of one call are the products of a few decisions: on which side of the sums each
matrix is applied (GraphTensor V-A), which edge values are stored for the backward (ROC 4.2 chooses
between keeping and recomputing), whether traversals are shared, whether work stays on the edges,
how large the chunks of an edge network are. Each is a program; the sketch of it, with its gradient
if one is taken, goes to the cost model. The fastest that fits the memory budget runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from gnnjit.cost.current import current
from gnnjit.cost.machine import Machine, machine_of
from gnnjit.cost.memory import scratch_of
from gnnjit.cost.model import CostModel, Work
from gnnjit.cost.operations import UnknownOperation
from gnnjit.cost.sketch import sketch
from gnnjit.cost.work import work_of
from gnnjit.errors import PlanError
from gnnjit.ir.large_products import is_large_product, is_worth_storing
from gnnjit.ir.program import Aggregate, Program
from gnnjit.ir.space import Space
from gnnjit.passes.pipeline import AS_WRITTEN, NOWHERE, Choices
from gnnjit.passes.reorder_aggregate_combine import movable_matmuls
from gnnjit.passes.scores_as_products import scores
from gnnjit.passes.store_edge_values import StorableValue, storable_values
from gnnjit.planner import timings
from gnnjit.planner.candidate import Candidate, is_available, peak
from gnnjit.planner.plan import Alternative, Plan, Problem
from gnnjit.planner.programs import middle, optimise, prefix, weighed
from gnnjit.system import autotuning
from gnnjit.system.contexts import Context, cached
from gnnjit.system.memory_budget import human

LIMITS = (1 << 18, 1 << 16, 1 << 14, 1 << 12)
"""Scalars of one chunk of edges, tried where memory is limited; the lowering's own is larger."""

STEP_SECONDS = 20e-6
"""A step of a loop over chunks, beside its work, on a CPU; only smaller chunks than usual count
it. (128 features: 250 steps of 32 edges took 5 ms longer than one of all 8000.)"""

CROWDED = 2
"""Vertices for each edge from which on work on the edges is looked at."""

EXHAUSTIVE = 16
"""Alternatives of one call that are all looked at; of more, one decision is improved at a time."""

_OTHER = {"aggregate-first": "combine-first", "combine-first": "aggregate-first"}

_forced: Context[Choices | None] = Context(None)


@contextlib.contextmanager
def force(choices: Choices) -> Iterator[None]:
    """Within it, layers run with these choices: to test and to measure alternatives."""
    with _forced(choices):
        yield


@cached(maxsize=4096)
def _options(
    program: Program, padded: bool, on_edges: frozenset[Space], slots: tuple[int, ...]
) -> dict[str, tuple[Any, ...]]:
    """Per decision about the vertices, the values to try; the first is what the user wrote."""
    before = prefix(program, padded, on_edges)
    out: dict[str, tuple[Any, ...]] = {
        "on_edges": (on_edges,),
        "aliased_inputs": (_aliased_inputs(program, slots),),
    }
    for i, site in enumerate(movable_matmuls(before)):
        out[f"order {i}"] = (site.written, _OTHER[site.written])
    return out


def plan(problem: Problem) -> Plan:
    """The fastest alternative that fits the budget; the same for equal problems and models.

    Raises:
        PlanError: none fits; the message names the smallest budget that would do.
    """
    machine, model = machine_of(problem.platform), current(problem.platform)
    return _plan(problem, machine, model)


def weigh(problem: Problem, model: CostModel | None = None) -> tuple[Alternative, ...]:
    """The alternatives of a call, the fastest first, by `model` or the current one.

    Raises:
        UnknownOperation: there is no figure for an operation.
    """
    machine = machine_of(problem.platform)
    return tuple(_Planner(problem, machine, model or current(problem.platform)).ranked())


@cached(maxsize=8192)
def _plan(problem: Problem, machine: Machine, model: CostModel) -> Plan:
    planner, forced = _Planner(problem, machine, model, autotuning.stretches()), _forced.value
    try:
        every, why = planner.fitting(forced), ""
    except UnknownOperation as error:
        every, why = planner.unpredicted(forced), str(error)
    program = optimise(problem.program, problem.padded, every[0].choices)
    return Plan(program, every[0], tuple(every[1:]), why)


class _Planner:
    def __init__(self, problem: Problem, machine: Machine, model: CostModel, stretches: int = 0):
        self.problem, self.machine, self.model = problem, machine, model
        self.stretches = stretches
        self.seen: dict[Choices, Alternative] = {}

    def alternative(self, choices: Choices) -> Alternative:
        if choices not in self.seen:
            p = self.problem
            online = p.platform == "cuda"
            program = weighed(p.program, p.padded, choices, online=online)
            made = sketch(program, p.slots, p.sizes, p.differentiated, online=online)
            work = work_of(made, self.machine)
            seconds, peak, steps = self.model.seconds(work), 0.0, 0
            if p.budget is not None:
                scratch = scratch_of(made, self.machine, choices.limit, len(program.outputs))
                peak, steps = p.least + scratch.bytes + self.spread_bytes(program), scratch.steps
                seconds += 0.0 if choices.limit is None else STEP_SECONDS * steps
            self.seen[choices] = Alternative(choices, work, seconds, peak, steps)
        return self.seen[choices]

    def spread_bytes(self, program: Program) -> int:
        """Bytes of results brought to the edges or masked there, and of their cotangents."""
        call_shapes = self.problem.call_shapes
        if call_shapes is None:
            return 0
        each = [
            math.prod(atom.shape) * atom.dtype.itemsize
            for atom, space in zip(program.outputs, call_shapes.output_spaces, strict=True)
            if space in (Space.EDGE, Space.SRC)
            and (self.problem.padded or atom.space is not Space.EDGE)
        ]
        return 2 * self.problem.sizes.edges * sum(each)

    def fitting(self, forced: Choices | None) -> list[Alternative]:
        """What to run, and then what else was looked at."""
        if forced is not None:
            return [self.alternative(forced)]
        every = self.ranked()
        if self.problem.budget is None:
            candidate = self.candidate if self.stretches and self.is_compiled_here() else None
            return timings.by_time(self.problem, every, candidate, self.stretches)
        return self.within(self.ladder(every))

    def unpredicted(self, forced: Choices | None) -> list[Alternative]:
        """As `fitting`, where an operation has no figure in the cost model."""
        as_written = Alternative(forced or AS_WRITTEN, Work(), 0.0, math.inf)
        if self.problem.budget is None or forced is not None:
            return [as_written]
        smaller = [dataclasses.replace(AS_WRITTEN, limit=n) for n in LIMITS]
        return self.within([as_written, *(Alternative(c, Work(), 0.0, math.inf) for c in smaller)])

    def ranked(self) -> list[Alternative]:
        """What was looked at, the fastest first."""
        p = self.problem
        for on_edges in self.places():
            self.search(_options(p.program, p.padded, on_edges, p.slots))
        least = self.fastest()
        before = middle(p.program, p.padded, least.choices)
        if any(s.size > 1 for s in scores(before)):  # one head is always a product
            self.alternative(dataclasses.replace(least.choices, products=True))
            least = self.fastest()
        if p.differentiated:
            stored = storable_values(middle(p.program, p.padded, least.choices))
            # Without a budget, memory stays that of the vertices, but for what large matmuls give.
            worth = [i for i, s in enumerate(stored) if p.budget is not None or _is_large(s)]
            for picked in _subsets(worth):
                self.alternative(dataclasses.replace(least.choices, stored=picked))
        if self.shares_traversals(least.choices):
            self.alternative(dataclasses.replace(least.choices, split=True))
        return sorted(self.seen.values(), key=self.rank)

    def rank(self, a: Alternative) -> tuple[float, int]:
        """By time. What no gradient that is asked for reads is not written: where no budget is set,
        it may stand there to be kept, for derivatives of higher order."""
        return a.seconds, 0 if self.problem.budget is not None else -len(a.choices.stored)

    def is_compiled_here(self) -> bool:
        """Whether plans can be compiled alone, to see what they need."""
        return self.problem.call_shapes is not None and is_available(self.problem.platform)

    def candidate(self, a: Alternative) -> Candidate:
        p = self.problem
        assert p.call_shapes is not None
        program = optimise(p.program, p.padded, a.choices)
        return Candidate(program, a.choices.limit, p.slots, p.differentiated, p.call_shapes)

    def fastest(self) -> Alternative:
        return min(self.seen.values(), key=lambda a: a.seconds)

    def shares_traversals(self, choices: Choices) -> bool:
        """Whether reductions share a traversal, each of which could have one of its own."""
        p = self.problem
        program = weighed(p.program, p.padded, choices, online=p.platform == "cuda")
        ops = [e.op for e in program.equations if isinstance(e.op, Aggregate)]
        return any(sum(r is not None for r in op.reductions) > 1 for op in ops)

    def ladder(self, every: Sequence[Alternative]) -> list[Alternative]:
        """By time: each alternative that should need less memory than all faster ones. Smaller
        chunks of edges, and arrays of edges that no traversal may write for another, are
        alternatives too."""
        network = any(map(is_large_product, self.problem.program.equations))
        smaller = [
            self.alternative(dataclasses.replace(a.choices, limit=n))
            for a in every
            for n in LIMITS
            if a.steps or network
        ]
        found: list[Alternative] = []
        for a in sorted([*every, *smaller], key=lambda a: a.seconds):
            if not found or a.peak < found[-1].peak:
                found.append(a)
        return found

    def within(self, ladder: Sequence[Alternative]) -> list[Alternative]:
        """The first of `ladder` that fits the budget, then the others. What may fit or not is
        compiled to see."""
        p = self.problem
        assert p.budget is not None
        for a in ladder:
            if a.peak <= p.budget or (p.least <= p.budget and self.need(a) <= p.budget):
                return [a, *(b for b in ladder if b is not a)]
        smallest = min(map(self.need, ladder))
        raise PlanError(_too_small(p.budget, smallest))

    def need(self, a: Alternative) -> float:
        """Bytes at the peak: measured where that can be done here, else the bound."""
        found = peak(self.candidate(a)) if self.is_compiled_here() else None
        return a.peak if found is None else found

    def places(self) -> list[frozenset[Space]]:
        """Vertex spaces whose work may be done on the edges: those with far more elements."""
        sizes = self.problem.sizes
        few = frozenset(s for s in (Space.SRC, Space.DST) if CROWDED * sizes.edges <= sizes[s])
        return [NOWHERE, few] if few else [NOWHERE]

    def search(self, options: dict[str, tuple[Any, ...]]) -> None:
        """Look at all combinations; of many, at one decision at a time until none improves."""
        if math.prod(map(len, options.values())) <= EXHAUSTIVE:
            for picked in itertools.product(*options.values()):
                self.alternative(_choices(dict(zip(options, picked, strict=True))))
            return
        picked = {name: values[0] for name, values in options.items()}
        best = self.alternative(_choices(picked))
        improved = True
        while improved:
            improved = False
            for name, value in [(n, v) for n, values in options.items() for v in values]:
                other = self.alternative(_choices({**picked, name: value}))
                if other.seconds < best.seconds:
                    best, picked, improved = other, {**picked, name: value}, True


def _is_large(value: StorableValue) -> bool:
    """Whether it is stored without a budget."""
    return is_worth_storing(value.value.size, value.multiplications)


def _too_small(budget: int, smallest: float) -> str:
    if math.isinf(smallest):
        return (
            f"whether a plan fits the memory budget of {_both(budget)} cannot be said here: an "
            "operation of it is unknown to the cost model, and its platform is not this process's. "
            "Compile it on the platform itself"
        )
    return (
        f"no plan fits the memory budget of {_both(budget)}; the smallest that one fits is "
        f"{_both(smallest)}. Give memory_budget={math.ceil(smallest)} or more, or a smaller part "
        "of the graph at a time"
    )


def _both(count: float) -> str:
    return f"{math.ceil(count):,} bytes ({human(count)})"


def _choices(picked: dict[str, Any]) -> Choices:
    orders = tuple(v for k, v in picked.items() if k.startswith("order"))
    rest = {k: v for k, v in picked.items() if not k.startswith("order")}
    return Choices(orders, **rest)


def _aliased_inputs(program: Program, slots: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The pairs of a source input and a destination input that are the same array."""
    spaces = [v.space for v in program.inputs]
    sources = [i for i, s in enumerate(spaces) if s is Space.SRC]
    return tuple(
        (i, j)
        for i in sources
        for j, space in enumerate(spaces)
        if space is Space.DST and slots[i] == slots[j]
    )


def _subsets(numbers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The subsets but for the empty one."""
    for size in range(1, len(numbers) + 1):
        yield from itertools.combinations(numbers, size)
