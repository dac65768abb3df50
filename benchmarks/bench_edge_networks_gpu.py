"""How fast are edge networks on a GPU?

    python benchmarks/bench_edge_networks_gpu.py --smoke          # anywhere
    python benchmarks/bench_edge_networks_gpu.py --json benchmarks/results/edge_networks_gpu.jsonl

The networks of `bench_edge_networks.py` (value and gradient of two stacked blocks) on one graph, as
a layer, plain and split by hand, in one process: a GPU's time is short, so all forms are compiled
side by side first. Then the forms of each network take turns. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import measure
from edge_networks import network
from edge_networks.table import NETWORKS

FORMS = ("layer", "plain", "split")
SIZE, SMOKE = "50000x800000x128", "40x300x16"
FILL = 0.06
"""Seconds of a turn."""
MOST = 200
"""Calls of a turn at most."""

Row = dict[str, Any]


def compiled(
    names: Sequence[str], size: tuple[int, int, int], threads: int
) -> Iterator[tuple[str, dict[str, tuple[Any, Any]]]]:
    """Each network with its forms, compiled: what runs, and its arguments."""
    vertices, edges, width = size
    graphs = {both: network.make(vertices, edges, both_ways=both) for both in (False, True)}
    started: dict[str, dict[str, tuple[Any, Any]]] = {}
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for name in names:
            found, narrow = NETWORKS[name], max(width // NETWORKS[name].narrower, 4)
            inputs = graphs[found.both_ways]
            features = network.state(found, inputs, narrow)
            args = network.stack_parameters(found, narrow), features, inputs
            for form in (f for f in FORMS if f in found.forms()):
                step = jax.value_and_grad(network.stack(found, form), argnums=(0, 1))
                lowered = jax.jit(step).lower(*args)
                started.setdefault(name, {})[form] = pool.submit(lowered.compile), args
        for name in names:
            forms = started.pop(name)
            yield name, {form: (future.result(), args) for form, (future, args) in forms.items()}


def difference(found: Any, expected: Any) -> float:
    """The largest over arrays of |found - expected| / |expected|."""

    def of(a: Any, b: Any) -> Any:
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        return jnp.linalg.norm(a - b) / jnp.maximum(jnp.linalg.norm(b), 1e-30)

    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(of(a, b)) for a, b in pairs)


def turns(calls: dict[str, Callable[[], Any]], rounds: int, fill: float) -> dict[str, list[float]]:
    """Seconds of a call, in so many turns; calls follow each other without a wait."""

    def once(call: Callable[[], Any], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            out = call()
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / count

    counts = {k: min(MOST, max(1, int(fill / once(call, 1)))) for k, call in calls.items()}
    times: dict[str, list[float]] = {k: [] for k in calls}
    for _ in range(rounds):
        for k, call in calls.items():
            times[k].append(once(call, counts[k]))
    return times


def rows(
    name: str, forms: dict[str, tuple[Any, Any]], size: tuple[int, int, int], rounds: int
) -> Iterator[Row]:
    """A record for each form of a network."""
    vertices, edges, width = size
    calls = {form: (lambda run=run, args=args: run(*args)) for form, (run, args) in forms.items()}
    expected = calls["plain"]()
    errors = {form: difference(call(), expected) for form, call in calls.items()}
    del expected
    times = turns(calls, rounds, FILL)
    for form, (run, _) in forms.items():
        yield {
            "benchmark": "edge_networks_gpu", "network": name, "form": form, "vertices": vertices,
            "edges": edges, "width": max(width // NETWORKS[name].narrower, 4),
            "least_seconds": min(times[form]), "median_seconds": float(np.median(times[form])),
            "temp_bytes": run.memory_analysis().temp_size_in_bytes, "error": errors[form],
            "tolerance": NETWORKS[name].tolerance,
            "flops": NETWORKS[name].flops(vertices, edges, width),
        }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 where a form's values are not those of plain JAX."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(NETWORKS), help="comma-separated")
    parser.add_argument("--size", help=f"vertices x edges x width (default: {SIZE})")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each form")
    parser.add_argument("--json", type=pathlib.Path, help="append a line per form")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph: does it run?")
    args = parser.parse_args(argv)
    names = args.models.split(",")
    if unknown := sorted(set(names) - set(NETWORKS)):
        raise SystemExit(f"--models: unknown {unknown}, expected some of {list(NETWORKS)}")
    vertices, edges, width = map(int, (args.size or (SMOKE if args.smoke else SIZE)).split("x"))
    facts = {
        "smoke": args.smoke, "device": jax.devices()[0].device_kind,
        "machine": measure.machine(measure.usable_cpus()), "versions": measure.versions(),
    }  # fmt: skip
    wrong = 0
    for name, forms in compiled(names, (vertices, edges, width), measure.usable_cpus()):
        for row in rows(name, forms, (vertices, edges, width), 1 if args.smoke else args.rounds):
            measure.append(args.json, facts | row)
            fine = row["error"] <= max(row["tolerance"], 3e-2)  # tf32 turns maxima that are close
            wrong += not fine
            print(
                f"{name:10} {row['form']:6} {1e3 * row['least_seconds']:9.2f} ms "
                f"{row['temp_bytes'] / 2**20:7.0f} MiB, from plain {row['error']:.1e}"
                + ("" if fine else " WRONG"), flush=True,
            )  # fmt: skip
        forms.clear()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
