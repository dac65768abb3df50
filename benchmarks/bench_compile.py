"""How long does an edge network take to compile, and its step to run, beside plain JAX?

    python benchmarks/bench_compile.py --smoke
    python benchmarks/bench_compile.py --json benchmarks/results/compile.jsonl

Value and gradient. Each form is compiled in a process of its own, so that nothing that one has
traced or compiled helps another; then they take turns. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import measure
from edge_networks import single

import gnnjit
from gnnjit.lower.choose import prefer

FORMS = ("gnnjit", "chunks", "plain", "split")
"""gnnjit as it is, gnnjit in chunks of edges, and plain JAX in two forms."""

WIDTHS = (32, 64, 128)
TOLERANCE = 1e-3
"""Largest difference allowed, over the largest magnitude in the array."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A network, its width, and the graph."""

    network: str
    width: int
    vertices: int
    edges: int


@gnnjit.layer
def _first(v: Any, e: Any) -> Any:
    return gnnjit.sum(jax.nn.relu(e.src + v))


def warm_up() -> None:
    """Do what a process does once, whatever it compiles: it is not counted."""
    graph = gnnjit.Graph.from_edges([0, 1], [1, 0], num_nodes=2)
    x = jnp.ones((2, 3))
    loss = jax.grad(lambda x: jnp.square(_first(graph, x) @ x.T).sum())
    jax.block_until_ready(jax.jit(loss)(x))


class Case:
    """One form of one network, compiled when it is made."""

    def __init__(self, sizes: Sizes, form: str):
        model = single.MODELS[sizes.network]
        inputs = single.make(sizes.vertices, sizes.edges, sizes.width)
        self.arguments = single.parameters(model.shapes(sizes.width)), inputs
        function = {"plain": model.plain, "split": model.split}.get(form, model.layer)
        warm_up()
        with prefer("segment") if form == "chunks" else contextlib.nullcontext():
            wall, cpu = time.perf_counter(), time.process_time()
            step = jax.jit(jax.value_and_grad(function)).trace(*self.arguments)
            self.step = step.lower().compile()
        self.compile = time.perf_counter() - wall, time.process_time() - cpu

    def compiled(self) -> tuple[float, float]:
        """Seconds to compile, of the wall clock and of the processor."""
        return self.compile

    def values(self) -> list[np.ndarray]:
        return [np.asarray(x) for x in jax.tree.leaves(self.step(*self.arguments))]

    def run(self) -> tuple[float, float]:
        """Seconds of one step, of the wall clock and of the processor."""
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(self.step(*self.arguments))
        return time.perf_counter() - wall, time.process_time() - cpu


class Remote:
    """A case in a process of its own, with the same methods."""

    def __init__(self, sizes: Sizes, form: str):
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, sizes, form), daemon=True)
        self._process.start()
        other.close()

    def ask(self, method: str) -> Any:
        self._pipe.send(method)
        return self._pipe.recv()

    def close(self) -> None:
        self._process.terminate()
        self._process.join()
        self._pipe.close()


class Local:
    """A case in this process."""

    def __init__(self, sizes: Sizes, form: str):
        self._case = Case(sizes, form)

    def ask(self, method: str) -> Any:
        return getattr(self._case, method)()

    def close(self) -> None:
        """Nothing to end."""


def _serve(pipe: Any, sizes: Sizes, form: str) -> None:
    case = Case(sizes, form)
    while True:
        try:
            method = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(case, method)())


