"""How accurate is a network that trains on samples of a graph, and how soon? And what do `gnnjit
train`'s tasks reach: links, vertices of typed graphs, several labels?

    python benchmarks/bench_accuracy.py --smoke
    python benchmarks/bench_accuracy.py --folder DATA --json benchmarks/results/accuracy.jsonl
    python benchmarks/bench_accuracy.py --folder DATA --tasks imdb/han,blogcatalog/gcn --json ...

Micro-F1 of GraphSAINT's network for PPI (Hamilton's 14,755 vertices, 121 labels): trained on
subgraphs of frontier sampling, on neighbours sampled layer by layer, or on the whole graph. DATA is
the folder that holds the data sets. With `--tasks` the recipes of these data sets and models are
trained, the mean of some seeds. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from common import measure
from rich.console import Console
from sampling.accuracy import curve
from tasks.runs import RUNS, trained

import gnnjit
from gnnjit.data import Dataset, open_dataset

KINDS = ("frontier", "neighbor", "full")


def tiny() -> Dataset:
    """A graph of 200 vertices with three labels that its features tell."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 8)).astype(np.float32)
    graph = gnnjit.Graph.from_edges(*rng.integers(0, 200, (2, 800)), num_nodes=200)
    part = rng.permutation(200) % 4
    return Dataset("tiny", graph, x, x[:, :3] > 0, part < 2, part == 2, part == 3, num_classes=3)


def train_tasks(args: argparse.Namespace, tasks: Sequence[str]) -> int:
    """Train each; a line for each evaluation, and one for the mean."""
    console = Console()
    facts = {
        "benchmark": "accuracy", "smoke": args.smoke, "device": jax.devices()[0].device_kind,
        "machine": measure.machine(measure.usable_cpus()), "versions": measure.versions(),
    }  # fmt: skip
    changes = {"epochs": args.epochs, "evaluate_every": args.evaluate_every}
    if args.smoke:
        tasks, args.seeds = ["tiny/lightgcn"], 2
        changes = {"epochs": 2, "evaluate_every": 1}
    for task in tasks:
        console.print(task)

        def told(line: dict[str, Any], task: str = task) -> None:
            measure.append(args.json, facts | {"task": task} | line)
            shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}
            console.print("  ".join(f"{k} {v}" for k, v in shown.items()), highlight=False)

        folder = None if args.smoke else args.folder
        for line in trained(task, folder, args.seeds, changes, told):
            told(line)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated (default: all)")
    parser.add_argument("--layers", default="2", help="numbers of layers (default: 2)")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--every", type=int, default=100, help="steps between two evaluations")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1, help="that sample (default: 1)")
    parser.add_argument("--tasks", help=f"comma-separated, of {', '.join(RUNS)}")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each task (default: 5)")
    parser.add_argument("--epochs", type=int, help="of each task (default: recipe)")
    parser.add_argument("--evaluate-every", type=int, help="epochs, of tasks (default: recipe)")
    parser.add_argument("--folder", type=pathlib.Path, help="where the data sets are")
    parser.add_argument("--json", type=pathlib.Path, help="append a line per evaluation")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph: does it run?")
    args = parser.parse_args(argv)
    kinds = args.kinds.split(",")
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise SystemExit(f"--kinds: unknown {unknown}, expected some of {list(KINDS)}")
    tasks = args.tasks.split(",") if args.tasks else []
    if unknown := sorted(set(tasks) - set(RUNS)):
        raise SystemExit(f"--tasks: unknown {unknown}, expected some of {list(RUNS)}")
    if args.smoke:
        args.steps, args.every, args.hidden = 4, 2, 8
    elif args.folder is None:
        raise SystemExit("--folder: missing, expected the folder that holds the data sets")
    if tasks:
        return train_tasks(args, tasks)
    data = tiny() if args.smoke else open_dataset("ppi", args.folder)
    facts = {
        "benchmark": "accuracy", "smoke": args.smoke, "data": data.name, "hidden": args.hidden,
        "of_steps": args.steps, "threads": args.threads,
        "device": jax.devices()[0].device_kind,
        "machine": measure.machine(measure.usable_cpus()), "versions": measure.versions(),
    }  # fmt: skip
    console = Console()
    for kind in kinds:
        for layers in map(int, args.layers.split(",")):
            console.print(f"{kind}, {layers} layers")
            points = curve(
                data, kind, layers, args.steps, args.every, hidden=args.hidden, threads=args.threads
            )
            for point in points:
                measure.append(args.json, facts | {"kind": kind, "layers": layers, **point})
                shown = {k: round(v, 4) for k, v in point.items()}
                console.print("  ".join(f"{k} {v}" for k, v in shown.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
