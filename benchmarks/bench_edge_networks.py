"""How fast are edge networks?

    python benchmarks/bench_edge_networks.py --smoke
    python benchmarks/bench_edge_networks.py --json benchmarks/results/edge_networks.jsonl

Value and gradient, by parameters and features, of two stacked blocks of each network, in forms:

- layer: gnnjit, as a user writes it.
- plain: JAX, with `x[src]`, a concatenation and `segment_sum` of sorted edges.
- split: plain, where what reads one endpoint is multiplied once per vertex, and what both ends of a
  pair share computed once, by hand. Left out where there is neither.
- checkpoint: the split form, whose blocks are computed again in the backward (`jax.checkpoint`).
- pyg: PyTorch Geometric, where it has the layer: NNConv, EdgeConv; with weights of its own.

All forms in JAX are compared with plain first. Each is a process of its own; they take turns. Freed
memory is kept in all of them (`gnnjit.keep_memory`). gnnjit's caches lie in a fresh folder for each
form: the first process finds it empty, the second, which is timed, finds what the first left. JAX's
persistent cache is off.

The share of the matrix peak is of the operations of `Network.flops` (edge_networks/network.py):
products alone, each once forward and twice backward (second order: twice that), none computed
again, those of one endpoint once per vertex; over the rate of a square product in float32.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from common import measure
from edge_networks import FORMS, report
from edge_networks.child import Failed, Local, Remote, Task
from edge_networks.table import NETWORKS

SIZES = "10000x100000x128,2000x30000x64,10000x100000x256"
FILL = 0.3
"""Seconds of a turn."""
PYG = ("nnconv", "edgeconv")
ENVIRONMENT = {"JAX_ENABLE_COMPILATION_CACHE": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

Record = dict[str, Any]
Case = Local | Remote


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is measured, and how often."""

    networks: tuple[str, ...]
    forms: tuple[str, ...]
    sizes: tuple[tuple[int, int, int], ...]
    rounds: int = 5
    square: int = 4096
    fill: float = FILL
    remote: tuple[tuple[str, str], ...] | None = None
    """Networks and forms with processes of their own, None for all of them."""

    def is_remote(self, task: Task) -> bool:
        return self.remote is None or (task.network, task.form) in self.remote


