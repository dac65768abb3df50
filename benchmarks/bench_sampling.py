"""How fast are sampled batches, and training on them?

    python benchmarks/bench_sampling.py --smoke
    python benchmarks/bench_sampling.py --json benchmarks/results/sampling.jsonl

Questions, of which `--questions` chooses some:

- rate: vertices and edges that a loader yields a second, against PyTorch Geometric's NeighborLoader
  with as many workers as serve it best.
- cost: nanoseconds for each sampled vertex, as the frontier and the graph grow.
- scaling: the same samples by one thread and by two.
- pipeline: epochs with batches made between the steps, and beside them, where a step and the making
  of its batch take about as long.
- epoch: an epoch of sampled SAGE, against PyTorch Geometric's.
- shapes: thousands of batches of changing size: programs, padding, memory.

Each side is a process of its own, one after the other, in turns; the best turn counts. Freed memory
is kept on both sides (`gnnjit.keep_memory`).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from common import measure
from rich import box
from rich.console import Console
from rich.table import Table
from sampling import graphs

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is measured, and how often."""

    questions: tuple[str, ...] = ("rate", "cost", "scaling", "pipeline", "epoch", "shapes")
    vertices: int = 1_000_000
    features: int = 64
    fanouts: tuple[int, ...] = (15, 10)
    batch: int = 1024
    hidden: int = 128
    pipeline_hidden: int = 160
    batches: int = 100
    workers: tuple[int, ...] = (0, 1, 2)
    turns: int = 3
    epochs: int = 2
    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000, 5_000_000)
    frontiers: tuple[int, ...] = (1_000, 10_000, 100_000)
    repeats: int = 20
    many: int = 10_000
    shapes: tuple[int, ...] = (1, 2, 4, 8)


SMOKE = Setting(
    vertices=2_000, features=8, batch=64, hidden=8, pipeline_hidden=8, batches=4, workers=(0,),
    turns=1, epochs=1,
    sizes=(1_000,), frontiers=(50,), repeats=2, many=20,
    shapes=(4,),
)  # fmt: skip

Row = dict[str, Any]

KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_ARENA_MAX": "1"}
"""What `gnnjit.keep_memory` tells the C library, for both sides."""


class Runs:
    """Runs sides of questions in processes of their own, on graphs that are made once."""

    def __init__(self, folder: pathlib.Path, features: int) -> None:
        self._folder, self._features = folder, features

    def graph(self, vertices: int) -> pathlib.Path:
        path = self._folder / str(vertices)
        if not path.exists():
            graphs.save(path, vertices, self._features)
        return path

    def __call__(self, side: str, what: str, vertices: int, **options: Any) -> Row:
        args = [side, what, str(self.graph(vertices)), json.dumps(options)]
        done = subprocess.run(
            [sys.executable, "-m", "sampling.child", *args], cwd=HERE, capture_output=True,
            text=True, env={**os.environ, **KEPT},
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(args)} failed:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def has_pyg() -> bool:
    needed = ("torch", "torch_geometric")
    samplers = ("pyg_lib", "torch_sparse")
    found = importlib.util.find_spec
    return all(map(found, needed)) and any(map(found, samplers))


def sides(setting: Setting) -> Iterator[tuple[str, int]]:
    """Who takes part, with each number of workers: gnnjit always has one that makes batches."""
    yield from (("gnnjit", max(workers, 1)) for workers in setting.workers)
    if has_pyg():
        yield from (("pyg", workers) for workers in setting.workers)


def rate(runs: Runs, s: Setting) -> Iterator[Row]:
    rows: dict[tuple[str, int], Row] = {}
    for _ in range(s.turns):
        for side, workers in dict.fromkeys(sides(s)):
            row = runs(
                side, "rate", s.vertices, fanouts=s.fanouts, batch=s.batch, batches=s.batches,
                workers=workers,
            )  # fmt: skip
            old = rows.get((side, workers), row)
            rows[side, workers] = min(row, old, key=lambda r: r["seconds"])
    for (side, workers), row in rows.items():
        per_second = {f"{k}_per_s": row[k] / row["seconds"] for k in ("vertices", "edges")}
        yield {"side": side, "workers": workers, **row, **per_second}


