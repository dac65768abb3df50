"""The same with PyTorch Geometric, whose edges and instances are computed before and kept whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from common import measure
from torch_geometric.utils import scatter, softmax


def prepare() -> None:
    torch.set_num_threads(measure.usable_cpus())


def steps(
    model: str, arrays: Mapping[str, np.ndarray], x: np.ndarray, roots: slice, p: Any
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What runs aggregation, and what runs the update: each with its gradients, once.

    arrays: of PinSage and anchor sets `src`, `dst` and `weight` of edges, sorted by `dst`; of MAGNN
    `instance` `[I, vertices]` and the number `group` of its (root, metapath); `paths`, or sets.
    `roots`: their rows.
    """
    a = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    features = torch.from_numpy(x).requires_grad_()
    w = {name: torch.from_numpy(value).requires_grad_() for name, value in p.items()}
    of_roots = features.detach()[roots]
    run = {"pinsage": _pool, "pgnn": _sets}.get(model, _attend)

    def aggregate() -> Any:
        features.grad = None
        out = run(a, features, features[roots], w)
        torch.sin(out).sum().backward()
        return out.detach().numpy(), features.grad.numpy()  # type: ignore[union-attr]

    h = torch.from_numpy(aggregate()[0]).clone().requires_grad_()

    def update() -> Any:
        h.grad = None
        torch.sin(torch.relu(torch.cat([of_roots, h], 1) @ w["update"])).sum().backward()
        return h.grad

    return aggregate, update


def _pool(a: Any, x: Any, roots: Any, w: Any) -> Any:
    messages = a["weight"][:, None] * x[a["src"]]
    return scatter(messages, a["dst"], dim=0, dim_size=len(x), reduce="sum")


def _attend(a: Any, x: Any, roots: Any, w: Any) -> Any:
    paths, group = int(a["paths"]), a["group"]
    z = x[a["instance"]].mean(dim=1)
    kind, root = group % paths, group // paths
    leaky = torch.nn.functional.leaky_relu
    score = leaky((roots[root] * w["root"][kind]).sum(1) + (z * w["own"][kind]).sum(1), 0.2)
    weight = softmax(score, group, num_nodes=len(roots) * paths)
    h = scatter(weight[:, None] * z, group, dim=0, dim_size=len(roots) * paths, reduce="sum")
    return _side_by_side(h.view(len(roots), paths, -1), roots, w)


def _sets(a: Any, x: Any, roots: Any, w: Any) -> Any:
    paths = int(a["paths"])
    messages = a["weight"][:, None] * x[a["src"]]
    h = scatter(messages, a["dst"], dim=0, dim_size=len(roots) * paths, reduce="sum")
    return _side_by_side(h.view(len(roots), paths, -1), roots, w)


def _side_by_side(h: Any, roots: Any, w: Any) -> Any:
    leaky = torch.nn.functional.leaky_relu
    score = leaky(roots @ w["top_root"].T + (h * w["top_own"]).sum(-1), 0.2)
    return torch.einsum("np,npf->nf", torch.softmax(score, 1), h)
