"""How a kernel is cut into programs: stored choices, timed ones, and a static table."""

from __future__ import annotations

import dataclasses
import math

from pallas_kernels.rows import TileConfig
from pallas_kernels.traversal import DOT, Traversal, padded

TILE = 2048
"""About as many scalars as the widest tile of a program holds."""

MAX_TILE = 8192
"""More spill into memory."""

WARPS = 4
HELD = 4096
"""Scalars that take more registers than four warps have to spare."""


def widest(t: Traversal) -> int:
    """Scalars that one lane of the widest operand or output holds."""
    shapes = [x.shape for x in (*t.operands, *t.outputs) if getattr(x, "place", "") != "shared"]
    return max((math.prod(padded(s)) for s in shapes), default=1)


def held(t: Traversal) -> int:
    """Scalars that a program keeps while it runs: sums of outer products, shared matrices."""
    sums = sum(math.prod(padded(o.shape)) for o in t.outputs if o.reduction == "outer_sum")
    read = [math.prod(padded(o.shape)) for o in t.operands if o.place == "shared"]
    return max([sums, *(n // 4 for n in read)])


def static_config(t: Traversal) -> TileConfig:
    """Lanes that fill a tile; four warps, or eight where they would spill what they hold.

    Compiled for an H200, the sum of a 64 x 64 outer product takes 255 registers and spills 424
    bytes with four warps, and takes 209 with eight; so does a product with a 128 x 128 matrix
    (tests/lower/pallas/registers.py).
    """
    lanes = max(1, min(64, TILE // widest(t)))
    warps = 2 * WARPS if held(t) >= HELD else WARPS
    return TileConfig(lanes=max(lanes, DOT), warps=warps, stages=2)


def candidates(t: Traversal) -> list[TileConfig]:
    """The static choice first, then its neighbours: fewer and more lanes and warps."""
    first = static_config(t)
    out = [first]
    for lanes in (first.lanes // 2, first.lanes, first.lanes * 2):
        for warps in (WARPS // 2, WARPS, WARPS * 2):
            fits = DOT <= lanes and lanes * widest(t) <= max(MAX_TILE, DOT * widest(t))
            config = dataclasses.replace(first, lanes=lanes, warps=warps)
            if fits and config not in out:
                out.append(config)
    return out