def cost(runs: Runs, s: Setting) -> Iterator[Row]:
    for vertices in s.sizes:
        fits = [f for f in s.frontiers if 4 * f <= vertices]
        row = runs("gnnjit", "cost", vertices, frontiers=fits, repeats=s.repeats)
        for sampler, ns in row.items():
            yield {"vertices": vertices, "sampler": sampler, "ns_per_vertex": ns}


def scaling(runs: Runs, s: Setting) -> Iterator[Row]:
    row = runs("gnnjit", "scaling", s.vertices, batches=max(2, s.batches // 10))
    for name in ("across", "inside"):
        yield {"threads": f"2, {name} samples", "speedup": row["one"] / row[name]}


def pipeline(runs: Runs, s: Setting) -> Iterator[Row]:
    found = runs("gnnjit", "pipeline", s.vertices, batch=s.batch, hidden=s.hidden, epochs=s.epochs)
    best = {name: min(row["seconds"]) for name, row in found.items()}
    for name, seconds in best.items():
        yield {"batches": name, "seconds": seconds, "speedup": best["serial"] / seconds}


def epoch(runs: Runs, s: Setting) -> Iterator[Row]:
    shared = {"fanouts": s.fanouts, "batch": s.batch, "hidden": s.hidden, "epochs": s.epochs}
    cases = [("gnnjit", {"workers": w}) for w in sorted({max(w, 1) for w in s.workers})]
    if has_pyg():
        cpus = measure.usable_cpus()
        cases += [
            ("pyg", {"workers": w, "threads": t, "form": form})
            for w in s.workers
            for t in sorted({1, cpus})
            for form in ("whole", "blocks")
        ]
    for side, options in cases:
        row = runs(side, "epoch", s.vertices, **shared, **options)
        yield {"side": side, **options, **row, "best": min(row["seconds"])}


def shapes(runs: Runs, s: Setting) -> Iterator[Row]:
    vertices = min(s.vertices, 100_000)
    for count in s.shapes:
        batches = s.many if count == 4 else max(1, s.many // 10)
        yield {"shapes": count, **runs("gnnjit", "shapes", vertices, batches=batches, count=count)}


QUESTIONS = {
    "rate": rate, "cost": cost, "scaling": scaling, "pipeline": pipeline, "epoch": epoch,
    "shapes": shapes,
}  # fmt: skip


def table(name: str, rows: Sequence[Row]) -> Table:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = Table(*columns, title=name, box=box.SIMPLE)
    for row in rows:
        out.add_row(*(_text(row.get(column)) for column in columns))
    return out


def _text(x: Any) -> str:
    if isinstance(x, list):
        return ", ".join(map(_text, x))
    return "–" if x is None else f"{x:.4g}" if isinstance(x, float) else str(x)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--questions", help=f"of {','.join(QUESTIONS)} (default: all)")
    add("--workers", help="numbers of workers (default: 0,1,2)")
    for name in ("vertices", "turns", "epochs", "batches", "many", "hidden", "batch"):
        add(f"--{name}", type=int, help=f"default: {getattr(Setting, name)}")
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    add("--smoke", action="store_true", help="tiny sizes: does it run?")
    args = parser.parse_args(argv)
    names = {f.name for f in dataclasses.fields(Setting)}
    given = {k: v for k, v in vars(args).items() if k in names and v is not None}
    if "questions" in given:
        given["questions"] = tuple(given["questions"].split(","))
    if "workers" in given:
        given["workers"] = tuple(map(int, given["workers"].split(",")))
    setting = dataclasses.replace(SMOKE if args.smoke else Setting(), **given)
    facts = {"machine": measure.machine(measure.usable_cpus()), "versions": measure.versions()}
    facts["setting"] = dataclasses.asdict(setting)
    if not has_pyg():
        print("PyTorch Geometric with torch-sparse or pyg-lib is not installed: gnnjit alone")
    console = Console()
    console.width = max(console.width, 140)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(pathlib.Path(folder), setting.features)
        for question in setting.questions:
            rows = []
            for row in QUESTIONS[question](runs, setting):
                rows.append(row)
                line = {"benchmark": "sampling", "question": question, **row, **facts}
                measure.append(args.json, line)
            console.print(table(question, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
