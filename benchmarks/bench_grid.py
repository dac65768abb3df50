"""What does it cost to train a graph out of core, and what do the parts of the edge grid bring?

    python benchmarks/bench_grid.py --smoke
    python benchmarks/bench_grid.py --json benchmarks/results/grid.jsonl
    python benchmarks/bench_grid.py --questions growth --sizes 50000,100000

Growth, ablation, memory plans, order, budget: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from common import measure
from grid import child
from grid.plans import order_rows, plan_rows
from grid.training import (
    MODELS,
    InMemory,
    SkippedError,
    Task,
    by_class,
    community_task,
    model,
    power_law_task,
    web_task,
)

import gnnjit
from gnnjit.lower import choose
from gnnjit.store import DiskStore, HostStore
from gnnjit.streaming.stream import stream

DEGREE = 16
SIZES = (50_000, 100_000, 200_000, 500_000)
HEAVY = {"ggnn": (20_000, 50_000, 100_000), "edgeconv": (50_000, 100_000, 200_000)}
"""Models with much arithmetic for each byte, and the sizes at which they are measured."""
SHARE = 4
"""The budget is the need in memory over this."""
BAR = 1.13
COPIED = 64 << 20
"""Bytes that are copied to see how fast a core does that."""
Rows = Sequence[Any]
ANYHOW = 384 << 20
"""Bytes that a process takes whatever it trains, about: compiling and the like."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is measured, and how often."""

    models: tuple[str, ...] = ("gcn", "gat")
    heavy: tuple[str, ...] = tuple(HEAVY)
    """What is measured besides in `growth`."""
    sizes: tuple[int, ...] = SIZES
    features: int = 128
    repeats: int = 3
    passes: int = 2
    fill: float = 0.02
    parts: tuple[int, ...] = (2, 3, 4, 8)
    points: int = 5
    small: int = 100_000
    """Vertices where one graph is enough."""
    graphs: tuple[str, ...] = ("power law", "by class", "web-NotreDame")
    shares_memory: tuple[int, ...] = (2, 4, 8)
    """The budgets of a process are the need in memory over these, and what it takes anyhow."""


