"""What does it cost to spread a graph over many devices, and what would it on many GPUs?

    python benchmarks/bench_shard.py --smoke
    python benchmarks/bench_shard.py --data DIR --json benchmarks/results/shard.jsonl
    python benchmarks/bench_shard.py --questions bytes --counts 8,64 --graphs mesh

Bytes that travel, memory, time, and a model of time on other machines: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from common import measure
from shard import bytes, check, counts, layer_time, memory, model, work

Rows = Sequence[Any]
QUESTIONS: dict[str, tuple[Callable[[Any], Iterable[Any]], Callable[[Rows], Iterable[str]]]] = {
    "bytes": (bytes.rows, bytes.notes),
    "memory": (memory.rows, memory.notes),
    "time": (layer_time.rows, layer_time.notes),
    "check": (check.rows, check.notes),
    "counts": (counts.rows, counts.notes),
    "model": (model.rows, model.notes),
}


def table(rows: Rows) -> str:
    """In Markdown: one line a row; the names of its fields above."""
    names = [f.name.replace("_", " ") for f in dataclasses.fields(rows[0])]
    cells = [names, ["-" * len(n) for n in names]]
    cells += [[_text(x) for x in dataclasses.astuple(r)] for r in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells)


def _text(x: Any) -> str:
    return "–" if x is None or x != x else f"{x:.3g}" if isinstance(x, float) else str(x)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--questions", default=",".join(QUESTIONS), help="default: all")
    given = {"graphs": str, "cuts": str, "counts": int, "all_layers": int, "memory_counts": int,
             "memory_graphs": str, "time_counts": int, "time_graphs": str, "models": str,
             "targets": int, "grown": int, "families": str}  # fmt: skip
    for name in given:
        default = ",".join(map(str, getattr(work.Setting, name)))
        add(f"--{name.replace('_', '-')}", help=f"default: {default}")
    for name in ("features", "vertices", "repeats", "passes"):
        add(f"--{name}", type=int, help=f"default: {getattr(work.Setting, name)}")
    add("--data", metavar="DIR", default=os.environ.get("GNNJIT_DATA_DIR"),
        help="where the graphs of SNAP are (default: GNNJIT_DATA_DIR)")  # fmt: skip
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    add("--smoke", action="store_true", help="tiny sizes: does it run?")
    args = vars(parser.parse_args(argv))
    names = {f.name for f in dataclasses.fields(work.Setting)}
    fields = {k: v for k, v in args.items() if k in names and v is not None}
    fields |= {
        k: tuple(map(kind, fields[k].split(","))) for k, kind in given.items() if k in fields
    }
    setting = dataclasses.replace(work.SMOKE if args["smoke"] else work.Setting(), **fields)
    facts = {"machine": measure.machine(measure.usable_cpus()), "versions": measure.versions()}
    facts["setting"] = {k: v for k, v in dataclasses.asdict(setting).items() if k != "data"}
    for question in args["questions"].split(","):
        measured, noted = QUESTIONS[question]
        head = {"benchmark": "shard", "question": question}
        rows = []
        for row in measured(setting):
            rows.append(row)
            measure.append(args["json"], {**head, **dataclasses.asdict(row)})
        notes = list(noted(rows)) if rows else ["nothing to measure"]
        shown = [table(rows)] if rows else []
        print(f"--- {question}", *shown, *notes, sep="\n", flush=True)
        measure.append(args["json"], {**head, "notes": notes, **facts})
    return 0


if __name__ == "__main__":
    sys.exit(main())
