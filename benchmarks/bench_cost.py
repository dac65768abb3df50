"""How well does the cost model predict, and what do its choices cost?

    python benchmarks/bench_cost.py --smoke
    python benchmarks/bench_cost.py --json benchmarks/results/cost.jsonl

Random layers on random graphs, other ones than those of `gnnjit calibrate`; every alternative that
the planner weighs is compiled and timed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from common import measure, planner_options

from gnnjit.calibration.random_layers import cases, prepare
from gnnjit.cost.model import CostModel

SEED = 1_000_003
"""Another one than the calibration's, so that its layers are others."""

TOGETHER = 110
"""Layers that are held at once: some 6 GB."""

FILL = 0.1
"""Seconds that the readings of an alternative fill in each pass."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One alternative of one layer. Times in seconds; `rank` is 0 for the planner's choice."""

    case: str
    group: str
    rank: int
    choices: str
    predicted: float
    seconds: float

    @property
    def error(self) -> float:
        return abs(self.predicted / self.seconds - 1)


def measure_all(
    model: CostModel,
    count: int,
    seed: int,
    repeats: int,
    passes: int,
    stretches: int,
    fill: float = FILL,
) -> list[Row]:
    rows: list[Row] = []
    layers = cases(seed, count)
    for some in [layers[i : i + TOGETHER] for i in range(0, count, TOGETHER)]:
        planner_options.tune(some, model, stretches)
        ready = [prepare(case, model, stretches) for case in some]
        runs = [[r.compiled(a.choices) for a in r.alternatives] for r in ready]
        arrays = [r.arrays for r in ready]
        found = measure.in_passes(runs, repeats, passes, arrays, fill)
        for r, times in zip(ready, found, strict=True):
            group = f"{r.case.model}, {r.case.direction}"
            for rank, (a, seconds) in enumerate(zip(r.alternatives, times, strict=True)):
                rows.append(Row(str(r.case), group, rank, str(a.choices), a.seconds, seconds))
        jax.clear_caches()
        print(f"{len(rows)} alternatives", file=sys.stderr, flush=True)
    return rows


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Mean error, and how much slower the planner's choices are than the fastest alternatives."""
    errors = np.array([r.error for r in rows])
    best: dict[str, float] = {}
    for r in rows:
        best[r.case] = min(best.get(r.case, np.inf), r.seconds)
    several = {r.case for r in rows if r.rank == 1}
    regret = np.array([r.seconds / best[r.case] for r in rows if r.rank == 0 and r.case in several])
    return {
        "points": len(rows),
        "layers": len(best),
        "mean_error": float(errors.mean()),
        "median_error": float(np.median(errors)),
        "layers_with_a_choice": len(regret),
        "within_5_percent": float((regret <= 1.05).mean()),
        "within_10_percent": float((regret <= 1.10).mean()),
        "worst": float(regret.max()),
    }


def table(rows: Sequence[Row]) -> str:
    """Errors by model and direction, then the summary."""
    lines = [f"{'':24}{'points':>8}{'mean error':>12}"]
    for group in sorted({r.group for r in rows}):
        errors = [r.error for r in rows if r.group == group]
        lines.append(f"{group:24}{len(errors):8}{np.mean(errors):12.1%}")
    s = summary(rows)
    lines += [
        f"{'all':24}{s['points']:8}{s['mean_error']:12.1%}  (median {s['median_error']:.1%})",
        f"chosen within 5 % of the best: {s['within_5_percent']:.1%} of "
        f"{s['layers_with_a_choice']} layers; within 10 %: {s['within_10_percent']:.1%}; "
        f"worst {s['worst']:.2f} times",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=220, help="random layers (default: 220)")
    parser.add_argument("--seed", type=int, default=SEED)
    found = planner_options.setting(parser, argv, passes=3, smoke="two layers")
    args = found.args
    layers = 2 if args.smoke else args.layers
    fill = 0.0 if args.smoke else FILL
    rows = measure_all(
        found.model, layers, args.seed, args.repeats, args.passes, args.autotune, fill
    )
    print(table(rows))
    line = {"benchmark": "cost", **found.facts, **summary(rows)}
    measure.append(args.json, *map(dataclasses.asdict, rows), line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
