"""PyTorch Geometric's modules, with gnnjit's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from common import measure

from typed.graphs import Size, Typed


def prepare() -> None:
    torch.set_num_threads(measure.usable_cpus())


def step(
    form: str, data: Typed, size: Size, weights: Mapping[str, np.ndarray]
) -> Callable[[], Any]:
    """What runs value and gradients once: `(results, gradients of features)`."""
    w = {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
    x = {t: torch.from_numpy(rows).requires_grad_() for t, rows in data.features.items()}
    cotangents = {t: torch.from_numpy(rows) for t, rows in data.cotangents.items()}
    edges = {key: torch.from_numpy(ends) for key, ends in data.edges.items()}
    apply, net = MAKE[form](data, size, w, edges)

    def run() -> Any:
        for leaf in (*x.values(), *net.parameters()):
            leaf.grad = None
        out = apply(x)
        sum((out[t] * cotangents[t]).sum() for t in out).backward()
        gradients = {t: leaf.grad.numpy() for t, leaf in x.items()}
        return {t: rows.detach().numpy() for t, rows in out.items()}, gradients

    return run


def _rgcn(kind: Any) -> Callable[..., Any]:
    def make(data: Typed, size: Size, w: Any, edges: Any) -> Any:
        net = kind(size.width, size.width, len(edges))
        kinds = [torch.full((e.shape[1],), i) for i, e in enumerate(edges.values())]
        index, kind_of = torch.cat(list(edges.values()), 1), torch.cat(kinds)
        with torch.no_grad():
            net.weight.copy_(torch.stack([w[f"weight.{name(key)}"] for key in edges]))
            net.root.copy_(w["own.a.kernel"])
            net.bias.copy_(w["own.a.bias"])
        return lambda x: {"a": net(x["a"], index, kind_of)}, net

    return make


def _hgt(data: Typed, size: Size, w: Any, edges: Any) -> Any:
    net = pyg.HGTConv(size.width, size.width, (list(data.features), list(edges)), heads=size.heads)
    with torch.no_grad():
        for t in data.features:
            parts = [f"{part}.{t}" for part in ("key", "query", "value")]
            lin = net.kqv_lin.lins[t]
            lin.weight.copy_(torch.cat([w[f"{p}.kernel"].T for p in parts]))
            lin.bias.copy_(torch.cat([w[f"{p}.bias"] for p in parts]))
            net.out_lin.lins[t].weight.copy_(w[f"out.{t}.kernel"].T)
            net.out_lin.lins[t].bias.copy_(w[f"out.{t}.bias"])
            net.skip[t].fill_(float(w[f"skip.{t}"]))
        for i, key in enumerate(edges):
            net.p_rel[name(key)].copy_(w[f"prior.{name(key)}"][None])
            for h in range(size.heads):
                net.k_rel.weight[h * len(edges) + i].copy_(w[f"attend.{name(key)}"][h])
                net.v_rel.weight[h * len(edges) + i].copy_(w[f"message.{name(key)}"][h])
    return lambda x: net(x, edges), net


def _han(data: Typed, size: Size, w: Any, edges: Any) -> Any:
    net = pyg.HANConv(size.width, size.width, (list(data.features), list(edges)), heads=size.heads)
    with torch.no_grad():
        for t in data.features:
            net.proj[t].weight.copy_(w[f"linear.{t}.kernel"].T)
            net.proj[t].bias.copy_(w[f"linear.{t}.bias"])
        for key in edges:
            net.lin_src[name(key)].copy_(w[f"src.{name(key)}"][None])
            net.lin_dst[name(key)].copy_(w[f"dst.{name(key)}"][None])
        net.k_lin.weight.copy_(w["semantic.kernel"].T)
        net.k_lin.bias.copy_(w["semantic.bias"])
        net.q.copy_(w["query"][None])
    return lambda x: net(x, edges), net


def name(key: tuple[str, str, str]) -> str:
    return "__".join(key)


MAKE: dict[str, Callable[..., Any]] = {
    "RGCNConv": _rgcn(pyg.RGCNConv), "FastRGCNConv": _rgcn(pyg.FastRGCNConv), "HGTConv": _hgt,
    "HANConv": _han,
}  # fmt: skip
