"""What the benchmarks run on: a power-law graph, features and parameters, from a seed."""

from __future__ import annotations

import dataclasses
import pathlib
import zlib
from collections.abc import Callable, Mapping

import numpy as np

HEADS = 4
"""Of GAT and GATv2; each has `features / HEADS` features."""

EXPONENT = 2.5
"""Of the power law of the degrees: P(degree = k) ~ k ** -EXPONENT."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Vertices, edges, features in and out, and the seed."""

    vertices: int
    edges: int
    features: int
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer that is measured.

    Attributes:
        title: for tables.
        parameters: shapes, a letter per axis: F features, H heads, D = F / H.
        gathered: from F and H, the scalars that one edge reads in the forward and in the backward
            if traversals are fused as far as they can be: what the roofline counts.
    """

    title: str
    parameters: Mapping[str, str]
    gathered: Callable[[int, int], tuple[int, int]]


LAYERS: dict[str, Layer] = {
    "linear": Layer("sum(w * src), one CSR product", {}, lambda f, h: (f + 1, f + 1)),
    "sum": Layer("sum(src)", {}, lambda f, h: (f, f)),
    "gcn": Layer("GCN", {"w": "FF", "b": "F"}, lambda f, h: (f, f)),
    "sage": Layer("SAGE mean", {"own": "FF", "b": "F", "neighbors": "FF"}, lambda f, h: (f, f)),
    "gin": Layer("GIN", {"w1": "FF", "b1": "F", "w2": "FF", "b2": "F"}, lambda f, h: (f, f)),
    "gat": Layer(
        "GAT 4 heads",
        {"w": "FF", "src": "HD", "dst": "HD", "b": "F"},
        lambda f, h: (f + h, 2 * f + 4 * h),
    ),
    "gatv2": Layer(
        "GATv2 4 heads",
        {"w_src": "FF", "b_src": "F", "w_dst": "FF", "b_dst": "F", "a": "HD", "b": "F"},
        lambda f, h: (f, 3 * f + 3 * h),
    ),
    "gatedgcn": Layer(
        "GatedGCN (NeuGraph)",
        {"dst": "FF", "src": "FF", "w": "FF"},
        lambda f, h: (2 * f, 4 * f),
    ),
    "resgated": Layer(
        "ResGatedGraphConv",
        {
            "key": "FF", "b_key": "F", "query": "FF", "b_query": "F",
            "value": "FF", "b_value": "F", "skip": "FF", "b": "F",
        },
        lambda f, h: (2 * f, 4 * f),
    ),
}  # fmt: skip
"""By the name that `--layers` takes."""

BAR_LAYERS = ("gcn", "sage", "gat", "resgated")
"""Where gnnjit wants to be 5 times as fast as PyG."""


def gathered(layer: str, mode: str, features: int) -> int:
    """Scalars that one edge reads in `mode` ("forward" or "both")."""
    forward, backward = LAYERS[layer].gathered(features, HEADS)
    return forward if mode == "forward" else forward + backward


@dataclasses.dataclass(frozen=True)
class Workload:
    """The inputs of every layer.

    Attributes:
        src, dst: int32 `[E]`, the edges, sorted by destination, then source; no duplicates and no
            self loops.
        weight: float32 `[E]`, for the linear traversal.
        x: float32 `[N, F]`.
        cotangent: float32 `[N, F]`, of the layer's output: what the backward starts from.
    """

    sizes: Sizes
    src: np.ndarray
    dst: np.ndarray
    weight: np.ndarray
    x: np.ndarray
    cotangent: np.ndarray

    def save(self, path: pathlib.Path) -> None:
        arrays = {k: getattr(self, k) for k in ("src", "dst", "weight", "x", "cotangent")}
        np.savez(path, sizes=np.array(dataclasses.astuple(self.sizes)), **arrays)

    @staticmethod
    def load(path: pathlib.Path) -> Workload:
        with np.load(path) as file:
            arrays = {k: file[k] for k in ("src", "dst", "weight", "x", "cotangent")}
            return Workload(Sizes(*map(int, file["sizes"])), **arrays)


def make(sizes: Sizes) -> Workload:
    """The workload of `sizes`: the same arrays for the same sizes and seed."""
    rng = np.random.default_rng(sizes.seed)
    src, dst = power_law_edges(sizes.vertices, sizes.edges, rng)
    n, f = sizes.vertices, sizes.features
    return Workload(
        sizes,
        src,
        dst,
        weight=rng.uniform(0.5, 1.5, len(src)).astype(np.float32),
        x=rng.standard_normal((n, f), np.float32),
        cotangent=rng.standard_normal((n, f), np.float32),
    )


def power_law_edges(
    vertices: int, edges: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Chung & Lu (2002): vertex `i` is an endpoint with probability ~ (i + 1) ** -1/(EXPONENT-1).

    In- and out-degrees follow the same power law, and the same vertices are hubs in both.
    Vertices are numbered at random, so that neighbours are not close in memory.
    """
    if edges > vertices * (vertices - 1) // 2:
        raise ValueError(
            f"{edges} edges are too many for {vertices} vertices, expected a sparse "
            f"graph: at most half of all pairs"
        )
    chance = np.arange(1, vertices + 1) ** (-1 / (EXPONENT - 1))
    ends = np.cumsum(chance / chance.sum())
    number = rng.permutation(vertices)
    keys = np.empty(0, np.int64)
    while len(keys) < edges:
        ends_of = np.searchsorted(ends, rng.random((2, 2 * edges)))
        src, dst = number[np.minimum(ends_of, vertices - 1)]
        fresh = (dst * vertices + src)[src != dst]
        keys = np.unique(np.concatenate([keys, fresh]))
    keys = np.sort(rng.choice(keys, edges, replace=False))
    return (keys % vertices).astype(np.int32), (keys // vertices).astype(np.int32)


def parameters(layer: str, sizes: Sizes) -> dict[str, np.ndarray]:
    """float32 parameters of one layer, Glorot-sized, biases included; matrices are `[in, out]`."""
    rng = np.random.default_rng([sizes.seed, zlib.crc32(layer.encode())])
    width = {"F": sizes.features, "H": HEADS, "D": sizes.features // HEADS}
    out = {}
    for name, axes in LAYERS[layer].parameters.items():
        shape = tuple(width[a] for a in axes)
        bound = (3 / shape[0 if len(shape) == 1 else -2]) ** 0.5
        out[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return out


def with_self_loops(work: Workload) -> tuple[np.ndarray, np.ndarray]:
    """The edges and a self loop at every vertex, sorted by destination, then source."""
    loops = np.arange(work.sizes.vertices, dtype=np.int32)
    src, dst = np.concatenate([work.src, loops]), np.concatenate([work.dst, loops])
    order = np.lexsort((src, dst))
    return src[order], dst[order]
