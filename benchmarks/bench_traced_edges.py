"""What does it cost that edges are made inside a compiled function?

    python benchmarks/bench_traced_edges.py --smoke
    python benchmarks/bench_traced_edges.py --json benchmarks/results/traced_edges.jsonl

A step of molecular dynamics: the forces of a Lennard-Jones fluid, whose neighbour list is new in
every step, beside plain JAX's forms. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.spatial
from common import measure
from jax import lax

import gnnjit

SPACING, CUTOFF = 1.1, 2.5
TOLERANCE = 2e-5
"""Largest difference allowed, over the largest force."""

Forces = Callable[..., jax.Array]


@dataclasses.dataclass(frozen=True)
class Fluid:
    """Particles, and lists of their neighbours with room for more; `N` marks "no neighbour".

    Attributes:
        position: `float32[N, 3]`.
        sorted: `int32[2, E]`, both directions by receiver, then sender.
        shuffled: the same in any order.
        half: `int32[2, E / 2]`, each pair once.
        dense: `int32[N, K]`, the neighbours of each particle.
    """

    position: np.ndarray
    sorted: np.ndarray
    shuffled: np.ndarray
    half: np.ndarray
    dense: np.ndarray


def fluid(side: int, seed: int = 0, room: float = 1.1) -> Fluid:
    """`side ** 3` particles near the points of a lattice."""
    rng = np.random.default_rng(seed)
    lattice = np.stack(np.meshgrid(*[np.arange(side)] * 3), -1).reshape(-1, 3)
    position = (SPACING * (lattice + rng.uniform(-0.1, 0.1, lattice.shape))).astype(np.float32)
    position = position[rng.permutation(len(position))]
    pairs = scipy.spatial.cKDTree(position).query_pairs(CUTOFF, output_type="ndarray").T
    both = np.concatenate([pairs, pairs[::-1]], axis=1)
    by_receiver = both[:, np.lexsort(both)]
    n, slots = len(position), int(room * both.shape[1])
    degree = np.bincount(both[1], minlength=n)
    dense = np.full((n, int(room * degree.max())), n, np.int32)
    place = np.arange(both.shape[1]) - np.repeat(np.cumsum(degree) - degree, degree)
    dense[by_receiver[1], place] = by_receiver[0]

    def with_room(edges: np.ndarray, slots: int) -> np.ndarray:
        return np.pad(edges, ((0, 0), (0, slots - edges.shape[1])), constant_values=n).astype("i4")

    shuffled = both[:, rng.permutation(both.shape[1])]
    return Fluid(
        position, with_room(by_receiver, slots), with_room(shuffled, slots),
        with_room(pairs, slots // 2), dense,
    )  # fmt: skip


def potential(square: Any) -> Any:
    """The energy of two particles, from the square of their distance."""
    power = 1 / (square * square * square)
    return 4 * (power * power - power)


# Plain JAX ----------------------------------------------------------------------------------------


def distances(a: jax.Array, b: jax.Array, real: jax.Array) -> jax.Array:
    """Squared distances; 1 in padding, which is left out later: the gradient of 1 / 0 is NaN."""
    r = a - b
    return jnp.where(real, jnp.sum(r * r, axis=-1), 1)


def gather_and_scatter(x: jax.Array, edges: jax.Array, share: float) -> jax.Array:
    """The gradient of the sum over all edges."""
    real = edges[0] < len(x)

    def energy(x: jax.Array) -> jax.Array:
        ends = [x.at[end].get(mode="clip") for end in edges]
        return share * jnp.sum(jnp.where(real, potential(distances(*ends, real)), 0))

    return -jax.grad(energy)(x)


def segment_sum(x: jax.Array, edges: jax.Array, is_sorted: bool) -> jax.Array:
    """Forces by hand: one sum into the receivers, of edges in both directions."""
    real = edges[0] < len(x)
    src, dst = (x.at[end].get(mode="clip") for end in edges)
    slope = jax.vmap(jax.grad(potential))(distances(src, dst, real))
    terms = -2 * jnp.where(real, slope, 0)[:, None] * (dst - src)
    return jax.ops.segment_sum(terms, edges[1], len(x), indices_are_sorted=is_sorted)


def dense_list(x: jax.Array, neighbors: jax.Array) -> jax.Array:
    """Neighbours do not move: each particle's force is the gradient of its own energy."""
    real = neighbors < len(x)
    others = lax.stop_gradient(x).at[neighbors].get(mode="clip")

    def energy(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(real, potential(distances(x[:, None], others, real)), 0))

    return -jax.grad(energy)(x)


