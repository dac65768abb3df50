"""The layers of PyTorch Geometric, in each configuration that it supports.

    coo           `edge_index`, sorted by destination
    csr           a `torch.sparse` CSR matrix of the transposed adjacency (`adj_t`)
    edge_index    `torch_geometric.EdgeIndex`, sorted by destination, its caches filled
    compiled      `coo` under `torch.compile`
    product       (linear traversals) `torch.sparse.mm` with a cached CSR matrix, and its cached
                  transpose for the gradient

All have self loops, normalisation and degrees made ahead, where the layer can be told so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch_geometric import EdgeIndex, nn
from workloads import HEADS, Workload, parameters, with_self_loops

SELF_LOOPS = ("gcn", "gat", "gatv2")


class _Product(torch.autograd.Function):
    """`A @ x`, with the transposed product as its gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, a: Any, a_t: Any) -> torch.Tensor:
        context.a_t = a_t
        return torch.sparse.mm(a, x)

    @staticmethod
    def backward(context: Any, g: torch.Tensor) -> Any:  # type: ignore[override]
        return torch.sparse.mm(context.a_t, g), None, None


class _GatedGCN(nn.MessagePassing):
    """NeuGraph's G-GCN, which PyG does not have, written like its `ResGatedGraphConv`."""

    def __init__(self, features: int):
        super().__init__(aggr="add")
        self.src, self.dst, self.lin = (
            torch.nn.Linear(features, features, bias=False) for _ in range(3)
        )

    def forward(self, x: torch.Tensor, edge_index: Any) -> torch.Tensor:
        return self.lin(self.propagate(edge_index, k=self.dst(x), q=self.src(x), v=x))

    def message(self, k_i: Any, q_j: Any, v_j: Any) -> torch.Tensor:
        return torch.sigmoid(k_i + q_j) * v_j


def _gin(f: int) -> nn.GINConv:
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return nn.GINConv(torch.nn.Sequential(linear(f, f), relu(), linear(f, f)))


def _attention(kind: Any) -> Callable[[int], torch.nn.Module]:
    return lambda f: kind(f, f // HEADS, heads=HEADS, add_self_loops=False)


MODULES: dict[str, tuple[Callable[[int], torch.nn.Module], dict[str, str]]] = {
    "gcn": (lambda f: nn.GCNConv(f, f, normalize=False), {"w": "lin.weight", "b": "bias"}),
    "sage": (
        lambda f: nn.SAGEConv(f, f),
        {"own": "lin_r.weight", "b": "lin_l.bias", "neighbors": "lin_l.weight"},
    ),
    "gin": (
        _gin,
        {"w1": "nn.0.weight", "b1": "nn.0.bias", "w2": "nn.2.weight", "b2": "nn.2.bias"},
    ),
    "gat": (
        _attention(nn.GATConv),
        {"w": "lin.weight", "src": "att_src", "dst": "att_dst", "b": "bias"},
    ),
    "gatv2": (
        _attention(nn.GATv2Conv),
        {
            "w_src": "lin_l.weight", "b_src": "lin_l.bias", "w_dst": "lin_r.weight",
            "b_dst": "lin_r.bias", "a": "att", "b": "bias",
        },
    ),
    "gatedgcn": (_GatedGCN, {"dst": "dst.weight", "src": "src.weight", "w": "lin.weight"}),
    "resgated": (
        lambda f: nn.ResGatedGraphConv(f, f),
        {
            "key": "lin_key.weight", "b_key": "lin_key.bias", "query": "lin_query.weight",
            "b_query": "lin_query.bias", "value": "lin_value.weight", "b_value": "lin_value.bias",
            "skip": "lin_skip.weight", "b": "bias",
        },
    ),
}  # fmt: skip
"""The module, and where each parameter is in it."""


def _csr(src: np.ndarray, dst: np.ndarray, weight: np.ndarray, n: int) -> torch.Tensor:
    """A matrix with one row per destination; edges are sorted by destination, then source."""
    start = torch.from_numpy(np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=n))]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that CSR tensors are in beta
        return torch.sparse_csr_tensor(
            start, torch.from_numpy(src.astype(np.int64)), torch.from_numpy(weight), size=(n, n)
        )


def _edges(layer: str, configuration: str, work: Workload) -> tuple[Any, ...]:
    """What a module is called with after the features."""
    n = work.sizes.vertices
    src, dst = with_self_loops(work) if layer in SELF_LOOPS else (work.src, work.dst)
    degree = np.bincount(dst, minlength=n).astype(np.float32)
    weight = (degree[src] * degree[dst]) ** -0.5 if layer == "gcn" else np.ones(len(src), "f4")
    if configuration == "csr":
        return (_csr(src, dst, weight, n),)
    index: Any = torch.from_numpy(np.stack([src, dst]).astype(np.int64))
    if configuration == "edge_index":
        index = EdgeIndex(index, sparse_size=(n, n), sort_order="col").fill_cache_()
    return (index, torch.from_numpy(weight)) if layer == "gcn" else (index,)


def _product(layer: str, work: Workload) -> Callable[[torch.Tensor], torch.Tensor]:
    weight = work.weight if layer == "linear" else np.ones_like(work.weight)
    order, n = np.lexsort((work.dst, work.src)), work.sizes.vertices
    a = _csr(work.src, work.dst, weight, n)
    a_t = _csr(work.dst[order], work.src[order], weight[order], n)
    return lambda x: _Product.apply(x, a, a_t)  # type: ignore[return-value]


class _TorchCase:
    """Implements `Case`."""

    def __init__(
        self,
        call: Callable[[torch.Tensor], torch.Tensor],
        work: Workload,
        given: dict[str, torch.nn.Parameter],
    ):
        self._call, self._given = call, given
        self._x = torch.from_numpy(work.x.copy()).requires_grad_()
        self._cotangent = torch.from_numpy(work.cotangent.copy())

    def prepare(self, mode: str) -> int | None:
        return None

    def run(self, mode: str) -> Any:
        if mode == "forward":
            with torch.no_grad():
                return self._call(self._x)
        for leaf in (self._x, *self._given.values()):
            leaf.grad = None
        out = self._call(self._x)
        out.backward(self._cotangent)
        return out

    def values(self) -> dict[str, np.ndarray]:
        out = self.run("both")
        found = {"out": out.detach().numpy(), "x": self._x.grad.numpy()}
        shapes = {"src": (HEADS, -1), "dst": (HEADS, -1), "a": (HEADS, -1)}
        for name, parameter in self._given.items():
            g = parameter.grad.numpy()
            found[name] = g.T if g.ndim == 2 else g.reshape(shapes[name]) if g.ndim > 2 else g
        return found


def build(layer: str, configuration: str, work: Workload, threads: int) -> _TorchCase:
    """The layer on `work`."""
    torch.set_num_threads(threads)
    if configuration == "product":
        return _TorchCase(_product(layer, work), work, {})
    make, places = MODULES[layer]
    module, given = make(work.sizes.features), {}
    for name, value in parameters(layer, work.sizes).items():
        given[name] = module.get_parameter(places[name])
        with torch.no_grad():
            shaped = torch.from_numpy(value.T.copy() if given[name].ndim == 2 else value)
            given[name].copy_(shaped.reshape(given[name].shape))
    edges = _edges(layer, configuration, work)
    run = torch.compile(module, dynamic=False) if configuration == "compiled" else module
    return _TorchCase(lambda x: run(x, *edges), work, given)