def tasks(setting: Setting, network: str, size: tuple[int, int, int]) -> Iterator[Task]:
    """Those of one table row."""
    vertices, edges, width = size
    found = NETWORKS[network]
    for form in setting.forms:
        if form in found.forms() or (form == "pyg" and network in PYG):
            yield Task(network, form, vertices, edges, max(width // found.narrower, 4))


def bench(some: Sequence[Task], setting: Setting, folder: pathlib.Path) -> list[Record]:
    """A record for each form of one network at one size."""
    records: dict[Task, Record] = {}
    cases: dict[Task, Case] = {}
    with contextlib.ExitStack() as stack:
        for task in some:  # one after the other: they would disturb each other
            row: Record = {"benchmark": "edge_networks", **dataclasses.asdict(task)}
            records[task] = row | {"status": "ok"}
            try:
                if missing := _missing(task):
                    records[task] |= {"status": "skipped", "reason": missing}
                    continue
                cases[task], facts = _start(
                    task, setting, folder / "-".join(map(str, row.values()))
                )
                stack.callback(cases[task].close)
                records[task] |= facts
            except Failed as error:
                records[task] |= {"status": "failed", "reason": str(error)}
        for task, error in _errors(cases, records).items():
            allowed = NETWORKS[task.network].tolerance
            records[task] |= {"error": error, "tolerance": allowed}
            if not error < allowed:
                reason = f"is {error:.2g} from plain, {allowed} allowed"
                records[task] |= {"status": "wrong", "reason": reason}
        times = _times(cases, records, setting)
    for task, seconds in times.items():
        least, median = min(seconds), float(np.median(seconds))
        records[task] |= {"least_seconds": least, "median_seconds": median, "steps": len(seconds)}
    return list(records.values())


def _missing(task: Task) -> str | None:
    """Why a form cannot run here."""
    if task.form == "pyg" and importlib.util.find_spec("torch_geometric") is None:
        return "torch_geometric is not installed"
    if task.network == "nequip" and importlib.util.find_spec("e3nn_jax") is None:
        return "e3nn-jax is not installed"
    return None


def _start(task: Task, setting: Setting, caches: pathlib.Path) -> tuple[Case, Record]:
    """The second of two processes with the same caches, and what both found."""
    if not setting.is_remote(task):
        case: Case = Local(task)
        first = second = case.ask("facts")
    else:
        variables = {**ENVIRONMENT, "XDG_CACHE_HOME": str(caches)}
        case = Remote(task, variables)
        first = case.ask("facts")
        if task.form != "pyg":
            case.close()
            case = Remote(task, variables)
        second = case.ask("facts")
    seconds = {
        f"compile_{k}{cpu}_seconds": facts[f"compile{cpu}_seconds"]
        for k, facts in (("first", first), ("second", second))
        for cpu in ("", "_cpu")
    }
    known = {k: v for k, v in second.items() if not k.startswith("compile")}
    return case, seconds | known


def _errors(cases: dict[Task, Case], records: dict[Task, Record]) -> dict[Task, float]:
    """Of each form in JAX: the largest difference from plain in one array, relative in the 2-norm;
    empty without plain."""
    some = [task for task in cases if task.form != "pyg"]
    values = _asked(some, cases, records, "values")
    plain = next((v for task, v in values.items() if task.form == "plain"), None)
    return {task: error(found, plain) for task, found in values.items()} if plain else {}


def _asked(
    some: Sequence[Task], cases: dict[Task, Case], records: dict[Task, Record],
    method: str, *args: float,
) -> dict[Task, Any]:  # fmt: skip
    """What some forms answer. One that fails, as where the system ends it for its memory, is no
    longer among the cases; its record says why."""
    answers = {}
    for task in some:
        try:
            answers[task] = cases[task].ask(method, *args)
        except Failed as failed:
            records[task] |= {"status": "failed", "reason": str(failed)}
            del cases[task]
    return answers


def error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest over arrays of |found - expected| / |expected|; infinite where not finite."""
    each = [
        float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))
        for a, b in zip(found, expected, strict=True)
    ]
    return max(each) if np.isfinite(each).all() else float("inf")


def _times(
    cases: dict[Task, Case], records: dict[Task, Record], setting: Setting
) -> dict[Task, list[float]]:
    """Seconds of the steps of all turns, of what is right."""
    right = [task for task in cases if records[task]["status"] == "ok"]
    times: dict[Task, list[float]] = {task: [] for task in right}
    for turn in range(1 + setting.rounds):
        some = [task for task in right if task in cases]
        fill = setting.fill if turn else 0.0
        for task, seconds in _asked(some, cases, records, "run", fill).items():
            times[task] += seconds if turn else []  # the first is not counted
    return {task: times[task] for task in right if task in cases}


def shares(records: Sequence[Record], rate: float) -> None:
    """Add the operations, and their share of what the machine could do in that time."""
    for r in records:
        r["flops"] = NETWORKS[r["network"]].flops(r["vertices"], r["edges"], r["width"])
        r["peak_flops_per_second"] = rate
        if "least_seconds" in r:
            r["peak_share"] = r["flops"] / r["least_seconds"] / rate


def matrix_rate(setting: Setting) -> float:
    """Operations a second of a large matrix product."""
    case: Case = Local(setting.square) if setting.remote else Remote(setting.square, ENVIRONMENT)
    try:
        return case.ask("measure")
    finally:
        case.close()


def setting_of(args: argparse.Namespace) -> Setting:
    """Raises SystemExit where the command line names what there is not."""
    names, forms = args.models.split(","), args.forms.split(",")
    for flag, given, known in (("--models", names, NETWORKS), ("--forms", forms, FORMS)):
        if unknown := set(given) - set(known):
            found, some = sorted(unknown), list(known)
            raise SystemExit(f"{flag}: unknown {found}, expected some of {some}")
    if "plain" not in forms:
        raise SystemExit("--forms: plain is missing, with which all others are compared")
    found = Setting(
        tuple(names), tuple(forms), tuple(map(_size, args.sizes.split(","))), args.rounds
    )
    if not args.smoke:
        return found
    return dataclasses.replace(
        found, sizes=((12, 40, 8),), rounds=1, square=512, fill=0.0, remote=((names[0], "layer"),)
    )


def _size(text: str) -> tuple[int, int, int]:
    try:
        vertices, edges, width = map(int, text.split("x"))
    except ValueError:
        raise SystemExit(
            f"--sizes: got {text!r}, expected vertices x edges x width, as 2000x30000x64"
        ) from None
    return vertices, edges, width


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = top.add_argument
    add("--smoke", action="store_true", help="tiny sizes, one round; times mean nothing")
    add("--models", default=",".join(NETWORKS), help="comma-separated")
    add("--forms", default=",".join(FORMS), help="comma-separated, with plain")
    add("--sizes", default=SIZES, help=f"vertices x edges x width (default: {SIZES})")
    add("--rounds", type=int, default=Setting.rounds, help=f"default: {Setting.rounds}")
    add("--json", type=pathlib.Path, metavar="FILE", help="append a line per form to this file")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run it. 1 where a form fails or computes other numbers than plain JAX."""
    args = parser().parse_args(argv)
    setting = setting_of(args)
    facts = {
        "smoke": args.smoke, "rounds": setting.rounds, "machine":
        measure.machine(measure.usable_cpus()), "versions": measure.versions(),
    }  # fmt: skip
    rate = matrix_rate(setting)
    records: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in setting.sizes:
            for name in setting.networks:
                found = bench(list(tasks(setting, name, size)), setting, pathlib.Path(folder))
                some = [record | facts for record in found]
                shares(some, rate)
                measure.append(args.json, *some)
                records += some
                print(f"{name}, {' x '.join(map(str, size))}: done", file=sys.stderr)
    print(report.text(records))
    return int(any(r["status"] in ("failed", "wrong") for r in records))


if __name__ == "__main__":
    sys.exit(main())