def bench(sizes: Sizes, repeats: int, passes: int, fresh: bool) -> list[dict[str, Any]]:
    """One record a form: the least of all passes of `repeats` turns each."""
    rows = [dataclasses.asdict(sizes) | {"benchmark": "compile", "form": f} for f in FORMS]
    times: dict[str, list[tuple[float, ...]]] = {form: [] for form in FORMS}
    for _ in range(passes):
        with contextlib.ExitStack() as stack:
            cases: dict[str, Remote | Local] = {}
            for form in FORMS:  # one after the other: they would disturb each other
                cases[form] = (Remote if fresh else Local)(sizes, form)
                stack.callback(cases[form].close)
                compiled = cases[form].ask("compiled")
                times[form].append((*compiled, np.inf, np.inf))
            _compare(sizes, {form: case.ask("values") for form, case in cases.items()})
            for _ in range(repeats):
                for form, case in cases.items():
                    times[form].append((np.inf, np.inf, *case.ask("run")))
    names = ("compile_seconds", "compile_cpu_seconds", "step_seconds", "step_cpu_seconds")
    for row in rows:
        row |= dict(zip(names, map(float, np.min(times[row["form"]], axis=0)), strict=True))
    return rows


def _compare(sizes: Sizes, values: dict[str, list[np.ndarray]]) -> None:
    """End the benchmark where a form computes other numbers than plain JAX."""
    for form, found in values.items():
        for got, want in zip(found, values["plain"], strict=True):
            error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
            if not error < TOLERANCE:
                raise SystemExit(f"WRONG: {form} of {sizes} differs by {error:.2g}")


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Compile times over those of plain JAX, and step times over those of gnnjit."""
    yield (
        "| network | width | compile: gnnjit | chunks | plain | over plain | step: gnnjit | chunks "
        "| plain | split | chunks, plain, split over gnnjit |"
    )
    yield "|" + " --- |" * 11
    for k in range(0, len(rows), len(FORMS)):
        some = {row["form"]: row for row in rows[k : k + len(FORMS)]}
        own = some["gnnjit"]
        compiled = {f: row["compile_cpu_seconds"] for f, row in some.items()}
        steps = {f: 1e3 * row["step_cpu_seconds"] for f, row in some.items()}
        ratios = [f"{steps[f] / steps['gnnjit']:.2f}" for f in FORMS[1:]]
        cells = [
            own["network"], str(own["width"]), *(f"{compiled[f]:.2f}" for f in FORMS[:3]),
            f"{compiled['gnnjit'] / compiled['plain']:.2f}", *(f"{steps[f]:.2f}" for f in FORMS),
            ", ".join(ratios),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    top.add_argument("--smoke", action="store_true", help="tiny sizes, seconds; times mean nothing")
    top.add_argument("--networks", default=",".join(single.MODELS), help="comma-separated")
    top.add_argument("--widths", default=",".join(map(str, WIDTHS)), help="comma-separated")
    top.add_argument("--vertices", type=int, default=2_000)
    top.add_argument("--edges", type=int, default=20_000)
    top.add_argument("--repeats", type=int, default=15)
    top.add_argument("--passes", type=int, default=3)
    top.add_argument("--json", type=pathlib.Path, help="append a line per form to this file")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    args = parser().parse_args(argv)
    networks = [name.strip() for name in args.networks.split(",")]
    unknown = set(networks) - set(single.MODELS)
    if unknown:
        known = list(single.MODELS)
        raise SystemExit(f"--networks: unknown {sorted(unknown)}, expected some of {known}")
    widths = [int(width) for width in args.widths.split(",")]
    if args.smoke:
        networks, widths = networks[:1], [4]
        args.vertices, args.edges, args.repeats, args.passes = 20, 60, 2, 1
    threads = measure.usable_cpus()
    facts = {
        "smoke": args.smoke, "machine": measure.machine(threads), "versions": measure.versions(),
    }  # fmt: skip
    rows = []
    for width in widths:
        for network in networks:
            sizes = Sizes(network, width, args.vertices, args.edges)
            some = bench(sizes, args.repeats, args.passes, fresh=not args.smoke)
            measure.append(args.json, *(facts | row for row in some))
            rows += some
            print(f"{network}, {width} wide: done", file=sys.stderr)
    print("\n".join(table(rows)))
    print(
        f"\n{args.vertices:,} vertices, {args.edges:,} edges; processor time of all threads, least "
        f"of {args.passes} processes and {args.repeats} turns in each; seconds to compile, "
        f"milliseconds a step; {os.cpu_count()} cores"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
