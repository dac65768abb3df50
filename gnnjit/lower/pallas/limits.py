"""Arrays that are too large for the kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gnnjit.ir.program import Atom
from gnnjit.ir.space import Space
from gnnjit.lower.execute import size
from gnnjit.lower.lowering import LoweringRequest

WIDE = 2**32
"""Bytes of the largest array that Pallas counts offsets into in 32 bits, with a sign."""

LAST = 2**31
"""Elements that 32 bits with a sign can number; programs of one launch."""

MARGIN = 2**16
"""Lanes of a block stand past the last edge, and are numbered all the same."""


def reasons(request: LoweringRequest) -> list[str]:
    """Why the kernels cannot run on a graph of this size."""
    graph = request.graph
    large = {v.dtype.name: n for v, n in _elements(request) if _wraps(v.dtype, n)}
    # Reads the mask.
    over_edges = any(r is None or r.into is Space.SHARED for r in request.reductions)
    if over_edges and graph.mask is not None and _wraps(np.dtype(bool), graph.num_edges):
        large["bool"] = graph.num_edges
    out = [f"an array of {n} elements of type {dtype}" for dtype, n in sorted(large.items())]
    if request.num_rows >= LAST - 1:
        out.append(f"{request.num_rows} rows are more than one launch takes")
    if graph.src.dtype.itemsize == 4 and graph.num_edges > LAST - MARGIN:
        out.append(f"{graph.num_edges} edges need 64-bit indices")
    return out


def _elements(request: LoweringRequest) -> Iterator[tuple[Atom, int]]:
    """Each input and output of the body that is not shared, and the elements of its array."""
    body = request.body
    spaces = [v.space for v in body.inputs]
    spaces += [Space.EDGE if r is None else r.into for r in request.reductions]
    for v, space in zip([*body.inputs, *body.outputs], spaces, strict=True):
        if space is not Space.SHARED:
            yield v, math.prod(v.shape) * size(request.graph, space)


def _wraps(dtype: np.dtype, count: int) -> bool:
    """Types of one byte alone have offsets that 32 bits do not hold in arrays that Pallas counts
    into so."""
    return count > LAST and count * dtype.itemsize <= WIDE


def too_many(request: LoweringRequest) -> list[str]:
    """Why kernels whose offsets nobody has seen beyond 32 bits cannot run on a graph."""
    most = max([request.graph.num_edges, *(n for _, n in _elements(request))])
    return [f"an array of {most} elements"] if most >= LAST - MARGIN else []
