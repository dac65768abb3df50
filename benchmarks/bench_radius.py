"""What does it cost to find all pairs within a radius anew, inside `jit`, and to step with them?

    python benchmarks/bench_radius.py --smoke
    pip install jax-md && python benchmarks/bench_radius.py --json benchmarks/results/radius.jsonl

A Lennard-Jones liquid (density 0.85, radius 2.5) in a periodic box: `gnnjit.geometry.RadiusSearch`
beside the lists of jax-md, where it is installed, without a skin, so that each step finds its pairs
anew. *Step*: pairs, forces by the gradient of the energy, and positions moved. In turns in one
process; the forces are compared first. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import measure

import gnnjit
from gnnjit.geometry import RadiusSearch, displacement

DENSITY, RADIUS = 0.85, 2.5
SIZES = (1_000, 8_000, 27_000)
FORMATS = ("Dense", "Sparse", "OrderedSparse")


@dataclasses.dataclass(frozen=True)
class Row:
    """Seconds of one form, as `compare` has them: finding pairs, or a whole step."""

    who: str
    what: str
    particles: int
    edges: int
    seconds: float


@gnnjit.layer
def energies(v: Any, e: Any, side: Any) -> Any:
    """Half the Lennard-Jones energy of a particle and each neighbour."""
    squared = jnp.square(displacement(v, e.src, side)).sum()
    sixth = 1 / jnp.maximum(squared, 0.5) ** 3
    return gnnjit.sum(jnp.where(squared < RADIUS**2, 2 * (sixth**2 - sixth), 0))


def liquid(count: int) -> tuple[jax.Array, float]:
    """A disturbed lattice of a cube number of particles, and the box's side."""
    per_side = round(count ** (1 / 3))
    side = (per_side**3 / DENSITY) ** (1 / 3)
    lattice = np.stack(np.meshgrid(*[np.arange(per_side)] * 3), -1).reshape(-1, 3)
    moved = lattice * side / per_side + np.random.default_rng(0).normal(0, 0.05, lattice.shape)
    return jnp.asarray(moved % side, jnp.float32), side


def with_gnnjit(x: jax.Array, side: float) -> tuple[Callable[..., Any], Callable[..., Any], int]:
    search = RadiusSearch.fit(x, RADIUS, box=side)

    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = search(x)
        force = -jax.grad(lambda x: energies(found.graph, x, jnp.float32(side)).sum())(x)
        return x + 1e-4 * force, found.overflow

    return jax.jit(search), jax.jit(step), int(search(x).num_found)


def with_jax_md(
    x: jax.Array, side: float, name: str
) -> tuple[Callable[..., Any], Callable[..., Any], int]:
    md: Any = importlib.import_module("jax_md")
    apart, _ = md.space.periodic(side)
    form = getattr(md.partition, name)
    neighbors = md.partition.neighbor_list(apart, side, RADIUS, dr_threshold=0.0, format=form)
    metric = md.space.canonicalize_displacement_or_metric(apart)

    def pair(distance: jax.Array, **_: Any) -> jax.Array:
        sixth = 1 / jnp.maximum(distance**2, 0.5) ** 3
        return jnp.where(distance < RADIUS, 4 * (sixth**2 - sixth), 0)

    energy = md.smap.pair_neighbor_list(pair, metric)
    listed = neighbors.allocate(x)

    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = listed.update(x)
        force = -jax.grad(energy)(x, neighbor=found)
        return x + 1e-4 * force, found.did_buffer_overflow

    return jax.jit(lambda x: listed.update(x).idx), jax.jit(step), edges_of(listed.idx, len(x))


def edges_of(idx: jax.Array, count: int) -> int:
    """Of a list of jax-md; one that is ordered has each pair once."""
    return int(((idx if len(idx) == count else idx[0]) < count).sum())


def measure_size(count: int, repeats: int) -> list[Row]:
    x, side = liquid(count)
    forms: dict[str, Any] = {"gnnjit": with_gnnjit(x, side)}
    if importlib.util.find_spec("jax_md"):
        forms |= {f"jax-md {name}": with_jax_md(x, side, name) for name in FORMATS}
    moved = {who: step(x) for who, (_, step, _) in forms.items()}
    for who, (y, overflow) in moved.items():
        if bool(overflow):
            raise SystemExit(f"{who}: a capacity did not hold")
        worst = float(jnp.abs(y - moved["gnnjit"][0]).max())
        if worst > 1e-4:
            raise SystemExit(f"{who} moves a particle {worst:.2g} further than gnnjit")
    rows = []
    for what, place in (("pairs", 0), ("step", 1)):
        calls = [form[place] for form in forms.values()]
        for who, seconds in zip(forms, measure.in_turn(calls, repeats, [x]), strict=True):
            rows.append(Row(who, what, len(x), forms[who][2], seconds))
    return rows


def table(rows: Sequence[Row]) -> str:
    head = f"{'':22}{'':7}{'particles':>10}{'edges':>10}{'ms':>10}"
    lines = [
        f"{r.who:22}{r.what:7}{r.particles:10,}{r.edges:10,}{1e3 * r.seconds:10.1f}" for r in rows
    ]
    return "\n".join([head, *lines])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--repeats", type=int, default=10, help="calls of each form (default: 10)")
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    add("--smoke", action="store_true", help="few particles, few repeats: does it run?")
    args = parser.parse_args(argv)
    if args.repeats < 1:
        parser.error(f"argument --repeats: {args.repeats}, expected 1 or more")
    facts = {"machine": measure.machine(measure.usable_cpus()), "versions": measure.versions()}
    rows: list[Row] = []
    for size in (216,) if args.smoke else SIZES:
        rows += measure_size(size, 1 if args.smoke else args.repeats)
    print(table(rows))
    for row in rows:
        line = {"benchmark": "radius", "smoke": args.smoke, **dataclasses.asdict(row), **facts}
        measure.append(args.json, line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
