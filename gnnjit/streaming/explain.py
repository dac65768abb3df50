"""What a streamed function does: its grid, its sweeps, what moves, and what ran when."""

from __future__ import annotations

import collections
import dataclasses
import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gnnjit.frontend.trace_arrays import Array, Rows
from gnnjit.shapes import HostArray
from gnnjit.streaming import plots
from gnnjit.streaming.grid.edge_grid import heat_map
from gnnjit.streaming.memory.layout import Layout
from gnnjit.streaming.program.steps import Executables, Order, Step, Tensor
from gnnjit.streaming.program.sweeps import Gather, Sweep
from gnnjit.streaming.runtime.timeline import Timeline, timeline
from gnnjit.streaming.runtime.traffic import Traffic, loaded_rows, planned_traffic, refined_order
from gnnjit.system.memory_budget import human

CAUSES = ("own rows", "other rows", "selected rows", "edges", "stored", "held")
"""Why bytes move, as `Traffic.moved` has them."""

MOST_REFINED = 32
"""Blocks of a grid whose order is improved for the text: it takes time with their number cubed."""

SHOWN = 12
"""Jobs of a block that are named."""


@dataclasses.dataclass(frozen=True)
class SweepExplanation:
    """One pass over the blocks.

    Attributes:
        by: "columns" of the grid or its "rows"; "blocks" where no edges are looked at; "chunks"
            for row-wise work on edges.
        loads: arrays of which each block reads its own rows.
        others: arrays that the aggregates read at the other end of the edges.
        edges: arrays of edges that each chunk reads.
        aggregates: what is computed over the edges.
        stores: arrays that are written for later sweeps, or are results.
        moved: bytes an epoch by cause, as planned; what is held does not move again.
    """

    by: str
    loads: tuple[str, ...]
    others: tuple[str, ...]
    edges: tuple[str, ...]
    aggregates: tuple[str, ...]
    stores: tuple[str, ...]
    moved: Mapping[str, int]

    def __str__(self) -> str:
        head = "over blocks, without edges" if self.by == "blocks" else f"by {self.by} of the grid"
        parts = {
            "own rows": self.loads,
            "other end": self.others,
            "on edges": self.edges,
            "computes": self.aggregates,
            "stores": self.stores,
        }
        lines = [f"  {what:<10} {', '.join(found)}" for what, found in parts.items() if found]
        total = sum(self.moved.values())
        by_cause = [f"{what} {human(self.moved[what])}" for what in CAUSES if self.moved.get(what)]
        lines.append(f"  {'moves':<10} {', '.join([human(total), *by_cause])}")
        return "\n".join([head, *lines])


