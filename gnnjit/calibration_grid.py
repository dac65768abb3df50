"""What `gnnjit calibrate` measures: layers at random sizes, and the products inside them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.calibrate import Point
from gnnjit.calibration_layers import Case, prepare, random_case
from gnnjit.clock import Run
from gnnjit.cost.model import Work
from gnnjit.lower.vertex_matmul import rows_p, tall_p

CASES, QUICK_CASES, MANY_CASES = 50, 16, 300
MATRICES = ((2000, 16, 16), (2000, 256, 64), (20000, 8, 128), (20000, 128, 8), (20000, 128, 128))
"""Rows, and both widths, of products measured alone."""
MOST_BYTES = 2.4e7
"""Of one array of a calibration's layers, for which seconds must do."""
LARGE_BYTES = 1.5e8
"""The same for a thorough one, which has minutes."""


def calibration_points(
    *, quick: bool = False, thorough: bool = False, seed: int = 0
) -> list[Point]:
    """The points in the order in which they are measured, drawn from `seed`; fewer if `quick`, more
    and larger ones too if `thorough`.

    Of each layer one alternative is measured, a random one: more layers say more than more
    alternatives.
    """
    rng = np.random.default_rng(seed)
    points = [_product(kind, size) for size in MATRICES for kind in ("matmul", "tall")]
    for _ in range(QUICK_CASES if quick else MANY_CASES if thorough else CASES):
        case = random_case(rng, LARGE_BYTES if thorough else MOST_BYTES)
        points.append(_layer(case, int(rng.integers(1 << 30))))
    return points


def _layer(case: Case, pick: int) -> Point:
    """One alternative of a layer; its arrays are made when it is measured."""
    ready = functools.cache(lambda: prepare(case))

    def chosen() -> Any:
        alternatives = ready().alternatives
        return alternatives[pick % len(alternatives)]

    def run() -> tuple[Run, Sequence[Any]]:
        return ready().compiled(chosen().choices), ready().arrays

    return Point(str(case), lambda: chosen().work, run)


def _product(kind: str, size: tuple[int, int, int]) -> Point:
    n, f, g = size
    flops, bytes_ = 2.0 * n * f * g, 4.0 * n * (f + g)
    if kind == "matmul":
        work = Work.of("matmul", count=1, flops=flops, bytes=bytes_) + Work.of("call", calls=1)
        return Point(
            f"matmul {size}",
            lambda: work,
            _compiled(functools.partial(rows_p.bind, place=None), (n, f), (f, g)),
        )
    work = Work.of("tall", count=1, flops=flops, bytes=bytes_) + Work.of("call", calls=1)
    return Point(
        f"tall {size}",
        lambda: work,
        _compiled(functools.partial(tall_p.bind, place=None), (n, f), (n, g)),
    )


def _compiled(
    fn: Callable[..., Any], *shapes: tuple[int, ...]
) -> Callable[[], tuple[Run, Sequence[Any]]]:
    def prepare() -> tuple[Run, Sequence[Any]]:
        arrays = [jnp.ones(s, jnp.float32) for s in shapes]
        return jax.jit(fn).lower(*arrays).compile(), arrays

    return prepare
