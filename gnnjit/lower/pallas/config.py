"""How a kernel is cut into programs: a static table."""

from __future__ import annotations

import math

from gnnjit.pallas_kernels.rows import Config
from gnnjit.pallas_kernels.traversal import DOT, Traversal, padded

TILE = 2048
"""About as many scalars as the widest tile of a program holds."""


def widest(t: Traversal) -> int:
    """Scalars that one lane of the widest operand or output holds."""
    shapes = [x.shape for x in (*t.operands, *t.outputs) if getattr(x, "place", "") != "shared"]
    return max((math.prod(padded(s)) for s in shapes), default=1)


def choose_config(t: Traversal) -> Config:
    """Lanes that fill a tile; four warps."""
    lanes = max(1, min(64, TILE // widest(t)))
    return Config(lanes=max(lanes, DOT), warps=4, stages=2)