@dataclasses.dataclass(frozen=True)
class MemoryExplanation:
    """The memory plan.

    Attributes:
        capacity, peak: bytes that there are, and the most that is in use.
        method: how the evictions were chosen.
        held: what stays on the device between calls, and its bytes, by what it is.
        selected, chunks: operations on chunks that read only the used rows, and all of them.
        planned: bytes of an epoch by cause.
        measured: bytes of the last run by cause; None before any. in_place: those not copied.
    """

    capacity: int
    peak: int
    method: str
    held: Mapping[str, int]
    selected: int
    chunks: int
    planned: Mapping[str, int]
    measured: Mapping[str, int] | None
    zero_copy: int = 0

    def __str__(self) -> str:
        how = f"least traffic for the {self.method}" if "order" in self.method else self.method
        lines = [f"at most {human(self.peak)} of {human(self.capacity)} on the device ({how})"]
        held = [f"{what} {human(size)}" for what, size in self.held.items()]
        lines.append(f"held between calls: {', '.join(held) or 'nothing'}")
        lines.append(f"{self.selected} of {self.chunks} chunks read only the rows in use")
        columns = {"planned": self.planned}
        if self.measured is not None:
            columns["last run"] = self.measured
        rows = [("bytes moved", *columns)]
        for what in CAUSES:
            if any(column.get(what) for column in columns.values()):
                rows.append((what, *(human(c.get(what, 0)) for c in columns.values())))
        rows.append(("all", *(human(sum(c.values())) for c in columns.values())))
        lines += [f"{name:<14}" + "".join(f"{x:>12}" for x in rest) for name, *rest in rows]
        if self.zero_copy:
            lines.append(f"read where the store has them: {human(self.zero_copy)}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Simulated:
    """Operations on two engines with double buffering, from the measured times.

    Attributes:
        name: of the sweep, or of the block.
        transfer, compute: seconds of all loads, and of all operations.
        given: in the order in which they ran.
        refined: with the chunks of each block in the order that `stream(refined=True)` takes.
    """

    name: str
    transfer: float
    compute: float
    given: Timeline
    refined: Timeline

    def hidden(self, found: Timeline) -> str:
        """The share of the loads that a computation hides."""
        return f"{found.overlap:.0%}" if self.transfer else "-"


@dataclasses.dataclass(frozen=True)
class RunTimes:
    """Where the time of the last run went.

    Attributes:
        seconds, waited: of all of it, and of waiting for what was being loaded.
        measured: seconds of each sweep.
        sweeps: the same, simulated.
        slowest: the block that takes longest, simulated.
    """

    seconds: float
    waited: float
    measured: tuple[float, ...]
    sweeps: tuple[Simulated, ...]
    slowest: Simulated

    def __str__(self) -> str:
        head = (
            "sweep",
            "measured",
            "loads",
            "computes",
            "simulated",
            "hidden",
            "refined",
            "hidden",
        )
        rows = [
            (s.name, took, s.transfer, s.compute, s.given.total, s.hidden(s.given),
             s.refined.total, s.hidden(s.refined))
            for s, took in itertools.zip_longest(self.sweeps, self.measured, fillvalue=0.0)
            if isinstance(s, Simulated)
        ]  # fmt: skip
        lines = [f"{self.seconds:.3g} s, {self.waited:.3g} s of them waiting for loads"]
        for name, *rest in (head, *rows):
            cells = [x if isinstance(x, str) else f"{x:.3g} s" for x in rest]
            lines.append(f"{name:<7}" + "".join(f"{x:>11}" for x in cells))
        lines.append(f"the slowest block, {self.slowest.name}")
        lines += [str(self.slowest.given), _order(self.slowest.given)]
        if self.slowest.refined != self.slowest.given:
            lines += ["with the order improved", str(self.slowest.refined)]
            lines.append(_order(self.slowest.refined))
        return "\n".join(lines)


def _order(found: Timeline) -> str:
    names = [job.name for job in found.jobs]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "in the order " + " ".join(names[:SHOWN]) + more


@dataclasses.dataclass(frozen=True, eq=False)
class GridExplanation:
    """How a function is streamed. Print it, or leave it last in a notebook cell.

    Attributes:
        bounds, counts: of the vertex chunks, and edges of each chunk.
        slices: of each block; `own`: the blocks of this process, which all else is about.
        sweeps: in order.
        memory: the plan.
        times: of the last run; None before any.
    """

    bounds: HostArray
    counts: HostArray
    slices: int
    own: range
    sweeps: tuple[SweepExplanation, ...]
    memory: MemoryExplanation
    times: RunTimes | None

    def sections(self) -> list[tuple[str, str]]:
        """Title and text of each part, in order."""
        sweeps = "\n".join(f"{k} {sweep}" for k, sweep in enumerate(self.sweeps))
        times = "nothing has run yet" if self.times is None else str(self.times)
        return [
            ("grid", self._grid()),
            ("sweeps", sweeps or "none"),
            ("memory", str(self.memory)),
            ("time", times),
        ]

    def _grid(self) -> str:
        rows = int(np.diff(self.bounds).max())
        slices = "" if self.slices == 1 else f", each in {self.slices} slices"
        uneven = [
            f"{total.max() / total.mean():.2f}" if total.any() else "1.00"
            for total in (self.counts.sum(axis=0), self.counts.sum(axis=1))
        ]
        return (
            f"{self.bounds[-1]:,} vertices in {len(self.counts)} blocks of up to {rows:,}{slices}\n"
            f"{self._share()}"
            f"edges of the largest column and row, over the mean: {', '.join(uneven)}\n"
            f"{heat_map(self.counts)}"
        )

    def _share(self) -> str:
        if len(self.own) == len(self.counts):
            return ""
        which = f"{self.own.start} to {self.own.stop - 1}" if self.own else "none"
        return f"blocks of this process, which the rest is about: {which}\n"

    def __str__(self) -> str:
        return "\n\n".join(f"--- {title}\n{text}" for title, text in self.sections())

    def _repr_html_(self) -> str:
        return "\n".join(
            f"<details open><summary>{title}</summary><pre>{html.escape(text)}</pre></details>"
            for title, text in self.sections()
        )

    def plot(self, axes: Sequence[Any] | None = None) -> Any:
        """The edges of each chunk, and the timeline of the slowest block.

        Args:
            axes: two of matplotlib's, to draw into; None for a new figure.

        Returns:
            The figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        if self.times is None:
            return plots.plot(self.counts, "", {}, axes)
        slowest = self.times.slowest
        shown = {"given": slowest.given}
        if slowest.refined != slowest.given:
            shown["refined"] = slowest.refined
        return plots.plot(self.counts, slowest.name, shown, axes)


def explain(layout: Layout, executables: Executables, traffic: Traffic | None) -> GridExplanation:
    """What `layout` decided for a function in `executables`, and how a run went (`traffic`)."""
    moved = planned_traffic(layout, executables)
    names = _Names(executables)
    chunks = [step.name for step in layout.steps if step.kind == "chunk"]
    memory = MemoryExplanation(
        layout.capacity,
        layout.peak_bytes,
        layout.plan.method,
        _held(layout, executables),
        len(layout.selected),
        len(chunks),
        sum(moved, collections.Counter()),
        *((None, 0) if traffic is None else (dict(traffic.moved), traffic.zero_copy)),
    )
    sweeps = tuple(_sweep(s, names, m) for s, m in zip(executables.sweeps, moved, strict=True))
    times = _times(layout, traffic) if traffic is not None and layout.steps else None
    grid = layout.blocks.bounds, layout.blocks.counts, layout.slices, layout.own
    return GridExplanation(*grid, sweeps, memory, times)


class _Names:
    """Letters for arrays, in the order in which they are met; the type where it is met first."""

    def __init__(self, executables: Executables) -> None:
        self._inputs = set(executables.streamed.function.inputs)
        self._found: dict[Array, str] = {}

    def __call__(self, arrays: Iterable[Any]) -> tuple[str, ...]:
        return tuple(map(self._one, dict.fromkeys(arrays)))

    def _one(self, x: Array) -> str:
        if x in self._found:
            return self._found[x]
        name, number = "", len(self._found)
        while number >= 0:
            name, number = chr(ord("a") + number % 26) + name, number // 26 - 1
        self._found[x] = name
        given = " (given)" if x in self._inputs else ""
        return f"{name}: {x}{given}"


def _sweep(sweep: Sweep, names: _Names, moved: Mapping[str, int]) -> SweepExplanation:
    by = {"dst": "columns", "src": "rows"}.get(sweep.side or "", "blocks")
    others = [
        x for g in sweep.gathers for _, x in g.operands(g.other) if isinstance(x, Array) and x.rows
    ]
    loads, far, edges = names(sweep.loads), names(others), names(sweep.edge_loads)
    aggregates = tuple(_aggregate(g, names) for g in sweep.gathers)
    return SweepExplanation(
        "chunks" if sweep.rows is Rows.EDGE else by,
        loads,
        far,
        edges,
        aggregates,
        names(sweep.stores),
        dict(moved),
    )


def _aggregate(gather: Gather, names: _Names) -> str:
    kinds = dict.fromkeys(r.kind if r else "on the edges" for r in gather.op.reductions)
    return f"{' and '.join(kinds)} ({gather.where}) -> {', '.join(names(gather.outputs))}"


def _held(layout: Layout, executables: Executables) -> dict[str, int]:
    """Bytes of what stays, by what it is; those of edges are the rest."""
    rows = sum(
        loaded_rows(layout, t) * t.array.row_bytes for t in layout.held if isinstance(t, Tensor)
    )
    found = {"rows of arguments": rows, "edges": layout.held_bytes - rows}
    return {what: size for what, size in found.items() if size}


# --------------------------------------------------------------------------------------- times


def _times(layout: Layout, traffic: Traffic) -> RunTimes:
    sweeps: dict[str, list[Step]] = {}
    blocks: dict[str, list[Step]] = {}
    for step in layout.steps:
        sweeps.setdefault(f"{step.sweep}", []).append(step)
        blocks.setdefault(f"{step.block} of sweep {step.sweep}", []).append(step)
    small = layout.blocks.num_parts <= MOST_REFINED
    simulated = _Simulator(traffic, refined_order(layout, traffic) if small else None)
    slowest = max(blocks, key=lambda name: simulated.given(blocks[name]).total)
    return RunTimes(
        traffic.seconds,
        traffic.waited,
        tuple(traffic.sweeps),
        tuple(simulated(name, steps) for name, steps in sweeps.items()),
        simulated(slowest, blocks[slowest]),
    )


class _Simulator:
    """The timelines of some operations, from measured times."""

    def __init__(self, traffic: Traffic, order: Order | None) -> None:
        self._traffic, self._order = traffic, order

    def __call__(self, name: str, steps: Sequence[Step]) -> Simulated:
        jobs = [self._traffic.job(s) for s in steps]
        before, after = self.given(steps), self.given(self._improved(steps))
        return Simulated(
            name,
            sum(j.transfer for j in jobs),
            sum(j.compute for j in jobs),
            before,
            # Each block is improved by itself, which may cost more at its ends than it saves.
            after if after.total < before.total else before,
        )

    def given(self, steps: Sequence[Step]) -> Timeline:
        return timeline([self._traffic.job(s) for s in steps])

    def _improved(self, steps: Sequence[Step]) -> list[Step]:
        """With the chunks of each stage in order."""
        if self._order is None:
            return [*steps]
        found: list[Step] = []
        for (kind, sweep, _, block), run in itertools.groupby(
            steps, lambda s: (s.kind, s.sweep, s.stage, s.block)
        ):
            some = list(run)
            if kind != "block":
                rank = {other: k for k, other in enumerate(self._order(sweep, block))}
                some.sort(key=lambda s: rank[s.other])
            found += some
        return found
