"""What do neighbourhoods that are not edges cost: selection, aggregation, update?

    python benchmarks/bench_neighborhoods.py --smoke
    python benchmarks/bench_neighborhoods.py --folder DATA --json FILE

PinSage and MAGNN, one layer, with gradients, on graphs of SNAP and on IMDB (FlexGraph's table 4);
beside PyTorch Geometric on the expansion computed before, and beside plain segment operations at
every level. Two schemas are wide: attention to 64 anchor sets, and MAGNN with eight metapaths.
Bytes of the HDG, and how time and bytes grow with the graph. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from common import measure
from neighborhoods import graphs, with_gnnjit
from rich.console import Console

import gnnjit
from gnnjit.neighborhood import HDG
from gnnjit.sample import Workers

MODELS = ("pinsage", "magnn", "pgnn", "magnn-wide")
TYPED = ("magnn", "magnn-wide")
WIDE = {"pgnn": 20_000, "magnn-wide": 20_000}
"""Models with wide schemas, and the vertices of the graphs that they run on at most: 64 rows of
features for each, or 80 instances of seven vertices."""
GRAPHS = ("notredame", "ego-twitter", "imdb")
SIZES = (20_000, 200_000)
"""Vertices of the graphs that are made, to see how time and bytes grow."""

TOLERANCE = 1e-3
"""Largest difference from gnnjit's result and gradient, over its largest number."""

Row = dict[str, Any]


def has_pyg() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "torch_geometric"))


def case(model: str, edges: graphs.Edges, width: int, repeats: int, sides: Sequence[str]) -> Row:
    """The times of one model on one graph, and bytes."""
    graph: Any = edges.typed
    if model not in TYPED:
        graph = gnnjit.Graph.from_edges(edges.src, edges.dst, edges.num_nodes)
    workers = Workers(measure.usable_cpus())
    hdg = graphs.selected(model, graph, edges, workers)
    times = {"selection": best(lambda: graphs.selected(model, graph, edges, workers), 1)}
    x, of_roots = features(hdg, width)
    p = with_gnnjit.params(model, hdg, width)
    runs: dict[str, Any] = {
        "hybrid": with_gnnjit.steps(model, hdg, x, of_roots, p, sparse=False),
        "sparse": with_gnnjit.steps(model, hdg, x, of_roots, p, sparse=True),
    }
    whole = np.concatenate(list(x.values())) if isinstance(x, dict) else x
    if "pyg" in sides:
        with_pyg = importlib.import_module("neighborhoods.with_pyg")
        with_pyg.prepare()
        first = sum(hdg.sizes[: hdg.types.index(hdg.root_type)]) if hdg.root_type else 0
        rows = slice(first, first + hdg.num_roots)
        runs["pyg"] = with_pyg.steps(model, expansion(model, hdg), whole, rows, p)
    check(runs)
    for name, (aggregate, update) in runs.items():
        times[f"aggregation, {name}"] = best(aggregate, repeats)
        if name != "sparse":
            times[f"update, {name}"] = best(update, repeats)
    report = hdg.report()
    return {
        "graph": edges.name, "model": model, "width": width, "vertices": edges.num_nodes,
        "edges": len(edges.src), "roots": hdg.num_roots, "types": hdg.num_types,
        "lowest_edges": hdg.parts[0].num_edges,
        "cut": report.cut, "seconds": {k: wall for k, (wall, _) in times.items()},
        "processor_seconds": {k: cpu for k, (_, cpu) in times.items()}, "bytes": report.num_bytes,
        "graph_bytes": report.graph_bytes, "list_bytes": report.list_bytes,
        "level_bytes": report.level_bytes,
    }  # fmt: skip


def features(hdg: HDG, width: int) -> tuple[Any, np.ndarray]:
    """`float32[N, width]`, by type where there are types; and those of the roots."""
    rng = np.random.default_rng(2)
    parts = [rng.normal(size=(n, width)).astype(np.float32) for n in hdg.sizes]
    if not hdg.types:
        return parts[0], parts[0]
    found = dict(zip(hdg.types, parts, strict=True))
    return found, found[hdg.root_type or ""]


