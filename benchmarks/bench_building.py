"""How long does it take to build a graph from arrays of edges?

    python benchmarks/bench_building.py --smoke
    python benchmarks/bench_building.py --json benchmarks/results/building.jsonl

`gnnjit.Graph.from_edges` beside SciPy's conversions alone, one for each structure: a stable
counting sort on one core. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import scipy.sparse
from common import measure

import gnnjit

SIZES = ((100_000, 1_000_000), (1_000_000, 10_000_000), (3_000_000, 27_000_000))
"""Vertices and edges."""

ENDPOINTS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "uniform": lambda rng, n, e: rng.integers(0, n, e),
    "power law": lambda rng, n, e: (n * rng.random(e) ** 3).astype(np.int64),
    "sorted": lambda rng, n, e: np.sort(rng.integers(0, n, e)),
}
"""Destinations; sources are uniform."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Nanoseconds an edge: least and median of the clock, and least of the processors together."""

    who: str
    destinations: str
    vertices: int
    edges: int
    least_ns: float
    median_ns: float
    processor_ns: float


def scipy_alone(src: np.ndarray, dst: np.ndarray, n: int) -> list[Any]:
    """Both structures."""
    first = np.arange(len(src) + 1, dtype=src.dtype)
    ends = (src, dst), (dst, src)
    return [scipy.sparse.csc_array((a, b, first), shape=(n, len(src))).tocsr() for a, b in ends]


def gnnjit_graph(src: np.ndarray, dst: np.ndarray, n: int) -> gnnjit.Graph:
    return jax.block_until_ready(gnnjit.Graph.from_edges(src, dst, num_nodes=n))


def measure_all(sizes: Sequence[tuple[int, int]], repeats: int) -> list[Row]:
    rows = []
    for (n, e), (name, draw) in ((s, d) for s in sizes for d in ENDPOINTS.items()):
        rng = np.random.default_rng(0)
        ends = [x.astype(np.int32) for x in (rng.integers(0, n, e), draw(rng, n, e))]
        for who, build in (("SciPy", scipy_alone), ("gnnjit", gnnjit_graph)):
            build(*ends, n)
            taken = [timed(build, *ends, n) for _ in range(repeats)]
            wall, processor = ([1e9 * t / e for t in some] for some in zip(*taken, strict=True))
            least, middle = min(wall), statistics.median(wall)
            rows.append(Row(who, name, n, e, least, middle, min(processor)))
    return rows


def timed(build: Callable[..., Any], *arguments: Any) -> tuple[float, float]:
    """Seconds of the clock and of the processors."""
    clock, processor = time.perf_counter(), time.process_time()
    build(*arguments)
    return time.perf_counter() - clock, time.process_time() - processor


def table(rows: Sequence[Row]) -> str:
    head = f"{'':8}{'destinations':14}{'vertices':>10}{'edges':>11}{'least ns':>10}{'cpu ns':>9}"
    lines = [
        f"{r.who:8}{r.destinations:14}{r.vertices:10}{r.edges:11}{r.least_ns:10.1f}"
        f"{r.processor_ns:9.1f}"
        for r in rows
    ]
    return "\n".join([head, *lines])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--repeats", type=int, default=7, help="builds of each graph (default: 7)")
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    add("--smoke", action="store_true", help="few edges, few repeats: does it run?")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"argument --repeats: {args.repeats}, expected 1 or more")
    facts = {"machine": measure.machine(measure.usable_cpus()), "versions": measure.versions()}
    rows = measure_all(((1000, 5000),) if args.smoke else SIZES, 1 if args.smoke else args.repeats)
    print(table(rows))
    for row in rows:
        line = {"benchmark": "building", "smoke": args.smoke, **dataclasses.asdict(row), **facts}
        measure.append(args.json, line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
