"""PyTorch Geometric's side: NeighborLoader, and SAGE on its batches.

It needs PyTorch and PyTorch Geometric, and torch-sparse or pyg-lib, without which NeighborLoader
does not sample.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader, NeighborSampler
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

from sampling.graphs import Labelled


def facts() -> dict[str, Any]:
    """Which libraries it runs on."""
    typing = torch_geometric.typing
    return {
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "samples_by": "pyg-lib" if typing.WITH_PYG_LIB else "torch-sparse",
    }


def loader(
    graph: Labelled, seeds: np.ndarray, fanouts: Sequence[int], batch: int, workers: int,
    features: bool,
) -> Any:  # fmt: skip
    edges = torch.from_numpy(np.stack([graph.src, graph.dst]).astype(np.int64))
    data = Data(edge_index=edges, num_nodes=graph.num_nodes)
    if features:
        data.x = torch.from_numpy(np.array(graph.x))
        data.y = torch.from_numpy(np.array(graph.y).astype(np.int64))
    return NeighborLoader(
        data, num_neighbors=list(fanouts), batch_size=batch, shuffle=True, num_workers=workers,
        input_nodes=torch.from_numpy(np.array(seeds)), persistent_workers=workers > 0,
        is_sorted=True,
    )  # fmt: skip


def rate(graph: Labelled, fanouts: Sequence[int], batch: int, batches: int, workers: int) -> Any:
    """Vertices and edges sampled a second, without features."""
    torch.set_num_threads(1)
    seeds = np.random.default_rng(0).permutation(graph.num_nodes)[: batch * batches]
    found = loader(graph, seeds, fanouts, batch, workers, features=False)
    for _ in found:  # workers start, and read the graph once
        pass
    vertices = edges = 0
    started = time.perf_counter()
    for part in found:
        vertices, edges = vertices + part.num_nodes, edges + part.num_edges
    seconds = time.perf_counter() - started
    return {"vertices": vertices, "edges": edges, "seconds": seconds}


class Sage(torch.nn.Module):
    """As `gnnjit.nn.recipes.build("sage")`, without dropout."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.layers = torch.nn.ModuleList(SAGEConv(a, b) for a, b in pairs)

    def forward(self, part: Any) -> torch.Tensor:
        """Of a batch of NeighborLoader, trimmed to each layer where it says what each hop found."""
        x, edges = part.x, part.edge_index
        trims = "num_sampled_nodes" in part
        for i, layer in enumerate(self.layers):
            if trims:
                x, edges, _ = trim_to_layer(
                    i, part.num_sampled_nodes, part.num_sampled_edges, x, edges
                )
            x = layer(x, edges)
            x = x if i == len(self.layers) - 1 else x.relu()
        return x[: part.batch_size]

    def on_blocks(self, x: torch.Tensor, blocks: Any) -> torch.Tensor:
        """Of a batch of NeighborSampler, which has a bipartite graph for each layer."""
        for i, (layer, (edges, _, size)) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer((x, x[: size[1]]), edges)
            x = x if i == len(self.layers) - 1 else x.relu()
        return x


def batches(
    graph: Labelled, fanouts: Sequence[int], batch: int, workers: int, form: str
) -> Callable[[Sage], Iterator[Any]]:
    """(logits, labels) of each batch of an epoch, of a model."""
    if form == "whole":
        found = loader(graph, graph.train, fanouts, batch, workers, features=True)
        return lambda model: ((model(p), p.y[: p.batch_size]) for p in found)
    x, y = torch.from_numpy(np.array(graph.x)), torch.from_numpy(np.array(graph.y).astype(np.int64))
    edges = torch.from_numpy(np.stack([graph.src, graph.dst]).astype(np.int64))
    sampler = NeighborSampler(
        edges, sizes=list(fanouts), node_idx=torch.from_numpy(np.array(graph.train)),
        num_nodes=graph.num_nodes, batch_size=batch, shuffle=True, num_workers=workers,
        persistent_workers=workers > 0,
    )  # fmt: skip
    return lambda model: (
        (model.on_blocks(x[vertices], blocks), y[vertices[:size]])
        for size, vertices, blocks in sampler
    )


def epoch(
    graph: Labelled, fanouts: Sequence[int], batch: int, hidden: int, workers: int, threads: int,
    epochs: int, form: str,
) -> Any:  # fmt: skip
    """Seconds of each epoch of training after the first, and the last loss.

    form: "whole", batches of NeighborLoader; "blocks", those of NeighborSampler, which samples more
    (each vertex draws anew in each layer) and computes less without pyg-lib.
    """
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    found = batches(graph, fanouts, batch, workers, form)
    model = Sage([graph.x.shape[1], *[hidden] * (len(fanouts) - 1), graph.num_classes])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seconds, loss = [], 0.0
    for _ in range(epochs + 1):
        started = time.perf_counter()
        losses = []
        for out, labels in found(model):
            optimizer.zero_grad()
            each = torch.nn.functional.cross_entropy(out, labels)
            each.backward()
            optimizer.step()
            losses.append(float(each))
        seconds.append(time.perf_counter() - started)
        loss = float(np.mean(losses))
    return {"seconds": seconds[1:], "loss": loss}
