"""Arrays that are too large for the kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gnnjit.graph import Graph
from gnnjit.ir.program import Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.lower.execute import size

WIDE = 2**32
"""Bytes of the largest array that Pallas counts offsets into in 32 bits, with a sign."""

LAST = 2**31
"""Elements that 32 bits with a sign can number; programs of one launch."""

MARGIN = 2**16
"""Lanes of a block stand past the last edge, and are numbered all the same."""


def reasons(
    body: Program, reductions: Sequence[Reduce | None], by: Space, graph: Graph
) -> list[str]:
    """Why the kernels cannot run on a graph of this size."""
    spaces = [v.space for v in body.inputs]
    spaces += [Space.EDGE if r is None else r.into for r in reductions]
    found: dict[str, int] = {}
    for v, space in zip([*body.inputs, *body.outputs], spaces, strict=True):
        count = 0 if space is Space.SHARED else math.prod(v.shape) * size(graph, space)
        if _wraps(v.dtype, count):
            found[v.dtype.name] = count
    over_edges = any(r is None or r.into is Space.SHARED for r in reductions)  # reads the mask
    if over_edges and graph.mask is not None and _wraps(np.dtype(bool), graph.num_edges):
        found["bool"] = graph.num_edges
    out = [f"an array of {n} elements of type {dtype}" for dtype, n in sorted(found.items())]
    if size(graph, by) >= LAST - 1:
        out.append(f"{size(graph, by)} rows are more than one launch takes")
    if graph.src.dtype.itemsize == 4 and graph.num_edges > LAST - MARGIN:
        out.append(f"{graph.num_edges} edges need 64-bit indices")
    return out


def _wraps(dtype: np.dtype, count: int) -> bool:
    """Types of one byte alone have offsets that 32 bits do not hold in arrays that Pallas counts
    into so."""
    return count > LAST and count * dtype.itemsize <= WIDE


def too_many(body: Program, reductions: Sequence[Reduce | None], graph: Graph) -> list[str]:
    """Why kernels whose offsets nobody has seen beyond 32 bits cannot run on a graph."""
    spaces = [v.space for v in body.inputs]
    spaces += [Space.EDGE if r is None else r.into for r in reductions]
    atoms = zip([*body.inputs, *body.outputs], spaces, strict=True)
    counts = [math.prod(v.shape) * size(graph, s) for v, s in atoms if s is not Space.SHARED]
    most = max([graph.num_edges, *counts])
    return [f"an array of {most} elements"] if most >= LAST - MARGIN else []
