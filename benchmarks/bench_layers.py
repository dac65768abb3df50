"""How fast is a layer, and how much memory does it need, beside PyG and plain segment sums?

    python benchmarks/bench_layers.py --smoke
    python benchmarks/bench_layers.py --json benchmarks/results/layers.jsonl

All implementations compute the same numbers from the same graph and parameters (checked before
anything is timed), each in a process of its own, and take turns. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from common import measure, report, workloads
from layers import CONFIGURATIONS, MODULES, why_not
from layers.case import MODES

TOLERANCE = 5e-4
"""Largest difference allowed, over the largest magnitude in the array: float32 sums over rows of
tens of thousands of edges."""

REFERENCE = "segment"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is run: which implementations in which configurations, how often, and where."""

    sizes: workloads.Sizes
    layers: tuple[str, ...]
    configurations: tuple[tuple[str, str], ...]
    repeats: int
    threads: int
    fresh: bool
    facts: dict[str, Any]


class Workers:
    """One process per case; with `fresh=False` one per implementation, which is quicker."""

    def __init__(self, threads: int, fresh: bool):
        self._threads, self._fresh = threads, fresh
        self._kept: dict[str, measure.Worker] = {}

    @contextlib.contextmanager
    def of(self, implementation: str) -> Iterator[measure.Worker]:
        module = MODULES[implementation]
        if not self._fresh:
            if implementation not in self._kept:
                self._kept[implementation] = measure.Worker(module, self._threads)
            yield self._kept[implementation]
            return
        worker = measure.Worker(module, self._threads)
        try:
            yield worker
        finally:
            worker.close()

    def close(self) -> None:
        for worker in self._kept.values():
            worker.close()


