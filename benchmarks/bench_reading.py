"""How fast is a text file of edges read, and how much memory does it take?

    python benchmarks/bench_reading.py --smoke
    python benchmarks/bench_reading.py --json benchmarks/results/reading.jsonl

`gnnjit.data.read_edges` into a `DiskStore`, with ids numbered and counted, beside the readers of
CSV of pyarrow and polars, which give columns in memory and number nothing. Each reads the same file
in a process of its own; memory is what it grew by after its imports. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from common import measure

from gnnjit.data import read_edges
from gnnjit.data.stored.prepare import peak_memory
from gnnjit.store import DiskStore
from gnnjit.system.memory_budget import parse_size

EDGES = 100_000_000
PIECE = 1_000_000
"""Lines that are written at once."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One reader: seconds of the clock, megabytes of text a second, and bytes of memory."""

    who: str
    edges: int
    vertices: int
    file_bytes: int
    seconds: float
    mb_per_second: float
    edges_per_second: float
    grew_bytes: int


def write_file(path: pathlib.Path, edges: int, vertices: int) -> None:
    """Lines "source TAB destination" of power-law graph edges, ids with gaps."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, edges, PIECE):
            count = min(PIECE, edges - start)
            src = rng.integers(0, vertices, count)
            dst = (vertices * rng.random(count) ** 3).astype(np.int64)
            pairs = 3 * np.stack([src, dst], axis=1)
            file.write(b"%d\t%d\n" * count % tuple(pairs.ravel().tolist()))


def with_gnnjit(path: pathlib.Path) -> tuple[int, Callable[[], None]]:
    """How many edges there are; what cleans up."""
    folder = tempfile.TemporaryDirectory(dir=path.parent)
    with DiskStore.create(folder.name) as store:
        found = read_edges(path, store=store).num_edges
    return found, folder.cleanup


def with_pyarrow(path: pathlib.Path) -> tuple[int, Callable[[], None]]:
    csv: Any = importlib.import_module("pyarrow.csv")
    names = csv.ReadOptions(column_names=["source", "destination"])
    table = csv.read_csv(path, names, csv.ParseOptions(delimiter="\t"))
    return table.num_rows, lambda: None


def with_polars(path: pathlib.Path) -> tuple[int, Callable[[], None]]:
    polars: Any = importlib.import_module("polars")
    return len(polars.read_csv(path, separator="\t", has_header=False)), lambda: None


READERS = {"gnnjit": with_gnnjit, "pyarrow": with_pyarrow, "polars": with_polars}


def child(who: str, path: pathlib.Path) -> int:
    """Read once a small file, for imports and compiled code, and then the file; print figures."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        small = pathlib.Path(folder) / "small.txt"
        small.write_text("0\t1\n3\t6\n")
        READERS[who](small)[1]()
    before, start = peak_memory(), time.perf_counter()
    edges, clean = READERS[who](path)
    seconds, peak = time.perf_counter() - start, peak_memory()
    clean()
    print(json.dumps({"edges": edges, "seconds": seconds, "grew_bytes": peak - before}))
    return 0


def measure_one(who: str, path: pathlib.Path, vertices: int, repeats: int) -> Row:
    """The fastest of some processes."""
    command = [sys.executable, __file__, "--child", who, str(path)]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(repeats)
    ]
    best, size = min(runs, key=lambda run: run["seconds"]), path.stat().st_size
    seconds = best["seconds"]
    return Row(
        who,
        best["edges"],
        vertices,
        size,
        seconds,
        size / 1e6 / seconds,
        best["edges"] / seconds,
        max(run["grew_bytes"] for run in runs),
    )


def table(rows: Sequence[Row], skipped: Sequence[str]) -> str:
    lines = [f"{'':8}{'edges':>12}{'seconds':>9}{'MB/s':>8}{'M edges/s':>11}{'grew MiB':>10}"]
    lines += [
        f"{r.who:8}{r.edges:12,}{r.seconds:9.2f}{r.mb_per_second:8.0f}"
        f"{r.edges_per_second / 1e6:11.1f}{r.grew_bytes / 2**20:10.0f}"
        for r in rows
    ]
    return "\n".join([*lines, *skipped])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--edges", type=int, default=EDGES, help=f"lines of the file (default: {EDGES:,})")
    add("--vertices", type=int, help="ids are drawn from 3 times as many (default: edges / 20)")
    add("--memory", default="512MiB", help="what gnnjit may grow by (default: 512MiB)")
    add("--repeats", type=int, default=3, help="processes of each reader (default: 3)")
    add("--folder", type=pathlib.Path, help="where the file and store lie (default: temporary)")
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    add("--smoke", action="store_true", help="few edges, one repeat: does it run?")
    add("--child", nargs=2, metavar=("WHO", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        return child(args.child[0], pathlib.Path(args.child[1]))
    edges = 20_000 if args.smoke else args.edges
    if edges < 1 or args.repeats < 1:
        parser.error(f"argument --edges: {edges}, --repeats: {args.repeats}, expected 1 or more")
    vertices, bound = args.vertices or max(2, edges // 20), parse_size(args.memory)
    rows, skipped = [], []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = pathlib.Path(folder) / "edges.tsv"
        write_file(path, edges, vertices)
        for who in READERS:
            if importlib.util.find_spec(who) is None:
                skipped.append(f"{who}: not installed")
                continue
            rows.append(measure_one(who, path, vertices, 1 if args.smoke else args.repeats))
    print(table(rows, skipped))
    own = rows[0].grew_bytes
    within = "within" if own <= bound else "MORE THAN"
    print(f"gnnjit grew by {own / 2**20:.0f} MiB, {within} the bound of {bound / 2**20:.0f} MiB")
    facts = {"machine": measure.machine(measure.usable_cpus()), "versions": measure.versions()}
    for row in rows:
        line = {"benchmark": "reading", "smoke": args.smoke, **dataclasses.asdict(row), **facts}
        measure.append(args.json, line)
    return 0 if own <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