SMOKE = Setting(
    models=("gcn",), heavy=(), sizes=(300,), features=8, repeats=1, passes=1, fill=0.0, parts=(2,),
    points=2, small=300, graphs=("power law",), shares_memory=(2,),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class GrowthRow:
    """Seconds of an epoch. loads, computes: of the last one, all together; in_place: of what moved,
    what was not copied; hideable: whether to copy all that moved would last at most 13 % of an
    epoch in memory: a CPU's copies take the cores that compute."""

    model: str
    vertices: int
    edges: int
    where: str
    seconds: float
    ratio: float
    need_mib: float
    budget_mib: float
    layout: str
    moved_mib: float
    in_place_mib: float
    loads_s: float
    computes_s: float
    waited_s: float
    hideable: bool | None


@dataclasses.dataclass(frozen=True)
class AblationRow:
    """An epoch with one more part of the grid switched on; speedup: over the first row."""

    graph: str
    with_: str
    seconds: float
    speedup: float
    moved_mib: float
    selected: str
    layout: str


@dataclasses.dataclass(frozen=True)
class BudgetRow:
    """Resident memory of a process with a budget: before it began, and at the most while it
    compiled and built the grid, and while it ran. share: of the budget, of the larger of these."""

    model: str
    vertices: int
    budget_mib: float
    before_mib: float
    preparing_mib: float
    running_mib: float
    share: float
    layout: str
    seconds: float


def growth(setting: Setting) -> Iterator[Any]:
    copied = measure.bandwidth(1, COPIED) / 2  # it counts what is read and what is written
    names = {size: [*setting.models] for size in setting.sizes}
    for name in setting.heavy:
        for size in HEAVY[name]:
            names.setdefault(size, []).append(name)
    for size in sorted(names):
        task = community_task(size, DEGREE, setting.features).by_locality()
        points = []
        with contextlib.ExitStack() as stack:
            for name in names[size]:
                points += _points(task, name, copied, stack)
            groups = [[run for run, _ in found] for found in points]
            times = measure.in_passes(groups, setting.repeats, setting.passes, fill=setting.fill)
            for found, seconds in zip(points, times, strict=True):
                for (_, row), took in zip(found, seconds, strict=True):
                    yield row(took, took / seconds[0])


Point = tuple[Callable[[], Any], Callable[[float, float], GrowthRow]]


def _points(task: Task, name: str, copied: float, stack: contextlib.ExitStack) -> list[list[Point]]:
    """One model in memory and out of it: what to call, and what makes a row of its time. `copied`:
    bytes that one core copies in a second."""
    built = model(name, task.x.shape[1])
    memory = InMemory.of(task, built)
    budget = memory.need // SHARE
    head = name, task.num_nodes, task.num_edges

    def plain(seconds: float, ratio: float) -> GrowthRow:
        return GrowthRow(*head, "in memory", seconds, ratio, memory.need / 2**20, math.nan, "",
                         0.0, 0.0, 0.0, 0.0, 0.0, None)  # fmt: skip

    found: list[Point] = [(memory.run, plain)]
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    disk = stack.enter_context(DiskStore.create(pathlib.Path(folder) / "store"))
    for where, store in (("host", HostStore()), ("disk", disk)):
        graph, x, y = task.streamed(store)
        function = stream(built.step, memory_budget=budget)
        args = graph, built.state, x, y
        fit = function.prepare(*args)

        def row(
            seconds: float, ratio: float, where: str = where, function: Any = function,
            layout: tuple[int, int] = fit.shape,
        ) -> GrowthRow:  # fmt: skip
            traffic = function.traffic
            loads = math.fsum(s for job, s in traffic.jobs.items() if job.startswith("load "))
            computes = math.fsum(traffic.jobs.values()) - loads
            return GrowthRow(
                *head, where, seconds, ratio, memory.need / 2**20, budget / 2**20, _layout(layout),
                traffic.bytes / 2**20, traffic.zero_copy / 2**20, loads, computes, traffic.waited,
                traffic.bytes / copied <= (BAR - 1) * seconds / ratio,
            )  # fmt: skip

        found.append((lambda function=function, args=args: function(*args), row))
    return [found]


def _layout(layout: tuple[int, int]) -> str:
    parts, slices = layout
    return f"{parts} x {slices}" if slices > 1 else str(parts)


def growth_notes(rows: Rows) -> Iterator[str]:
    for name, where in dict.fromkeys((r.model, r.where) for r in rows):
        some = [r for r in rows if (r.model, r.where) == (name, where)]
        if len(some) > 1:
            edges, seconds = (np.log([getattr(r, k) for r in some]) for k in ("edges", "seconds"))
            slope = np.polyfit(edges, seconds, 1)[0]
            yield f"{name}, {where}: time grows with edges to the power of {slope:.2f}"
    hideable = [r for r in rows if r.hideable]
    within = sum(r.ratio <= BAR for r in hideable)
    yield (
        f"{within} of {len(hideable)} points are within {BAR} x of in memory, of those where "
        f"to copy all that moves lasts at most {BAR - 1:.0%} of an epoch there"
    )


def ablation(setting: Setting) -> Iterator[Any]:
    size, features = setting.small, setting.features
    makers = {
        "power law": lambda: power_law_task(size, size * DEGREE, features),
        "by class": lambda: by_class(community_task(size, DEGREE, features, homophily=0.97)),
        "web-NotreDame": lambda: web_task(features),
    }
    for name in setting.graphs:
        try:
            task = makers[name]()
        except SkippedError as error:
            print(f"skipped: {error}")
            continue
        yield from _ablated(task, setting)


OPTIONS = ("selective", "overlapped", "refined", "cached")
STEPS = {
    "streaming": (),
    "+ fused kernels": (),
    "+ selective": ("selective",),
    "+ pipelined": ("selective", "overlapped"),
    "+ refined": ("selective", "overlapped", "refined"),
    "+ memory plan": OPTIONS,
}
"""The options that each step switches on beside fusion: NeuGraph's Figure 15, then ROC's plan."""


def _ablated(task: Task, setting: Setting) -> Iterator[AblationRow]:
    """All on one grid, that of the first row, which needs the most."""
    built = model("gcn", setting.features)
    budget = InMemory.of(task, built).need // SHARE
    graph, x, y = task.streamed()
    args = graph, built.state, x, y
    functions, runs, layouts = {}, [], {}
    for name, on in STEPS.items():
        function = stream(built.step, memory_budget=budget, **{k: k in on for k in OPTIONS})
        fused = name != "streaming"

        def run(function: Any = function, fused: bool = fused) -> Any:
            with contextlib.nullcontext() if fused else choose.prefer("segment"):
                return function(*args)

        run()
        functions[name] = function
        layouts[name] = _fit(function, args)
        runs.append(run)
    times = measure.in_passes([runs], setting.repeats, setting.passes, fill=setting.fill)[0]
    for (name, function), seconds in zip(functions.items(), times, strict=True):
        fit = layouts[name]
        chunks = sum(s.kind == "chunk" for s in fit.steps)
        yield AblationRow(
            task.name, name, seconds, times[0] / seconds, function.traffic.bytes / 2**20,
            f"{len(fit.selected)} of {chunks}", _layout(fit.shape),
        )  # fmt: skip


def _fit(function: Any, args: Any) -> Any:
    """What the function runs with; `prepare` would fit it anew."""
    (ready,) = function._ready.values()
    return ready.layout


def plans(setting: Setting) -> Iterator[Any]:
    task = community_task(setting.small, DEGREE, setting.features).by_locality()
    for name, parts in itertools.product(setting.models, setting.parts):
        yield from plan_rows(task, name, parts, setting.points)


def plan_notes(rows: Rows) -> Iterator[str]:
    scarce = [r for r in rows if r.share < 1]
    if scarce:
        for what in ("lru", "plain_lru", "cache", "streaming"):
            ratios = [getattr(r, f"over_{what}") for r in scarce]
            yield (
                f"where not everything fits, {what} moves {min(ratios):.2f} to {max(ratios):.2f} "
                f"times the bytes, {_mean(ratios):.2f} in the geometric mean"
            )


def _mean(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def order(setting: Setting) -> Iterator[Any]:
    task = community_task(setting.small, DEGREE, setting.features)
    for name in setting.models:
        yield from order_rows(task, name, (2, 4, 8, 16))


def order_notes(rows: Rows) -> Iterator[str]:
    yield "counted from the steps, nothing cached, nothing run"


def budget(setting: Setting) -> Iterator[Any]:
    task = community_task(4 * setting.small, DEGREE, setting.features).by_locality()
    for name in setting.models:
        need = InMemory.of(task, model(name, setting.features)).need
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder) / "saved"
            child.save(task, saved)
            free = _child(saved, name, 1 << 40, epochs=0)["before"] + ANYHOW
            for share in setting.shares_memory:
                given = free + need // share
                found = _child(saved, name, given)
                before, preparing, running = at = [
                    found[what] / 2**20 for what in ("before", "preparing", "running")
                ]
                yield BudgetRow(
                    name, task.num_nodes, given / 2**20, before, preparing, running,
                    max(at) * 2**20 / given, found["layout"], found["seconds"],
                )  # fmt: skip


def _child(folder: pathlib.Path, name: str, given: int, epochs: int = 2) -> dict[str, Any]:
    command = [sys.executable, "-m", "grid.child", str(folder), name, str(given), str(epochs)]
    roots = [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "layout": _layout((found["parts"], found["slices"]))}


def budget_notes(rows: Rows) -> Iterator[str]:
    yield f"the most of a budget that was taken: {max(r.share for r in rows):.2f}"


QUESTIONS: dict[str, tuple[Callable[[Setting], Iterator[Any]], Callable[[Rows], Any]]] = {
    "growth": (growth, growth_notes),
    "ablation": (ablation, lambda rows: []),
    "plans": (plans, plan_notes),
    "order": (order, order_notes),
    "budget": (budget, budget_notes),
}


def table(rows: Rows) -> str:
    """One line a row; the names of its fields above."""
    names = [f.name.rstrip("_").replace("_", " ") for f in dataclasses.fields(rows[0])]
    cells = [names, *([_text(x) for x in dataclasses.astuple(r)] for r in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in cells)


def _text(x: Any) -> str:
    if isinstance(x, bool):
        return "yes" if x else "no"
    return "-" if x is None or x != x else f"{x:.3g}" if isinstance(x, float) else str(x)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--questions", default=",".join(QUESTIONS), help="default: all")
    add(
        "--models",
        help=f"of {','.join(MODELS)} (default: gcn,gat; growth: all, at sizes of its own)",
    )
    add("--sizes", help=f"numbers of vertices of growth (default: {','.join(map(str, SIZES))})")
    add("--small", type=int, help=f"vertices of the others (default: {Setting.small})")
    add("--repeats", type=int, help=f"turns of a pass (default: {Setting.repeats})")
    add("--passes", type=int, help=f"over what is held (default: {Setting.passes})")
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    add("--give-back", action="store_true", help="do not keep memory")
    add("--smoke", action="store_true", help="tiny sizes: does it run?")
    args = parser.parse_args(argv)
    given = {k: getattr(args, k) for k in ("small", "repeats", "passes") if getattr(args, k)}
    if args.sizes:
        given["sizes"] = tuple(map(int, args.sizes.split(",")))
    if args.models:
        given["models"] = tuple(args.models.split(","))
        given["heavy"] = ()
    setting = dataclasses.replace(SMOKE if args.smoke else Setting(), **given)
    facts = {"kept": not args.give_back and gnnjit.keep_memory()}
    facts |= {"machine": measure.machine(measure.usable_cpus()), "versions": measure.versions()}
    for question in args.questions.split(","):
        measured, noted = QUESTIONS[question]
        head = {"benchmark": "grid", "question": question}
        rows = []
        for row in measured(setting):
            rows.append(row)
            measure.append(args.json, {**head, **_fields(row)})
        notes = list(noted(rows))
        print(f"--- {question}", table(rows), *notes, sep="\n", flush=True)
        measure.append(args.json, {**head, "notes": notes, **facts})
    return 0


def _fields(row: Any) -> dict[str, Any]:
    """The fields of a row, with None for what is not known."""
    return {k.rstrip("_"): None if x != x else x for k, x in dataclasses.asdict(row).items()}


if __name__ == "__main__":
    sys.exit(main())
