"""Requests made by hand, for one lowering at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

import gnnjit
from gnnjit.ir.program import Program
from gnnjit.ir.space import Space
from gnnjit.lower.lowering import LoweringRequest

TINY = gnnjit.Graph.from_edges(np.array([0, 1]), np.array([1, 0]), num_nodes=2)


def request(
    body: Program,
    reductions: Any,
    rows: Space = Space.DST,
    graph: gnnjit.Graph = TINY,
    platform: str = "cuda",
) -> LoweringRequest:
    return LoweringRequest(body, tuple(reductions), rows, graph, platform)
