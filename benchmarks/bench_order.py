"""What does it bring to choose the order of aggregation and combination by cost?

    python benchmarks/bench_order.py --smoke
    python benchmarks/bench_order.py --json benchmarks/results/order.jsonl

GCN and GAT over widths and graphs, in inference and in training, beside the same layers with one
order always. GRANII's question. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from common import measure, planner_options

import gnnjit
import gnnjit.data
from gnnjit.calibration.random_layers import Case, prepare
from gnnjit.cost.model import CostModel
from gnnjit.errors import DataError
from gnnjit.passes.pipeline import Choices
from gnnjit.planner.plan import Alternative
from gnnjit.system.timing import slower

GRAPHS = {
    "sparse": (60_000, 180_000, False),
    "uniform": (20_000, 300_000, False),
    "power law": (30_000, 900_000, True),
    "small": (2_700, 10_500, True),
}
"""Vertices, edges, and whether degrees follow a power law."""

STORED = ("cora", "citeseer", "pubmed", "dblp")
"""Datasets with features of their own: first layers, from these to each width, and last ones, from
each width to the classes."""

WIDTHS = (16, 64, 256)
MODELS = ("gcn", "gat")
DIRECTIONS = ("inference", "first layer", "inner layer")
ORDERS = ("aggregate-first", "combine-first")

FILL = 0.2
"""Seconds that the readings of a choice fill in each pass."""

LEAST = 0.95
"""Share of the better order's speed that the choice should have at each point."""
FURTHER = 30
"""Further passes at most, over points where the first leave open whether it has `LEAST`."""
ERRORS = 3
"""Standard errors within which `LEAST` counts as open."""
SCATTER = 0.05
"""Assumed deviation of a comparison's logarithm between passes (seen at 0.7 ms on two cores)."""
SHORT, SCATTER_OF_SHORT = 3e-4, 0.1
"""Layers of fewer seconds than `SHORT` scatter by this instead (seen at 0.1 ms)."""
WEIGHT = 4
"""Passes for which the assumed scatter counts, beside those that were measured."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Milliseconds with the planner's choice, and with each order always."""

    model: str
    direction: str
    graph: str
    f_in: int
    f_out: int
    chosen: str
    planner_ms: float
    aggregate_first_ms: float
    combine_first_ms: float

    @property
    def fixed(self) -> tuple[float, float]:
        return self.aggregate_first_ms, self.combine_first_ms


def measure_all(
    model: CostModel,
    names: Sequence[str],
    widths: Sequence[int],
    repeats: int,
    passes: int,
    stretches: int,
    fill: float = FILL,
) -> Iterator[list[Row]]:
    """Yield the rows of each graph and model."""
    for name, layer in itertools.product(names, MODELS):
        graph, cases = _cases(name, layer, widths)
        planner_options.tune(cases, model, stretches, graph)
        points = [_point(case, model, stretches, graph) for case in cases]
        runs = [list(p.runs.values()) for p in points]
        arrays = [p.arrays for p in points]
        further = FURTHER if fill else 0
        times = measure.in_passes(runs, repeats, passes, arrays, fill, settled, further)
        yield [p.row(name, ms) for p, ms in zip(points, times, strict=True)]
        jax.clear_caches()


def settled(found: Sequence[np.ndarray]) -> bool:
    """Whether readings tell if the choice has `LEAST` of each order's speed.

    `found` has an array `turns x calls` for each pass, the choice first. The scatter of passes
    decides, not that of turns, which are too much alike within a pass.
    """
    means = np.array([slower(f, 0)[0] for f in found])
    mean, passes = means.mean(axis=0), len(means)
    short = min(f.min() for f in found) < SHORT
    assumed = SCATTER_OF_SHORT if short else SCATTER
    squares = WEIGHT * assumed**2 + ((means - mean) ** 2).sum(axis=0)
    error = ERRORS * np.sqrt(squares / (WEIGHT + passes - 1) / passes)
    limit = math.log(LEAST)
    return bool(np.all(mean - error >= limit) or np.any(mean + error < limit))


def _cases(name: str, layer: str, widths: Sequence[int]) -> tuple[gnnjit.Graph | None, list[Case]]:
    """The layers of a graph; the graph itself, or None if each layer makes its own."""
    if name in GRAPHS:
        vertices, edges, skewed = GRAPHS[name]
        every = itertools.product(DIRECTIONS, widths, widths)
        return None, [Case(layer, d, vertices, edges, a, b, skewed, 0) for d, a, b in every]
    found = _dataset(name)
    inference, first, inner = DIRECTIONS
    features, classes = found.x.shape[1], found.num_classes
    every = [(d, features, w) for d in (inference, first) for w in widths]
    every += [(d, w, classes) for d in (inference, inner) for w in widths]
    size = found.graph.num_nodes, found.graph.num_edges
    return found.graph, [Case(layer, d, *size, a, b, True, 0) for d, a, b in every]


@functools.cache
def _dataset(name: str) -> gnnjit.data.Dataset:
    found = gnnjit.data.open_dataset(name)
    assert isinstance(found, gnnjit.data.Dataset)
    return found


