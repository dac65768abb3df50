"""What bench_cost and bench_order share: options, the cost model, facts for the record."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import gnnjit
from common import measure
from gnnjit.calibration.points import calibration_points
from gnnjit.calibration.random_layers import Case, prepare
from gnnjit.cost.calibrate import QUICK, THOROUGH, calibrate
from gnnjit.cost.current import current
from gnnjit.cost.model import CostModel


@dataclasses.dataclass(frozen=True)
class PlannerRun:
    """A run of a planner benchmark: its arguments, cost model, and facts for the record."""

    args: argparse.Namespace
    model: CostModel
    facts: dict[str, Any]


def setting(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, passes: int, smoke: str
) -> PlannerRun:
    """Add the common options to `parser`, parse, and do what they say.

    `smoke` says in the help what is measured at smoke size.
    """
    add = parser.add_argument
    add("--repeats", type=int, default=5, help="turns of a pass (default: 5)")
    more = "more where the answer is open"
    add("--passes", type=int, default=passes, help=f"over what is held (default: {passes}); {more}")
    add("--calibrate", action="store_true", help="calibrate in this process first, thoroughly")
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    tunes = "time close plans first, in so many stretches of time (1), and choose by that"
    add("--autotune", nargs="?", type=int, default=0, const=1, metavar="STRETCHES", help=tunes)
    add("--give-back", action="store_true", help="do not keep memory")
    add("--smoke", action="store_true", help=f"{smoke}: does it run?")
    args = parser.parse_args(argv)
    if args.smoke:
        args.passes = 1
    facts = {
        "autotuned": args.autotune,
        "kept": not args.give_back and gnnjit.keep_memory(),
        "machine": measure.machine(measure.usable_cpus()),
        "versions": measure.versions(),
    }
    model = current()
    if args.calibrate:
        effort = QUICK if args.smoke else THOROUGH
        report = calibrate(calibration_points(effort), effort, progress=_progress)
        model = report.model
        facts["calibration"] = {"points": len(report.points), "error": report.error}
    if args.autotune:  # anew, whatever was found before
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="gnnjit-")
    return PlannerRun(args, model, {"model": model.source, **facts})


def tune(
    cases: Iterable[Case], model: CostModel, stretches: int, graph: gnnjit.Graph | None = None
) -> None:
    """Time close plans in all stretches but the last, which `prepare` does itself.

    Each stretch goes over all cases, so that the stretches of a case lie apart in time.
    """
    for stretch, case in itertools.product(range(1, stretches), cases):
        prepare(case, model, stretch, graph)


def _progress(name: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{f'calibrating: {name}':<100.100}", end="", file=sys.stderr)
