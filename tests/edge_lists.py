"""Edge lists that tests shard, stream, or make a graph of."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np

import gnnjit


@dataclasses.dataclass(frozen=True, eq=False)
class EdgeList:
    src: np.ndarray
    dst: np.ndarray
    num_nodes: int

    @classmethod
    def of(cls, src: Any, dst: Any, num_nodes: int) -> Self:
        return cls(np.asarray(src, np.int32), np.asarray(dst, np.int32), num_nodes)

    @classmethod
    def random(cls, num_nodes: int, num_edges: int, seed: int = 0) -> Self:
        """Uniform edges, and a hub that a quarter of them enter."""
        rng = np.random.default_rng(seed)
        src, dst = rng.integers(0, num_nodes, (2, num_edges))
        dst[::4] = num_nodes // 3
        return cls.of(src, dst, num_nodes)

    def graph(self) -> gnnjit.Graph:
        return gnnjit.Graph.from_edges(self.src, self.dst, self.num_nodes)
