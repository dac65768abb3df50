"""How long does a layer take to compile, beside plain JAX, in a first and in a second process?

    python benchmarks/bench_compile.py --smoke
    python benchmarks/bench_compile.py --json benchmarks/results/compile.jsonl

Value and gradient, of one block of each edge network, of the layers of `bench_layers.py` and of the
other layers of `gnnjit.nn` for vertices of one type, until all of the program's machine code is
there. Nothing runs. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from common import measure, workloads

LAYERS = ("gcn", "sage", "gin", "gat", "gatv2", "gatedgcn", "resgated", "pna", "transformer")
MODULES = ("appnp", "cheb", "commnet", "ggnn", "gine", "graphnet", "lightgcn", "ngcf")
NETWORKS = (
    "gns", "graphcast", "egnn", "forces", "painn", "mace", "gvp", "nequip", "nnconv", "edgeconv",
)  # fmt: skip
FORMS = ("plain", "first", "second")
"""Plain JAX; gnnjit where no process has kept machine code; gnnjit after one that has."""

WIDTHS = (16, 64, 128, 512)

LEGEND = (
    "*First*, *second*: how many times as long as plain JAX gnnjit takes in a first process, and "
    "in one after it."
)

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the graph."""

    vertices: int
    edges: int


def compilation(name: str, form: str, width: int, size: Size) -> Callable[[], Any]:
    """What traces and compiles a layer: `form` is "layer" or "plain"."""
    import jax

    if name in LAYERS:
        from layers import with_gnnjit, with_segment
        from layers.case import Execution

        sizes = workloads.Sizes(size.vertices, size.edges, width)
        module = with_gnnjit if form == "layer" else with_segment
        work = workloads.make(sizes)
        case = module.build(name, "default", work, Execution(threads=measure.usable_cpus()))
        return lambda: case.compile(["both"])
    if name in MODULES:
        from layers import modules

        step, given = modules.step(
            name, form, workloads.make(workloads.Sizes(size.vertices, size.edges, width))
        )
        return lambda: jax.jit(step).lower(*given).compile()
    from edge_networks import network
    from edge_networks.table import NETWORKS as networks

    found = networks[name]
    i = network.make(size.vertices, size.edges, both_ways=found.both_ways)
    features = network.state(found, i, width)
    p = network.stack_parameters(found, width, blocks=1)
    step = jax.jit(jax.value_and_grad(network.stack(found, form), argnums=(0, 1)))
    return lambda: step.lower(p, features, i).compile()


def seconds(name: str, form: str, widths: Sequence[int], size: Size) -> list[float]:
    """Seconds of each width, in this process."""
    from edge_networks.child import warm_up

    from gnnjit.lower.cpu import registered

    warm_up()
    out = []
    for width in widths:
        run = compilation(name, form, width, size)
        registered.finish()
        started = time.perf_counter()
        run()
        registered.finish()
        out.append(time.perf_counter() - started)
    return out


def in_fresh_process(*arguments: Any) -> list[float]:
    """As `seconds`."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(seconds, *arguments).result()


def bench(
    name: str, widths: Sequence[int], size: Size, passes: int, run: Callable[..., list[float]]
) -> list[Record]:
    """One record a width and form: the least of all passes."""
    best = {(form, width): float("inf") for form in FORMS for width in widths}
    for _ in range(passes):
        with tempfile.TemporaryDirectory() as folder:
            before = os.environ.get("XDG_CACHE_HOME")
            os.environ["XDG_CACHE_HOME"] = folder
            try:
                for form in FORMS:  # the first fills the folder that the second finds
                    found = run(name, "plain" if form == "plain" else "layer", widths, size)
                    for width, new in zip(widths, found, strict=True):
                        best[form, width] = min(best[form, width], new)
            finally:
                os.environ.pop("XDG_CACHE_HOME")
                if before is not None:
                    os.environ["XDG_CACHE_HOME"] = before
    return [
        {"benchmark": "compile", "layer": name, "width": width, "form": form,
         "seconds": best[form, width], **dataclasses.asdict(size)}
        for width in widths for form in FORMS
    ]  # fmt: skip


def table(records: Sequence[Record], widths: Sequence[int]) -> Iterator[str]:
    """A line per layer: of each width, plain JAX's seconds, and how many times as long both
    processes took."""
    yield "| layer |" + "".join(f" {w}: plain s | first | second |" for w in widths)
    yield "|" + " --- |" * (1 + 3 * len(widths))
    times = {(r["layer"], r["width"], r["form"]): r["seconds"] for r in records}
    for name in dict.fromkeys(r["layer"] for r in records):
        cells = []
        for width in widths:
            plain, *own = (times[name, width, form] for form in FORMS)
            cells += [f"{plain:.2f}", *(f"{x / plain:.1f}" for x in own)]
        yield f"| {name} | {' | '.join(cells)} |"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    top.add_argument("--smoke", action="store_true", help="tiny sizes, seconds; times mean nothing")
    every = ",".join((*NETWORKS, *LAYERS, *MODULES))
    top.add_argument("--layers", default=every, help="comma-separated (default: all)")
    top.add_argument("--widths", default=",".join(map(str, WIDTHS)), help="comma-separated")
    top.add_argument("--vertices", type=int, default=10_000)
    top.add_argument("--edges", type=int, default=100_000)
    top.add_argument("--passes", type=int, default=1, help="the least of so many (default: 1)")
    top.add_argument("--json", type=pathlib.Path, help="append a line per form to this file")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    args = parser().parse_args(argv)
    names = [name.strip() for name in args.layers.split(",")]
    known = [*NETWORKS, *LAYERS, *MODULES]
    if unknown := sorted(set(names) - set(known)):
        raise SystemExit(f"--layers: unknown {unknown}, expected some of {known}")
    widths, size = [int(w) for w in args.widths.split(",")], Size(args.vertices, args.edges)
    if args.smoke:
        widths, size = [8], Size(20, 60)
    threads = measure.usable_cpus()
    facts = {
        "smoke": args.smoke, "machine": measure.machine(threads), "versions": measure.versions(),
    }  # fmt: skip
    records: list[Record] = []
    for name in names:
        some = bench(name, widths, size, args.passes, seconds if args.smoke else in_fresh_process)
        measure.append(args.json, *(facts | record for record in some))
        records += some
        print(list(table(some, widths))[-1], file=sys.stderr, flush=True)
    print("\n".join(table(records, widths)))
    print(f"\n{size.vertices:,} vertices, {size.edges:,} edges; {threads} threads. {LEGEND}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