# gnnjit -------------------------------------------------------------------------------------------


@gnnjit.layer
def energies(v: Any, e: Any) -> Any:
    r = v - e.src
    return gnnjit.sum(potential(jnp.sum(r * r)))


@gnnjit.layer
def energies_of_moved(v: Any, e: Any) -> Any:
    """Like `energies`; a particle is a pair `(where it is, where others see it)`."""
    r = v[0] - e.src[1]
    return gnnjit.sum(potential(jnp.sum(r * r)))


def by_gradient(x: jax.Array, edges: jax.Array, share: float, **said: Any) -> jax.Array:
    graph = gnnjit.Graph.from_edges(*edges, len(x), **said)
    return -jax.grad(lambda x: share * jnp.sum(energies(graph, x)))(x)


def by_own_position(x: jax.Array, edges: jax.Array, **said: Any) -> jax.Array:
    """Neighbours do not move, as in `dense_list`: only the in-edges are read."""
    graph = gnnjit.Graph.from_edges(*edges, len(x), **said)
    seen = lax.stop_gradient(x)
    return -jax.grad(lambda x: jnp.sum(energies_of_moved(graph, (x, seen))))(x)


def of_dense(x: jax.Array, neighbors: jax.Array) -> jax.Array:
    """The dense list as edges that are sorted, padding among them."""
    receivers = jnp.repeat(jnp.arange(len(x), dtype=neighbors.dtype), neighbors.shape[1])
    edges = jnp.stack([neighbors.reshape(-1), receivers])
    return by_own_position(x, edges, sorted_by="dst")


def sorting(x: jax.Array, edges: jax.Array, **said: Any) -> Any:
    graph = gnnjit.Graph.from_edges(*edges, len(x), **said)
    return graph.in_structure, graph.out_structure.neighbor


@dataclasses.dataclass(frozen=True)
class Form:
    """One way to the forces.

    Attributes:
        list: the field of `Fluid` that it takes.
        forces: what it computes; no forces where it only builds the graph (`built`).
    """

    who: str
    title: str
    list: str
    forces: Callable[..., Any]
    built: bool = False


def _form(who: str, title: str, kind: str, fn: Any, built: bool = False, **options: Any) -> Form:
    return Form(who, title, kind, lambda x, edges: fn(x, edges, **options), built)


