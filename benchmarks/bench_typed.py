"""How fast are models of typed graphs?

    python benchmarks/bench_typed.py --smoke
    python benchmarks/bench_typed.py --json benchmarks/results/typed.jsonl

Value and gradients of R-GCN, HGT and HAN beside PyTorch Geometric's modules with the same weights,
and of R-GCN whose edges belong to one relation or to many. See benchmarks/README.md.
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
from collections.abc import Sequence
from typing import Any

from common import measure
from rich.console import Console
from typed.graphs import Size

HERE = pathlib.Path(__file__).parent
MODELS = ("rgcn", "hgt", "han")
FORMS = {
    ("gnnjit", "rgcn"): ("typed", "by number"),
    ("gnnjit", "hgt"): ("typed",),
    ("gnnjit", "han"): ("typed",),
    ("pyg", "rgcn"): ("RGCNConv", "FastRGCNConv"),
    ("pyg", "hgt"): ("HGTConv",),
    ("pyg", "han"): ("HANConv",),
}
"""Side and model -> its forms; gnnjit's first one tells what is right."""

TOLERANCE = 1e-4
"""Largest difference from it, over the largest number of each array."""

KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_ARENA_MAX": "1"}
"""What `gnnjit.keep_memory` tells the C library, for both sides."""

SIZE = Size(20_000, 800_000, 64, 4)
MANY = Size(14_541, 272_115, 64, 4)
"""Of the question about relations: the vertices and edges of FB15k-237."""

MOST_BYTES = 1 << 32
"""Of an array of edges x width x width."""

SMOKE = Size(30, 200, 8, 2)

Row = dict[str, Any]


def run(side: str, model: str, form: str, folder: pathlib.Path, size: Size, repeats: int) -> Row:
    """One side of one case, in a process of its own."""
    options = json.dumps({**dataclasses.asdict(size), "repeats": repeats})
    done = subprocess.run(
        [sys.executable, "-m", "typed.child", side, model, form, str(folder), options],
        cwd=HERE, capture_output=True, text=True, env={**os.environ, **KEPT},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{side} {model} {form} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def case(model: str, size: Size, sides: Sequence[str], repeats: int, turns: int) -> list[Row]:
    """The rows of all forms: the best of so many turns each."""
    forms = [(side, f) for side in sides for f in FORMS[side, model] if fits(f, size)]
    best: dict[tuple[str, str], Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        for side, form in forms * turns:
            row = run(side, model, form, pathlib.Path(folder), size, repeats)
            if not row["error"] <= TOLERANCE:
                raise RuntimeError(
                    f"{side} {model} {form}: {row['worst']} differs by {row['error']:.2g} of its "
                    f"largest number, expected at most {TOLERANCE}"
                )
            old = best.get((side, form), row)
            best[side, form] = min(old, row, key=lambda r: r["seconds"])
    return [{"side": side, "form": form, **row} for (side, form), row in best.items()]


def fits(form: str, size: Size) -> bool:
    """FastRGCNConv makes a matrix for each edge."""
    return form != "FastRGCNConv" or 4 * size.edges * size.width**2 <= MOST_BYTES


def has_pyg() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "torch_geometric"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated (default: all)")
    parser.add_argument("--relations", default="1,10,140", help="numbers of relations of R-GCN")
    parser.add_argument("--repeats", type=int, default=10, help="steps of a process")
    parser.add_argument("--turns", type=int, default=2, help="processes of each form")
    parser.add_argument("--json", type=pathlib.Path, help="append a line per form")
    parser.add_argument("--smoke", action="store_true", help="tiny graphs: does it run?")
    args = parser.parse_args(argv)
    models = args.models.split(",")
    if unknown := sorted(set(models) - set(MODELS)):
        raise SystemExit(f"--models: unknown {unknown}, expected some of {list(MODELS)}")
    sides = ["gnnjit", "pyg"] if has_pyg() else ["gnnjit"]
    repeats, turns = (2, 1) if args.smoke else (args.repeats, args.turns)
    cases = [("models", m, SMOKE if args.smoke else SIZE) for m in models]
    counts = [3] if args.smoke else [int(n) for n in args.relations.split(",") if n]
    base = SMOKE if args.smoke else MANY
    cases += [("relations", "rgcn", dataclasses.replace(base, relations=n)) for n in counts]
    facts = {
        "benchmark": "typed", "smoke": args.smoke,
        "machine": measure.machine(measure.usable_cpus()), "versions": measure.versions(),
    }  # fmt: skip
    console = Console()
    if len(sides) == 1:
        console.print("PyTorch Geometric is not installed: gnnjit alone")
    for question, model, size in cases:
        for row in case(model, size, sides, repeats, turns):
            line = {"question": question, "model": model, **dataclasses.asdict(size), **row}
            measure.append(args.json, facts | line)
            memory = "" if row["bytes"] is None else f"{row['bytes'] / 2**20:7.0f} MiB"
            console.print(
                f"{question:10} {model:5} {size.relations:4} relations  {row['side']:7} "
                f"{row['form']:13} {1e3 * row['seconds']:9.2f} ms {memory}",
                highlight=False,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
