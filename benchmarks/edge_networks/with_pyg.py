"""NNConv and EdgeConv of PyTorch Geometric: two in a row, forward and backward.

Edges are an `edge_index` or a sorted `EdgeIndex` with its caches, whichever is faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from common import measure
from torch.nn import Linear, ReLU, Sequential
from torch_geometric import EdgeIndex, nn

import gnnjit
from edge_networks import convolutions, network
from edge_networks.child import Task, in_row


def _nnconv(f: int) -> torch.nn.Module:
    first, second = Linear(network.EDGE_DATA, convolutions.HIDDEN), ReLU()
    matrices = Sequential(first, second, Linear(convolutions.HIDDEN, f * f))
    return nn.NNConv(f, f, matrices, aggr="mean")


def _edgeconv(f: int) -> torch.nn.Module:
    return nn.EdgeConv(Sequential(Linear(2 * f, f), ReLU(), Linear(f, f)), aggr="max")


MODULES = {"nnconv": _nnconv, "edgeconv": _edgeconv}


class PygCase:
    """The same sizes and edges, with weights of its own."""

    def __init__(self, task: Task):
        gnnjit.keep_memory()
        torch.set_num_threads(measure.usable_cpus())
        i = network.make(task.vertices, task.edges)
        self._blocks = [MODULES[task.network](task.width) for _ in range(network.BLOCKS)]
        pairs = np.stack([np.asarray(i.src), np.asarray(i.dst)]).astype(np.int64)
        index = torch.from_numpy(pairs)
        self._data = torch.from_numpy(np.array(i.a))
        self._x = torch.randn(task.vertices, task.width, requires_grad=True)
        self._relu = task.network == "nnconv"
        n = task.vertices
        indexed: Any = EdgeIndex(index, sparse_size=(n, n), sort_order="col").fill_cache_()
        forms = {"coo": index, "edge_index": indexed}
        for edges in forms.values():
            self._step(edges)
        best = {k: min(in_row(lambda e=e: self._step(e), 0.2)) for k, e in forms.items()}
        self._configuration = min(best, key=best.__getitem__)
        self._edges = forms[self._configuration]

    def _step(self, edges: Any) -> None:
        self._x.grad = None
        for block in self._blocks:
            block.zero_grad(set_to_none=True)
        x: Any = self._x
        for block in self._blocks:
            x = block(x, edges, self._data).relu() if self._relu else block(x, edges)
        x.square().mean().backward()

    def facts(self) -> dict[str, Any]:
        """Nothing is compiled, and nobody counts the bytes."""
        return {"compile_seconds": None, "compile_cpu_seconds": None, "temp_bytes": None,
                "configuration": self._configuration}  # fmt: skip

    def run(self, fill: float) -> list[float]:
        """Seconds of each of some steps, which fill `fill` seconds together."""
        return in_row(lambda: self._step(self._edges), fill)
