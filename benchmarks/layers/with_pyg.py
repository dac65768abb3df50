"""The layers of PyTorch Geometric, in each configuration that it supports.

    coo           `edge_index`, sorted by destination
    csr           a `torch.sparse` CSR matrix of the transposed adjacency (`adj_t`)
    edge_index    `torch_geometric.EdgeIndex`, sorted by destination, its caches filled
    compiled      `coo` under `torch.compile`
    product       (linear traversals) `torch.sparse.mm` with a cached CSR matrix, and its cached
                  transpose for the gradient
    cusparse      (GCN, SAGE, GIN) the same product inside the layer, written by hand

On a GPU where there is one. All have self loops, normalisation and degrees made ahead, where the
layer can be told so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from common.workloads import LAYERS, Workload, of_layer, parameters, with_self_loops
from torch_geometric import EdgeIndex, nn

from layers.case import Execution
from layers.torch_modules import GNS, PNA, CsrGCN, CsrGIN, CsrSAGE, GatedGCN, Matrix, WeightedSum

SELF_LOOPS = ("gcn", "gat", "gatv2")


def _gin(f: int, h: int) -> nn.GINConv:
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return nn.GINConv(torch.nn.Sequential(linear(f, f), relu(), linear(f, f)))


def _attention(kind: Any) -> Callable[[int, int], torch.nn.Module]:
    return lambda f, h: kind(f, f // h, heads=h, add_self_loops=False)


MODULES: dict[str, tuple[Callable[[int, int], torch.nn.Module], dict[str, str]]] = {
    "linear": (lambda f, h: WeightedSum(), {}),
    "gcn": (lambda f, h: nn.GCNConv(f, f, normalize=False), {"w": "lin.weight", "b": "bias"}),
    "sage": (
        lambda f, h: nn.SAGEConv(f, f),
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
    "gatedgcn": (
        lambda f, h: GatedGCN(f),
        {"dst": "dst.weight", "src": "src.weight", "w": "lin.weight"},
    ),
    "resgated": (
        lambda f, h: nn.ResGatedGraphConv(f, f),
        {
            "key": "lin_key.weight", "b_key": "lin_key.bias", "query": "lin_query.weight",
            "b_query": "lin_query.bias", "value": "lin_value.weight", "b_value": "lin_value.bias",
            "skip": "lin_skip.weight", "b": "bias",
        },
    ),
    "pna": (lambda f, h: PNA(f), {"own": "own.weight", "w": "lin.weight", "b": "lin.bias"}),
    "gns": (
        lambda f, h: GNS(f),
        {
            "e1": "edge.0.weight", "c1": "edge.0.bias", "e2": "edge.2.weight", "c2": "edge.2.bias",
            "e_scale": "edge.3.weight", "e_shift": "edge.3.bias",
            "v1": "vertex.0.weight", "b1": "vertex.0.bias", "v2": "vertex.2.weight",
            "b2": "vertex.2.bias", "v_scale": "vertex.3.weight", "v_shift": "vertex.3.bias",
        },
    ),
    "transformer": (
        lambda f, h: nn.TransformerConv(f, f // h, heads=h),
        {
            "query": "lin_query.weight", "b_query": "lin_query.bias", "key": "lin_key.weight",
            "b_key": "lin_key.bias", "value": "lin_value.weight", "b_value": "lin_value.bias",
            "skip": "lin_skip.weight", "b": "lin_skip.bias",
        },
    ),
}  # fmt: skip
"""The module for F features and H heads, and where each parameter is in it."""

CSR_MODULES: dict[str, tuple[Callable[[int, int], torch.nn.Module], dict[str, str]]] = {
    "gcn": (lambda f, h: CsrGCN(f), {"w": "lin.weight", "b": "lin.bias"}),
    "sage": (
        lambda f, h: CsrSAGE(f),
        {"own": "own.weight", "b": "own.bias", "neighbors": "neighbors.weight"},
    ),
    "gin": (
        lambda f, h: CsrGIN(f),
        {"w1": "nn.0.weight", "b1": "nn.0.bias", "w2": "nn.2.weight", "b2": "nn.2.bias"},
    ),
}
"""The same for the configuration `cusparse`."""


def _weights(layer: str, work: Workload) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sources, destinations and the factors with which a layer sums over its edges."""
    src, dst = with_self_loops(work) if layer in SELF_LOOPS else (work.src, work.dst)
    if layer == "linear":
        return src, dst, work.weight
    degree = np.bincount(dst, minlength=work.sizes.vertices).astype(np.float32)
    weight = np.ones(len(src), np.float32)
    if layer == "gcn":
        weight = (degree[src] * degree[dst]) ** -0.5
    return src, dst, weight


def _edges(layer: str, configuration: str, work: Workload, place: dict[str, Any]) -> Any:
    """What a module is called with after the features."""
    n = work.sizes.vertices
    src, dst, weight = _weights(layer, work)
    if configuration in ("csr", "cusparse", "product"):
        if configuration == "cusparse" and layer == "sage":
            weight = weight / np.bincount(dst, minlength=n)[dst].astype(np.float32)
        matrix = Matrix(src, dst, weight, n, place)
        return (matrix.a,) if configuration == "csr" else (matrix,)
    index: Any = torch.from_numpy(np.stack([src, dst]).astype(np.int64)).to(place["device"])
    if configuration == "edge_index":
        index = EdgeIndex(index, sparse_size=(n, n), sort_order="col").fill_cache_()
    if layer in ("gcn", "linear"):
        return index, torch.from_numpy(weight).to(**place)
    if layer == "pna":
        degree = np.bincount(dst, minlength=n)
        return index, float(np.log(degree + 1.0).mean())
    return (index,)


