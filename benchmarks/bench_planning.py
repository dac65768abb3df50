"""How long does it take to plan a model?

    python benchmarks/bench_planning.py --smoke
    python benchmarks/bench_planning.py --json benchmarks/results/planning.jsonl

Models of three layers, in inference and in training, each in a process of its own: the first size
that it plans, further sizes, and the same once more. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import gc
import itertools
import multiprocessing
import pathlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import measure
from flax import nnx

import gnnjit
from gnnjit.compiler.call import TracedCall, recorded_calls
from gnnjit.cost.machine import platform_here
from gnnjit.ir.space import Space
from gnnjit.nn import recipes
from gnnjit.nn.classifiers import lookup
from gnnjit.planner.plan import Problem
from gnnjit.planner.search import plan

MODELS = {
    "gcn": ("gcn", 1), "sage": ("sage", 1), "gin": ("gin", 1), "gat": ("gat", 1),
    "gat, 4 heads": ("gat", 4), "gatv2, 4 heads": ("gatv2", 4), "gatedgcn": ("gatedgcn", 1),
    "edgeconv": ("edgeconv", 1),
}  # fmt: skip
SMOKE = ("gcn",)
DIRECTIONS = ("inference", "training")
LAYERS, CLASSES, DEGREE = 3, 7, 4


@dataclasses.dataclass(frozen=True)
class Row:
    """Milliseconds for all layers of a model: the first plans of a process, median and most of the
    sizes after that, and the median of planning the same once more. alternatives: what was weighed,
    of all layers."""

    model: str
    direction: str
    alternatives: int
    first_ms: float
    median_ms: float
    most_ms: float
    again_ms: float


def problems(kind: str, heads: int, size: int, training: bool) -> list[Problem]:
    """What is planned for a model: one for each layer. All that is computed from parameters has a
    gradient in training."""
    vertices, features, hidden = 1000 + size, 300 + size, 16 + size
    built = recipes.build(
        kind, in_features=features, hidden=hidden, num_classes=CLASSES, layers=LAYERS, heads=heads,
        dropout=0.0, rngs=nnx.Rngs(0),
    )  # fmt: skip
    src, dst = np.random.default_rng(0).integers(0, vertices, (2, DEGREE * vertices))
    graph = gnnjit.Graph.from_edges(src, dst, num_nodes=vertices)
    definition, params, rest = nnx.split(built, nnx.Param, ...)

    def predict(params: Any, x: Any) -> Any:
        return nnx.merge(definition, params, rest)(graph, x)

    with recorded_calls() as calls:
        jax.eval_shape(predict, params, jax.ShapeDtypeStruct((vertices, features), np.float32))
    encoded = lookup(kind).encoder
    return [
        _problem(call, training, features_move=encoded or i > 0) for i, call in enumerate(calls)
    ]


def _problem(traced_call: TracedCall, training: bool, features_move: bool) -> Problem:
    arrays, call = traced_call.call()
    spaces = dict(zip(call.slots, (v.space for v in call.program.inputs), strict=True))
    moves = tuple(
        jnp.issubdtype(x.dtype, jnp.inexact) and (features_move or spaces[i] is Space.SHARED)
        for i, x in enumerate(arrays)
    )
    return call.problem(traced_call.graph, arrays, moves if training else None, platform_here())


def planned(some: Sequence[Problem]) -> tuple[float, int]:
    """Seconds for all of them, and how many alternatives were weighed. Python's garbage collector
    walks over everything that JAX holds now and then: it does so before."""
    gc.collect()
    start = time.perf_counter()
    plans = [plan(p) for p in some]
    return time.perf_counter() - start, sum(len(p.every) for p in plans)


def measure_one(model: str, direction: str, sizes: Sequence[int]) -> Row:
    """In a process that has not planned anything yet."""
    new, again, weighed = [], [], 0
    for size in sizes:
        some = problems(*MODELS[model], size, direction == "training")
        seconds, weighed = planned(some)
        new.append(1e3 * seconds)
        again.append(1e3 * planned(some)[0])
    first, *later = new
    middle, most = float(np.median(later)), max(later)
    return Row(model, direction, weighed, first, middle, most, float(np.median(again)))


def measure_all(models: Iterable[str], sizes: Sequence[int]) -> Iterator[Row]:
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, fresh, max_tasks_per_child=1) as processes:
        for model, direction in itertools.product(models, DIRECTIONS):
            yield processes.submit(measure_one, model, direction, sizes).result()


def table(rows: Sequence[Row]) -> str:
    head = f"{'model':16}{'direction':11}{'weighed':>8}"
    lines = [head + f"{'first ms':>10}{'median ms':>11}{'most ms':>9}{'again ms':>10}"]
    for r in rows:
        what = f"{r.model:16}{r.direction:11}{r.alternatives:8}"
        lines.append(
            what + f"{r.first_ms:10.1f}{r.median_ms:11.1f}{r.most_ms:9.1f}{r.again_ms:10.3f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--sizes", type=int, default=12, help="after the first (default: 12)")
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    add("--smoke", action="store_true", help="one model: does it run?")
    args = parser.parse_args(argv)
    args.sizes = 1 if args.smoke else args.sizes
    if args.sizes < 1:
        parser.error(f"argument --sizes: {args.sizes}, expected 1 or more")
    rows = list(measure_all(SMOKE if args.smoke else MODELS, range(1 + args.sizes)))
    print(table(rows))
    facts = {"machine": measure.machine(measure.usable_cpus()), "versions": measure.versions()}
    for row in rows:
        measure.append(args.json, {"benchmark": "planning", **facts, **dataclasses.asdict(row)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
