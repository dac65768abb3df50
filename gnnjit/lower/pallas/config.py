"""How a kernel is cut into programs: stored choices, timed ones, and a static table."""

from __future__ import annotations

import dataclasses
import math

from gnnjit.pallas_kernels.rows import Config
from gnnjit.pallas_kernels.traversal import DOT, Traversal, padded

TILE = 2048
"""About as many scalars as the widest tile of a program holds."""

MAX_TILE = 8192
"""More spill into memory."""

WARPS = 4


def widest(t: Traversal) -> int:
    """Scalars that one lane of the widest operand or output holds."""
    shapes = [x.shape for x in (*t.operands, *t.outputs) if getattr(x, "place", "") != "shared"]
    return max((math.prod(padded(s)) for s in shapes), default=1)


def static_config(t: Traversal) -> Config:
    """The choice without a device to time on: lanes that fill a tile, four warps."""
    return Config(lanes=max(DOT, min(64, TILE // widest(t))), warps=WARPS, stages=2)


def candidates(t: Traversal) -> list[Config]:
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
