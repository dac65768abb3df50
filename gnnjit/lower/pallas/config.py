"""How a kernel is cut into programs: a static table."""

from __future__ import annotations

import math

from gnnjit.pallas_kernels.rows import Config
from gnnjit.pallas_kernels.traversal import DOT, Traversal, padded

TILE = 2048
"""About as many scalars as the widest tile of a program holds."""

HELD = 4096
"""Scalars that take more registers than four warps have to spare."""


def widest(t: Traversal) -> int:
    """Scalars that one lane of the widest operand or output holds."""
    shapes = [x.shape for x in (*t.operands, *t.outputs) if getattr(x, "place", "") != "shared"]
    return max((math.prod(padded(s)) for s in shapes), default=1)


def held(t: Traversal) -> int:
    """Scalars of the sums of outer products that a program keeps while it runs."""
    return sum(math.prod(padded(o.shape)) for o in t.outputs if o.reduction == "outer_sum")


def choose_config(t: Traversal) -> Config:
    """Lanes that fill a tile; four warps, or eight where they would spill what they hold.

    Compiled for an H200, the sum of a 64 x 64 outer product takes 255 registers and spills 424
    bytes with four warps, and takes 209 with eight (tests/lower/registers.py).
    """
    lanes = max(1, min(64, TILE // widest(t)))
    return Config(lanes=max(lanes, DOT), warps=8 if held(t) >= HELD else 4, stages=2)
