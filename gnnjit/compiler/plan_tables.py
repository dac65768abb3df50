"""What the planner weighed for one call, as a table for people: predicted and measured."""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

from gnnjit.cost.model import CostModel, Work
from gnnjit.ir.program import Program
from gnnjit.ir.space import Space
from gnnjit.passes.pipeline import Choices
from gnnjit.passes.reorder_aggregate_combine import movable_matmuls
from gnnjit.passes.scores_as_products import scores
from gnnjit.passes.store_edge_values import storable_values
from gnnjit.planner.plan import Plan, Problem
from gnnjit.planner.programs import middle, prefix
from gnnjit.system.memory_budget import human

Wrt = Literal["all", "params"]

SHOWN = 16
"""A table shows, and measures, at most so many alternatives: those predicted to be the fastest."""

FAULTS = 0.1
"""The table mentions new memory where it takes more than this share of a call."""

_PLURAL = {Space.SRC: "sources", Space.DST: "destinations"}


@dataclasses.dataclass(frozen=True)
class TableRow:
    """An alternative as people read it.

    Attributes:
        choices: what its program is made with; `gnnjit.planner.search.force(choices)` runs it.
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
    alternatives: tuple[TableRow, ...]
    by_kind: dict[str, float]
    model: str
    why: str = ""
    by_clock: bool = False

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON can hold it, in seconds and bytes."""
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
        """What is planned: inference, or training and its gradients."""
        of = {"all": ", gradients of all inputs", "params": ", gradients of the parameters"}
        return f"plan for {self.direction}{of[self.wrt] if self.wrt else ''}"

    @property
    def chosen(self) -> TableRow:
        """The alternative that runs."""
        return next(a for a in self.alternatives if a.chosen)

    def table(self) -> str:
        """One line for each alternative; `*` marks the one that runs."""
        rows = shown(self.alternatives)
        columns = {"": ["*" if a.chosen else "" for a in rows]}
        if not self.why:
            columns["predicted"] = [duration(a.predicted) for a in rows]
        if any(a.measured is not None for a in rows):
            columns["measured"] = ["" if a.measured is None else duration(a.measured)
                                   for a in rows]  # fmt: skip
        if any(a.peak is not None for a in rows):
            columns["peak"] = ["" if a.peak is None else human(math.ceil(a.peak)) for a in rows]
        widths = {name: max(len(name), *map(len, x)) for name, x in columns.items()}
        cells = [list(columns), *map(list, zip(*columns.values(), strict=True))]
        plain = "as written" if len(self.alternatives) > 1 else "nothing to choose"
        texts = ["choices", *("; ".join(a.words) or plain for a in rows)]
        lines = [
            "  ".join([*(c.rjust(w) for c, w in zip(row, widths.values(), strict=True)), text])
            for row, text in zip(cells, texts, strict=True)
        ]
        left = len(self.alternatives) - len(rows)
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


def explained(problem: Problem, plan: Plan, wrt: Wrt | None, model: CostModel) -> PlanExplanation:
    """A plan that was made for `problem` by `model`; `wrt` as in `PlanExplanation`."""
    rows = [
        TableRow(
            a.choices, in_words(problem.program, problem.padded, a.choices), a.work, a.seconds,
            a.peak if 0 < a.peak < math.inf else None, a is plan.chosen, a.measured,
        )
        for a in sorted(plan.every, key=lambda a: a.seconds)
    ]  # fmt: skip
    return PlanExplanation(
        "inference" if problem.differentiated is None else "training",
        wrt,
        plan.program,
        tuple(rows),
        {} if plan.why else model.by_kind(plan.chosen.work),
        model.source,
        plan.why,
        by_clock=plan.chosen.measured is not None,
    )


def shown(every: Sequence[TableRow]) -> list[TableRow]:
    """The fastest, and the one that runs (a budget may have taken a slow one)."""
    return [a for i, a in enumerate(every) if i < SHOWN or a.chosen]


def in_words(program: Program, padded: bool, choices: Choices) -> tuple[str, ...]:
    """What `choices` say, for each decision that `program`, as written, leaves."""
    before = prefix(program, padded, choices.on_edges)
    words = [
        f"{' '.join(filter(None, [site.name, site.kind]))} ({site.location}): "
        f"{order or site.written}"
        for site, order in itertools.zip_longest(movable_matmuls(before), choices.orders)
    ]
    if scores(before):
        words.append("scores as products" if choices.products else "scores as sums")
    if choices.stored:
        every = storable_values(middle(program, padded, choices))
        words += [f"stores {every[i].description}" for i in choices.stored]
    if choices.split:
        words.append("one traversal for each reduction")
    if choices.on_edges:
        ends = sorted(choices.on_edges, key=list(_PLURAL).index)
        words.append(f"work of {' and '.join(_PLURAL[s] for s in ends)} on the edges")
    if choices.limit is not None:
        words.append(f"edges in chunks of {choices.limit:,} numbers")
    return tuple(words)


def duration(amount: float) -> str:
    """Seconds for people."""
    scale, unit = next(
        (pair for pair in ((1.0, "s"), (1e-3, "ms")) if amount >= pair[0]), (1e-6, "us")
    )
    number = amount / scale
    digits = 0 if number >= 100 or number == 0 else 1 if number >= 10 else 2
    return f"{number:.{digits}f} {unit}"