SORTED = {"sorted_by": "dst", "symmetric": True}
FORMS = (
    _form("jax", "gather, scatter", "shuffled", gather_and_scatter, share=0.5),
    _form("jax", "segment_sum", "shuffled", segment_sum, is_sorted=False),
    _form("jax", "gather, scatter", "half", gather_and_scatter, share=1.0),
    _form("jax", "gather, scatter", "sorted", gather_and_scatter, share=0.5),
    _form("jax", "segment_sum", "sorted", segment_sum, is_sorted=True),
    _form("jax", "dense list", "dense", dense_list),
    _form("gnnjit", "gradient", "shuffled", by_gradient, share=0.5),
    _form("gnnjit", "gradient, symmetric", "shuffled", by_gradient, share=0.5, symmetric=True),
    _form("gnnjit", "own position", "shuffled", by_own_position),
    _form("gnnjit", "gradient", "half", by_gradient, share=1.0),
    _form("gnnjit", "gradient, symmetric", "sorted", by_gradient, share=0.5, **SORTED),
    _form("gnnjit", "own position", "sorted", by_own_position, sorted_by="dst"),
    _form("gnnjit", "own position", "dense", of_dense),
    _form("gnnjit", "the graph alone", "shuffled", sorting, built=True),
    _form("gnnjit", "the graph alone", "sorted", sorting, built=True, **SORTED),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """Milliseconds of one call: least and median, and the least processor time."""

    who: str
    form: str
    list: str
    built: bool
    particles: int
    slots: int
    least_ms: float
    median_ms: float
    processor_ms: float
    error: float


def measure_all(fluid: Fluid, repeats: int, calls: int) -> list[Row]:
    """All forms take turns, so that whatever else the machine does hits all alike.

    Raises RuntimeError where forces differ.
    """
    x = jax.device_put(fluid.position)
    ready = []
    expected = None
    for form in FORMS:
        edges = jax.device_put(getattr(fluid, form.list))
        run = jax.jit(form.forces)
        found = jax.block_until_ready(run(x, edges))
        error = 0.0
        if not form.built:
            expected = found if expected is None else expected
            error = float(jnp.abs(found - expected).max() / jnp.abs(expected).max())
            if not error <= TOLERANCE:
                raise RuntimeError(f"{form.title}, {form.list}: the forces differ by {error:.2g}")
        ready.append((form, run, edges, error))
    times: dict[int, list[tuple[float, float]]] = {i: [] for i in range(len(ready))}
    for _ in range(repeats):
        for i, (_, run, edges, _) in enumerate(ready):
            started, busy = time.perf_counter(), time.process_time()
            for _ in range(calls):
                jax.block_until_ready(run(x, edges))
            seconds, used = time.perf_counter() - started, time.process_time() - busy
            times[i].append((1e3 * seconds / calls, 1e3 * used / calls))
    rows = []
    for i, (form, _, edges, error) in enumerate(ready):
        wall, used = np.array(times[i]).T
        rows.append(
            Row(
                form.who, form.title, form.list, form.built, len(fluid.position),
                int(edges.size if form.list == "dense" else edges.shape[1]),
                float(wall.min()), float(np.median(wall)), float(used.min()), error,
            )
        )  # fmt: skip
    return rows


KINDS = {"any order": ("shuffled", "half"), "sorted": ("sorted", "dense")}


def ratios(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Plain JAX's best form over gnnjit's best, by how the list comes, of medians; against all
    forms of plain JAX, and against those that take lists of edges."""
    out = {}
    forces = [row for row in rows if not row.built]
    for kind, lists in KINDS.items():
        ours = min(r.median_ms for r in forces if r.who == "gnnjit" and r.list in lists)
        peers = [r for r in forces if r.who == "jax"]
        out[kind] = {
            "all": min(r.median_ms for r in peers) / ours,
            "same list": min(r.median_ms for r in peers if r.list in lists) / ours,
            "edge lists": min(r.median_ms for r in peers if r.list != "dense") / ours,
        }
    return out


def table(rows: Sequence[Row]) -> str:
    head = f"{'':8}{'form':22}{'list':10}{'slots':>9}{'least ms':>10}{'median ms':>11}{'cpu ms':>9}"
    lines = [
        f"{r.who:8}{r.form:22}{r.list:10}{r.slots:9}{r.least_ms:10.3f}{r.median_ms:11.3f}"
        f"{r.processor_ms:9.3f}"
        for r in rows
    ]
    for kind, found in ratios(rows).items():
        shown = ", ".join(f"{value:.2f} x ({name})" for name, value in found.items())
        lines.append(f"{kind}: plain JAX's best over gnnjit's best: {shown}")
    return "\n".join([head, *lines])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--side", type=int, default=13, help="particles along one side (default: 13)")
    add("--repeats", type=int, default=60, help="turns (default: 60)")
    add("--calls", type=int, default=5, help="in a row, each turn (default: 5)")
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    add("--smoke", action="store_true", help="few particles, few turns: does it run?")
    args = parser.parse_args(argv)
    if args.smoke:
        args.side, args.repeats, args.calls = 4, 2, 1
    for name in ("side", "repeats", "calls"):
        if getattr(args, name) < 1:
            parser.error(f"argument --{name}: {getattr(args, name)}, expected 1 or more")
    facts = {"machine": measure.machine(measure.usable_cpus()), "versions": measure.versions()}
    rows = measure_all(fluid(args.side), args.repeats, args.calls)
    print(table(rows))
    for row in rows:
        line = {"benchmark": "traced_edges", **facts, **dataclasses.asdict(row)}
        measure.append(args.json, line)
    measure.append(args.json, {"benchmark": "traced_edges", **facts, "ratios": ratios(rows)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
