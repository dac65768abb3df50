"""`gnnjit calibrate`: measure this device, and keep the weights of its cost model."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from gnnjit.calibration.points import calibration_points
from gnnjit.cli.output import add_json_option, check_json, for_people, write_json
from gnnjit.cost.calibrate import (
    QUICK,
    THOROUGH,
    USUAL,
    CalibrationReport,
    Effort,
    Point,
    calibrate,
)
from gnnjit.cost.store import Key, Stored, check_writable, save
from gnnjit.errors import CostError

SUMMARY = "measure this device once, for the choices that the compiler makes by cost"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gnnjit calibrate`."""
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("--quick", action="store_true", help="measure fewer points")
    how_many.add_argument(
        "--thorough",
        action="store_true",
        help="measure more layers, larger ones, and three times: half an hour, and better "
        "predictions",
    )
    add_json_option(parser, "device, weights, predicted and measured seconds")
    parser.add_argument("--dry-run", action="store_true", help="measure, but store nothing")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the measured arrays (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, report, and store; the exit code."""
    people = Console(file=for_people(args, to_the_end=not args.dry_run))
    check_json(args.json)
    if args.seed < 0:
        raise CostError(f"--seed is {args.seed}, expected at least 0")
    if not args.dry_run:
        check_writable()
    key = Key.here()
    effort = QUICK if args.quick else THOROUGH if args.thorough else USUAL
    report = _measure(calibration_points(effort, seed=args.seed), effort, people)
    people.print(f"{key.device}, {key.cores} cores, JAX {key.jax}", highlight=False, soft_wrap=True)
    people.print(_table(report))
    file: Path | None = None
    if not args.dry_run:
        file = save(key, Stored(report.model, report.learner, report.error))
    where = f"stored in {file}" if file else "not stored (--dry-run)"
    people.print(where, highlight=False, soft_wrap=True)
    found = {"key": dataclasses.asdict(key), "seed": args.seed, "quick": args.quick}
    found |= {"thorough": args.thorough, "file": file and str(file), **report.to_json()}
    write_json(args.json, found)
    return 0


def _measure(points: Sequence[Point], effort: Effort, console: Console) -> CalibrationReport:
    """With a bar on a terminal, and silently elsewhere."""
    bar = Progress(
        TextColumn("calibrate"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=len(points) * effort.passes)

        def progress(name: str) -> None:
            bar.update(task, advance=1, description=name)

        return calibrate(points, effort, progress=progress)


def _table(report: CalibrationReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("kind")
    table.add_column("points", justify="right")
    table.add_column("cost of one, or rate", overflow="fold")
    table.add_column("mean error", justify="right")
    for kind, weights in report.model.to_json().items():
        count, error = report.of_kind(kind)
        shown = "\n".join(f"{feature} {readable(w)}" for feature, w in weights.items())
        table.add_row(kind, str(count or "shipped"), shown, f"{error:.0%}" if count else "")
    table.add_section()
    table.add_row("all", str(len(report.points)), "", f"{report.error:.0%}")
    return table


def readable(weight: float) -> str:
    """Seconds per unit for people: as a time from a nanosecond on, below as units per second."""
    if weight == 0:
        return "free"
    if weight < 1e-9:
        rate = 1 / weight
        scale, prefix = (1e12, "T") if rate >= 1e12 else (1e9, "G")
        return f"{rate / scale:.3g} {prefix}/s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if weight >= scale:
            return f"{weight / scale:.3g} {unit}"
    return f"{weight / 1e-9:.3g} ns"