def _stack(
    layer: str, configuration: str, work: Workload, place: dict[str, Any]
) -> tuple[torch.nn.ModuleList, dict[str, torch.nn.Parameter]]:
    """The modules on their device, and their parameters by the names of the workload."""
    make, places = (CSR_MODULES if configuration == "cusparse" else MODULES)[layer]
    sizes, given = work.sizes, {}
    modules = [make(sizes.features, sizes.heads) for _ in range(sizes.depth)]
    values = parameters(layer, sizes)
    for i, module in enumerate(modules):
        for name, value in of_layer(values, i, sizes.depth).items():
            parameter = module.get_parameter(places[name])
            with torch.no_grad():
                shaped = torch.from_numpy(value.T.copy() if parameter.ndim == 2 else value)
                parameter.copy_(shaped.reshape(parameter.shape))
        module.to(**place)
        for name in LAYERS[layer].parameters:
            key = name if sizes.depth == 1 else f"{i}.{name}"
            given[key] = module.get_parameter(places[name])
    return torch.nn.ModuleList(modules), given


class _Chain(torch.nn.Module):
    """Modules on the same edges, with a relu between."""

    def __init__(self, modules: torch.nn.ModuleList):
        super().__init__()
        self.chain = modules

    def forward(self, x: Any, *edges: Any) -> Any:
        for i, module in enumerate(self.chain):
            x = module(x.relu() if i else x, *edges)
        return x


class TorchCase:
    """Implements `Case`."""

    def __init__(
        self,
        call: Callable[[Any], Any],
        layer: str,
        work: Workload,
        given: dict[str, torch.nn.Parameter],
        place: dict[str, Any],
    ):
        self._call, self._given, self._work = call, given, work
        self._device = torch.device(place["device"])
        pairs: Any = [(work.x, work.cotangent)]
        if LAYERS[layer].on_edges:
            pairs.append((work.on_edges(1), work.on_edges(2)))
        x, cotangents = zip(*pairs, strict=True)
        self._x = [torch.from_numpy(a.copy()).to(**place).requires_grad_() for a in x]
        self._cotangents = [torch.from_numpy(a.copy()).to(**place) for a in cotangents]
        self.compile_seconds: dict[str, float] = {}

    def prepare(self, mode: str, together: Sequence[str] = ()) -> int | None:
        return None

    def launch(self, mode: str) -> Any:
        given = self._x if len(self._x) > 1 else self._x[0]
        if mode == "forward":
            with torch.no_grad():
                return self._call(given)
        for leaf in (*self._x, *self._given.values()):
            leaf.grad = None
        out = self._call(given)
        torch.autograd.backward(out if len(self._x) > 1 else [out], self._cotangents)
        return out

    def wait(self, launched: Any) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def device_bytes(self, mode: str) -> dict[str, int | None]:
        """The most that was allocated in one run beyond what was before it."""
        if self._device.type != "cuda":
            return {"device_bytes": None, "allocator_bytes": None}
        for leaf in (*self._x, *self._given.values()):
            leaf.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.wait(self.launch(mode))
        grown = torch.cuda.max_memory_allocated() - before
        return {"device_bytes": grown, "allocator_bytes": grown}

    def values(self, focus: np.ndarray | None = None) -> dict[str, np.ndarray]:
        whole = self._cotangents
        keeps: list[Any] = []
        if focus is not None:
            keeps = [focus, focus[self._work.dst]][: len(whole)]
            masks = [torch.from_numpy(k).to(self._device)[:, None] for k in keeps]
            self._cotangents = [c * k for c, k in zip(whole, masks, strict=True)]
        out = self.launch("both")
        self._cotangents = whole
        outs = list(out) if len(whole) > 1 else [out]
        names = ("out", "edges_out"), ("x", "edges")
        found = {k: _numpy(v) for k, v in zip(names[0], outs, strict=False)}
        found |= {k: _numpy(v.grad) for k, v in zip(names[1], self._x, strict=False)}
        for key, keep in zip(("out", "edges_out", "edges"), [*keeps, *keeps[1:]], strict=False):
            found[key] = found[key][keep]
        h = self._work.sizes.heads
        shapes = {"src": (h, -1), "dst": (h, -1), "a": (h, -1)}
        for name, parameter in self._given.items():
            g = _numpy(parameter.grad)
            at = shapes.get(name.split(".")[-1], g.shape)
            found[name] = g.T if g.ndim == 2 else g.reshape(at) if g.ndim > 2 else g
        return found


def _numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float32).numpy()


def build(layer: str, configuration: str, work: Workload, setting: Execution) -> TorchCase:
    """The layer on `work`."""
    torch.set_num_threads(setting.threads)
    torch.set_float32_matmul_precision("high" if setting.matmul == "tf32" else "highest")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.empty_cache()
    place = {"device": device, "dtype": getattr(torch, setting.dtype)}
    if configuration == "product" or (configuration == "cusparse" and layer in ("linear", "sum")):
        (matrix,) = _edges(layer, configuration, work, place)
        return TorchCase(matrix, layer, work, {}, place)
    modules, given = _stack(layer, configuration, work, place)
    module = modules[0] if len(modules) == 1 else _Chain(modules)
    edges = _edges(layer, configuration, work, place)
    run: Any = module
    if configuration == "compiled":
        torch._dynamo.reset()  # or it gives up after compiling one function eight times
        run = torch.compile(module, dynamic=False)
    return TorchCase(lambda x: run(x, *edges), layer, work, given, place)
