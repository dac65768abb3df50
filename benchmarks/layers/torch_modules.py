"""Layers that PyG lacks, in its `MessagePassing`, and layers as one CSR product."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch_geometric import nn
from torch_geometric.nn.aggr import MultiAggregation


class Matrix:
    """`A @ x` for a cached CSR matrix; its gradient is the product with the cached transpose.

    Rows are the destinations; edges are sorted by destination, then source.
    """

    def __init__(
        self, src: np.ndarray, dst: np.ndarray, weight: np.ndarray, n: int, place: dict[str, Any]
    ):
        start = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=n))])
        a = scipy.sparse.csr_array((weight, src.astype(np.int32), start.astype(np.int32)), (n, n))
        self.a, self.a_t = _csr(a, place), _csr(a.T.tocsr(), place)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _Product.apply(x, self.a, self.a_t)  # type: ignore[return-value]


def _csr(a: Any, place: dict[str, Any]) -> torch.Tensor:
    """A CSR tensor: 32-bit indices on a GPU (cuSPARSE is faster), 64-bit on a CPU (for MKL)."""
    kind = torch.int64 if place["device"] == "cpu" else torch.int32
    start, columns = (torch.from_numpy(i).to(place["device"], kind) for i in (a.indptr, a.indices))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that CSR tensors are in beta
        return torch.sparse_csr_tensor(
            start, columns, torch.from_numpy(a.data).to(**place), a.shape
        )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, a: Any, a_t: Any) -> torch.Tensor:
        context.a_t = a_t
        return torch.sparse.mm(a, x)

    @staticmethod
    def backward(context: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        return torch.sparse.mm(context.a_t, g.contiguous()), None, None


class CsrGCN(torch.nn.Module):
    """`A @ (x @ W) + b`, `A` with self loops and normalised."""

    def __init__(self, features: int):
        super().__init__()
        self.lin = torch.nn.Linear(features, features)

    def forward(self, x: torch.Tensor, a: Matrix) -> torch.Tensor:
        return a(x @ self.lin.weight.T) + self.lin.bias


class CsrSAGE(torch.nn.Module):
    """`x @ W + b + (A @ x) @ W'`, rows of `A` divided by the degree."""

    def __init__(self, features: int):
        super().__init__()
        self.own = torch.nn.Linear(features, features)
        self.neighbors = torch.nn.Linear(features, features, bias=False)

    def forward(self, x: torch.Tensor, a: Matrix) -> torch.Tensor:
        return self.own(x) + self.neighbors(a(x))


class CsrGIN(torch.nn.Module):
    """`MLP(x + A @ x)`."""

    def __init__(self, features: int):
        super().__init__()
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        self.nn = torch.nn.Sequential(
            linear(features, features), relu(), linear(features, features)
        )

    def forward(self, x: torch.Tensor, a: Matrix) -> torch.Tensor:
        return self.nn(x + a(x))


class WeightedSum(nn.MessagePassing):
    """`sum(w * src)`."""

    def __init__(self):
        super().__init__(aggr="add")

    def forward(self, x: torch.Tensor, edge_index: Any, weight: torch.Tensor) -> torch.Tensor:
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j: Any, weight: Any) -> torch.Tensor:
        return weight[:, None] * x_j


class GatedGCN(nn.MessagePassing):
    """NeuGraph's G-GCN, written like PyG's `ResGatedGraphConv`."""

    def __init__(self, features: int):
        super().__init__(aggr="add")
        self.src, self.dst, self.lin = (
            torch.nn.Linear(features, features, bias=False) for _ in range(3)
        )

    def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
        return self.lin(self.propagate(edge_index, k=self.dst(x), q=self.src(x), v=x))

    def message(self, k_i: Any, q_j: Any, v_j: Any) -> torch.Tensor:
        return torch.sigmoid(k_i + q_j) * v_j


class PNA(nn.MessagePassing):
    """PyG's `PNAConv` without its matrices on the edges: its reductions and scalers.

    PyG takes 0 for standard deviations under 0.003, and squares before it subtracts.
    """

    def __init__(self, features: int):
        super().__init__(aggr=MultiAggregation(["sum", "mean", "max", "min", "std"]))
        self.own = torch.nn.Linear(features, features, bias=False)
        self.lin = torch.nn.Linear(15 * features, features)

    def forward(self, x: torch.Tensor, edge_index: Any, delta: float) -> torch.Tensor:
        every = self.propagate(edge_index, x=x)
        ones = torch.ones(edge_index.shape[1], device=x.device)
        degree = torch.zeros(len(x), device=x.device).index_add(0, edge_index[1], ones)[:, None]
        amplify = (torch.log(degree + 1) / delta).to(x.dtype)
        attenuate = (delta / torch.log(degree.clamp(min=1) + 1)).to(x.dtype)
        scaled = torch.cat([every, every * amplify, every * attenuate], dim=1)
        return self.own(x) + self.lin(scaled)

    def message(self, x_j: Any) -> torch.Tensor:
        return x_j


class GNS(nn.MessagePassing):
    """A GNS block as it is usually written with PyG: with the matrix on the edges."""

    def __init__(self, features: int):
        super().__init__(aggr="add")
        self.edge = _mlp(3 * features, features)
        self.vertex = _mlp(2 * features, features)

    def forward(self, given: Any, edge_index: Any) -> Any:
        x, edges = given
        message = self.edge_updater(edge_index, x=x, edges=edges)
        total = self.propagate(edge_index, message=message, size=(len(x), len(x)))
        return x + self.vertex(torch.cat([x, total], dim=1)), edges + message

    def edge_update(self, x_i: Any, x_j: Any, edges: Any) -> torch.Tensor:
        return self.edge(torch.cat([edges, x_j, x_i], dim=1))

    def message(self, message: Any) -> torch.Tensor:
        return message


def _mlp(width: int, features: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(width, features),
        torch.nn.ReLU(),
        torch.nn.Linear(features, features),
        torch.nn.LayerNorm(features),
    )