def default() -> list[str]:
    """All random graphs, and the datasets that are there; print why others are left out."""
    there = [*GRAPHS]
    for name in STORED if "GNNJIT_DATA_DIR" in os.environ else ():
        try:
            _dataset(name)
        except DataError as error:
            print(f"left out: {error}", file=sys.stderr)
        else:
            there.append(name)
    return there


@dataclasses.dataclass(frozen=True)
class _Point:
    """One layer: the planner's choice, each order with the planner's other decisions, so that
    orders are compared, and a compiled function for each of these choices."""

    case: Case
    chosen: Alternative
    fixed: tuple[Alternative, ...]
    runs: dict[Choices, Callable[..., Any]]
    arrays: tuple[Any, ...]

    def row(self, graph: str, times: Sequence[float]) -> Row:
        took = {choices: 1e3 * t for choices, t in zip(self.runs, times, strict=True)}
        first, second = (took[a.choices] for a in self.fixed)
        c, (order,) = self.case, self.chosen.choices.orders
        return Row(c.model, c.direction, graph, c.f_in, c.f_out, order or "",
                   took[self.chosen.choices], first, second)  # fmt: skip


def _point(case: Case, model: CostModel, stretches: int, graph: gnnjit.Graph | None) -> _Point:
    ready = prepare(case, model, stretches, graph)
    fixed = tuple(_first(ready.alternatives, order) for order in ORDERS)
    chosen = ready.alternatives[0]
    runs = {a.choices: ready.compiled(a.choices) for a in (chosen, *fixed)}
    return _Point(case, chosen, fixed, runs, ready.arrays)


def _first(alternatives: Sequence[Alternative], order: str) -> Alternative:
    return next(a for a in alternatives if a.choices.orders == (order,))


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Geometric means of speedups; the least share of the better order's speed."""

    def mean(ratios: list[float]) -> float:
        return float(np.exp(np.mean(np.log(ratios))))

    return {
        "points": len(rows),
        "over_worse_order": mean([max(r.fixed) / r.planner_ms for r in rows]),
        "over_aggregate_first": mean([r.aggregate_first_ms / r.planner_ms for r in rows]),
        "over_combine_first": mean([r.combine_first_ms / r.planner_ms for r in rows]),
        "least_of_better_order": min(min(r.fixed) / r.planner_ms for r in rows),
    }


def table(rows: Sequence[Row]) -> str:
    """Times in milliseconds, then geometric means for inference and training."""
    head = f"{'model':6}{'direction':13}{'graph':11}{'widths':12}{'chosen':17}"
    lines = [head + f"{'planner':>10}{'aggr. first':>13}{'comb. first':>13}"]
    for r in rows:
        where = f"{r.model:6}{r.direction:13}{r.graph:11}{f'{r.f_in} -> {r.f_out}':12}{r.chosen:17}"
        times = f"{r.planner_ms:10.2f}{r.aggregate_first_ms:13.2f}{r.combine_first_ms:13.2f}"
        lines.append(where + times)
    for title, some in groups(rows).items():
        s = summary(some)
        lines.append(
            f"{title}, {s['points']} points: {s['over_worse_order']:.2f} times the worse order, "
            f"{s['over_aggregate_first']:.2f} aggregate-first, {s['over_combine_first']:.2f} "
            f"combine-first; at least {s['least_of_better_order']:.2f} of the better"
        )
    return "\n".join(lines)


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by direction: those of random graphs, of datasets, and all."""
    found: dict[str, list[Row]] = {}
    for kind, names in (("random", GRAPHS), ("datasets", STORED), ("all", (*GRAPHS, *STORED))):
        some = [r for r in rows if r.graph in names]
        found[f"inference, {kind}"] = [r for r in some if r.direction == "inference"]
        found[f"training, {kind}"] = [r for r in some if r.direction != "inference"]
    return {title: some for title, some in found.items() if some}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--graphs", help="default: all; the datasets where GNNJIT_DATA_DIR says where they are"
    )
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    found = planner_options.setting(parser, argv, passes=6, smoke="one graph, one width")
    args = found.args
    graphs = args.graphs.split(",") if args.graphs else ["small"] if args.smoke else default()
    widths = [8] if args.smoke else [int(w) for w in args.widths.split(",")]
    fill = 0.0 if args.smoke else FILL
    rows: list[Row] = []
    for some in measure_all(
        found.model, graphs, widths, args.repeats, args.passes, args.autotune, fill
    ):
        rows += some
        least = summary(some)["least_of_better_order"]
        print(
            f"{some[0].graph}, {some[0].model}: {len(some)} points, at least {least:.3f} of the "
            "better order",
            file=sys.stderr,
            flush=True,
        )
        measure.append(args.json, *map(dataclasses.asdict, some))
    print(table(rows))
    for title, some in groups(rows).items():
        line = {"benchmark": "order", "group": title, **found.facts, **summary(some)}
        measure.append(args.json, line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