def bench(plan: Plan, path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The records of every layer, as they are ready; the workload lies at `path`."""
    workers = Workers(plan.threads, plan.fresh)
    try:
        for layer in plan.layers:
            yield from bench_layer(plan, workers, layer, path)
    finally:
        workers.close()


def bench_layer(
    plan: Plan, workers: Workers, layer: str, path: pathlib.Path
) -> Iterator[dict[str, Any]]:
    """Check and measure one layer."""
    records = {
        (*who, mode): plan.facts
        | {"layer": layer, "mode": mode, "implementation": who[0], "configuration": who[1]}
        for who in plan.configurations
        for mode in MODES
    }
    with contextlib.ExitStack() as stack:
        ready: dict[tuple[str, str], measure.Worker] = {}
        expected: dict[str, Any] = {}
        for who in sorted(plan.configurations, key=lambda who: who[0] != REFERENCE):
            reason = why_not(layer, *who)
            if reason is None:
                worker = stack.enter_context(workers.of(who[0]))
                try:
                    costs, expected = start(worker, layer, who[1], path, expected)
                    ready[who] = worker
                except (measure.WorkerError, WrongNumbers) as error:
                    reason = str(error)
            for mode in MODES:
                found = {"status": "skipped", "reason": reason} if reason else costs[mode]
                records[(*who, mode)] |= found
        for who, mode, pairs in take_turns(ready, plan.repeats):
            seconds, cpu = zip(*pairs, strict=True)
            records[(*who, mode)] |= {
                "status": "ok", "seconds": seconds, "min_seconds": min(seconds),
                "median_seconds": statistics.median(seconds), "min_cpu_seconds": min(cpu),
            }  # fmt: skip
    yield from records.values()


class WrongNumbers(ValueError):
    """An implementation disagrees with the reference."""


def start(
    worker: measure.Worker,
    layer: str,
    configuration: str,
    path: pathlib.Path,
    expected: dict[str, Any],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Load, compile, run once and compare with `expected`, or be what is expected."""
    worker.ask("load", layer, configuration, path)
    costs = {mode: worker.ask("first", mode) for mode in MODES}
    got = worker.ask("values")
    expected = expected or got
    gradients = expected.keys() - {"out"}
    error, where = measure.differences(got, expected, kinked=gradients)
    if error > TOLERANCE:
        raise WrongNumbers(f"WRONG: {where} differs by {error:.2g} of its largest magnitude")
    for mode in MODES:
        costs[mode] |= {"largest_difference": error, "device": worker.ask("device")}
    return costs, expected


def take_turns(
    ready: dict[tuple[str, str], measure.Worker], repeats: int
) -> Iterator[tuple[tuple[str, str], str, list[tuple[float, float]]]]:
    """A B C A B C ...: what else the machine does at the time hits all alike."""
    for mode in MODES:
        times: dict[tuple[str, str], list[tuple[float, float]]] = {who: [] for who in ready}
        for _ in range(repeats):
            for who, worker in ready.items():
                times[who].append(worker.ask("time", mode))
        for who, pairs in times.items():
            yield who, mode, pairs


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    top.add_argument("--smoke", action="store_true", help="tiny sizes, seconds; times mean nothing")
    top.add_argument("--layers", default=",".join(workloads.ON_CPU), help="comma-separated")
    top.add_argument("--vertices", type=int, default=None)
    top.add_argument("--edges", type=int, default=None)
    top.add_argument("--features", type=int, default=None, help="in and out; a multiple of 4")
    top.add_argument("--repeats", type=int, default=None)
    top.add_argument("--threads", type=int, default=measure.usable_cpus())
    top.add_argument("--seed", type=int, default=0)
    top.add_argument("--no-pyg", action="store_true", help="leave PyTorch Geometric out")
    top.add_argument("--torch-compile", action="store_true", help="torch.compile too (slow)")
    top.add_argument("--json", type=pathlib.Path, help="append a line per case to this file")
    return top


def make_plan(args: argparse.Namespace) -> Plan:
    """Defaults for what was left out. Raises SystemExit on a mistake."""
    defaults = (300, 2_000, 16, 2) if args.smoke else (100_000, 2_000_000, 64, 9)
    given = (args.vertices, args.edges, args.features, args.repeats)
    n, e, f, repeats = (d if g is None else g for d, g in zip(defaults, given, strict=True))
    layers = tuple(name.strip() for name in args.layers.split(",") if name.strip())
    unknown = set(layers) - set(workloads.ON_CPU)
    if unknown:
        raise SystemExit(f"--layers: unknown {sorted(unknown)}, expected {list(workloads.ON_CPU)}")
    if f % workloads.HEADS or min(n, e, f, repeats) < 1:
        raise SystemExit("sizes must be positive, and --features a multiple of 4")
    left_out = {("pyg", "compiled")} if not args.torch_compile else set()
    configurations = [
        (name, c)
        for name, some in CONFIGURATIONS.items()
        for c in some
        if (name, c) not in left_out and not (name == "pyg" and args.no_pyg)
    ]
    sizes = workloads.Sizes(n, e, f, args.seed)
    facts = {
        "benchmark": "layers",
        "smoke": args.smoke,
        "sizes": dataclasses.asdict(sizes),
        "bytes_per_second": measure.bandwidth(args.threads, 1 << (20 if args.smoke else 28)),
        "machine": measure.machine(args.threads),
        "versions": measure.versions(),
    }
    return Plan(sizes, layers, tuple(configurations), repeats, args.threads, not args.smoke, facts)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if an implementation gave wrong numbers or gnnjit failed."""
    args = parser().parse_args(argv)
    plan = make_plan(args)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "workload.npz"
        workloads.make(plan.sizes).save(path)
        for record in bench(plan, path):
            records.append(record)
            measure.append(args.json, record)
    print(report.text(records))
    missing = {(r["layer"], r["implementation"]) for r in records if failed(r)}
    for layer, implementation in sorted(missing):
        print(f"FAILED: {layer} of {implementation}", file=sys.stderr)
    return 1 if missing else 0


def failed(record: dict[str, Any]) -> bool:
    """Whether a case that must work did not."""
    reason = str(record.get("reason", ""))
    return record["status"] != "ok" and (record["implementation"] != "pyg" or "WRONG" in reason)


if __name__ == "__main__":
    sys.exit(main())
