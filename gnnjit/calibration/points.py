"""What `gnnjit calibrate` measures: layers at random sizes, and the products inside them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.calibration.random_layers import Case, prepare, random_case
from gnnjit.cost.calibrate import USUAL, Effort, Point, Prepared
from gnnjit.cost.machine import machine_of, platform_here
from gnnjit.cost.model import Work
from gnnjit.cost.work import product_features, tall_features
from gnnjit.lower.vertex_matmul import rows_p, tall_p

_LARGE = ((2000, 16, 16), (2000, 256, 64), (20000, 8, 128), (20000, 128, 8), (20000, 128, 128))
_SMALL = ((32, 16, 16), (30, 64, 64), (200, 20, 192), (1000, 16, 16))
PRODUCTS = [(size, 1) for size in _LARGE] + [(size, times) for size in _SMALL for times in (1, 6)]
"""Products that are measured without a layer: rows and both widths, and how many a program has. All
layers are large. Small products, one and six in a program, tell what a product costs from what it
costs to start a program."""


def calibration_points(effort: Effort = USUAL, *, seed: int = 0) -> list[Point]:
    """The points in the order in which they are measured, drawn from `seed`. With less effort they
    are the first ones, where the layers are as large."""
    rng = np.random.default_rng(seed)
    points = [_products(kind, *p) for p in PRODUCTS for kind in ("matmul", "tall")]
    for _ in range(effort.layers):
        case = random_case(rng, effort.most_bytes)
        pick = int(rng.integers(1 << 30))
        points.append(_layer(case, None if effort.every else pick))
    return points


def _layer(case: Case, pick: int | None) -> Point:
    """All alternatives of a layer, or one: of few points, more layers say more than more
    alternatives."""

    def prepared() -> Prepared:
        ready = prepare(case)
        some = ready.alternatives
        some = some if pick is None else (some[pick % len(some)],)
        works = [a.work for a in some]
        return Prepared(works, lambda: [ready.compiled(a.choices) for a in some], ready.arrays)

    return Point(str(case), prepared)


def _products(kind: str, size: tuple[int, int, int], times: int) -> Point:
    """So many products of a size in one program, which share a factor."""
    n, f, g = size
    machine = machine_of(platform_here())
    if kind == "matmul":
        how: dict[str, Any] = {"turned": False, "place": None, "precision": None}
        fn, shape, others = functools.partial(rows_p.bind, **how), (n, f), (f, g)
        features = product_features(*size, moved=4.0 * n * (f + g), machine=machine)
    else:
        how = {"place": None, "precision": None}
        fn, shape, others = functools.partial(tall_p.bind, **how), (n, f), (n, g)
        features = tall_features(n, f * g, 1, moved=4.0 * n * (f + g), machine=machine)
    work = Work.of(kind, **features) * times + Work.of("call", calls=1)

    def run(x: jax.Array, every: list[jax.Array]) -> list[jax.Array]:
        return [fn(x, y) for y in every]

    def prepared() -> Prepared:
        every = [jnp.full(others, k, jnp.float32) for k in range(times)]
        arrays = jnp.ones(shape, jnp.float32), every
        return Prepared([work], lambda: [jax.jit(run).lower(*arrays).compile()], arrays)

    return Point(f"{times} {kind} {size}", prepared)