def expansion(model: str, hdg: HDG) -> dict[str, np.ndarray]:
    """What PyTorch Geometric is given."""
    lowest = hdg.levels[0]
    src, dst = np.asarray(lowest.src, np.int64), np.asarray(lowest.dst, np.int64)
    if model not in TYPED:
        weight = np.asarray(hdg.edges[0])
        return {"src": src, "dst": dst, "weight": weight, "paths": np.array(hdg.num_types)}
    order = np.argsort(dst, kind="stable")
    return {
        "instance": src[order].reshape(-1, hdg.longest),
        "group": np.asarray(hdg.levels[1].dst, np.int64),
        "paths": np.array(hdg.num_types),
    }


def check(runs: dict[str, Any]) -> None:
    """Raises RuntimeError where a side gives other numbers than gnnjit."""

    def flat(name: str) -> list[np.ndarray]:
        out, of_x = runs[name][0]()
        of_types = of_x if isinstance(of_x, list) else [of_x]
        return [np.asarray(out), np.concatenate([np.asarray(rows) for rows in of_types])]

    want = flat("hybrid")
    for name in runs:
        for a, b in zip(flat(name), want, strict=True):
            if not np.abs(a - b).max() <= TOLERANCE * np.abs(b).max():
                raise RuntimeError(f"{name} differs from hybrid by {np.abs(a - b).max():.2g}")


def best(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """The least time that passed, and the least that processors took: on one core that is what
    other work does not lengthen."""
    run()
    found = []
    for _ in range(repeats):
        started = time.perf_counter(), time.process_time()
        run()
        found.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    walls, cpus = zip(*found, strict=True)
    return min(walls), min(cpus)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated (default: all)")
    parser.add_argument("--graphs", default=",".join(GRAPHS), help="comma-separated (default: all)")
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), help="of graphs that are made"
    )
    parser.add_argument("--width", type=int, default=64, help="of the features (default: 64)")
    parser.add_argument("--repeats", type=int, default=5, help="of which the least counts")
    parser.add_argument("--folder", type=pathlib.Path, help="where the data sets are")
    parser.add_argument("--json", type=pathlib.Path, help="append a line per graph and model")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph: does it run?")
    args = parser.parse_args(argv)
    models = args.models.split(",")
    if unknown := sorted(set(models) - set(MODELS)):
        raise SystemExit(f"--models: unknown {unknown}, expected some of {list(MODELS)}")
    names = [name for name in args.graphs.split(",") if name]
    if unknown := sorted(set(names) - set(GRAPHS)):
        raise SystemExit(f"--graphs: unknown {unknown}, expected some of {list(GRAPHS)}")
    sizes = [int(n) for n in args.sizes.split(",") if n]
    if args.smoke:
        names, sizes, args.width, args.repeats = [], [30], 4, 1
    elif names and args.folder is None:
        raise SystemExit("--folder: missing, expected the folder that holds the data sets")
    sides = ["gnnjit", "pyg"] if has_pyg() else ["gnnjit"]
    facts = {
        "benchmark": "neighborhoods", "smoke": args.smoke, "device": jax.devices()[0].device_kind,
        "machine": measure.machine(measure.usable_cpus()), "versions": measure.versions(),
    }  # fmt: skip
    console = Console()
    if len(sides) == 1:
        console.print("PyTorch Geometric is not installed: gnnjit alone")
    for model in models:  # selection is compiled once
        graphs.selected(model, *_tiny(model), Workers(1))
    for edges in [*(graphs.opened(name, args.folder) for name in names), *map(graphs.made, sizes)]:
        for model in models:
            if edges.num_nodes > WIDE.get(model, edges.num_nodes):
                continue
            row = case(model, edges, args.width, args.repeats, sides)
            measure.append(args.json, facts | row)
            times = "  ".join(f"{k} {1e3 * v:.2f} ms" for k, v in row["processor_seconds"].items())
            shown = f"{row['bytes'] / row['graph_bytes']:.2f} x the graph's bytes"
            console.print(f"{model} on {edges.name}: {times}  {shown}", highlight=False)
    return 0


def _tiny(model: str) -> tuple[Any, graphs.Edges]:
    edges = graphs.made(30)
    if model in TYPED:
        return edges.typed, edges
    return gnnjit.Graph.from_edges(edges.src, edges.dst, edges.num_nodes), edges


if __name__ == "__main__":
    sys.exit(main())
