"""What the benchmarks run on: a power-law graph, features and parameters, from a seed."""

from __future__ import annotations

import dataclasses
import pathlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

HEADS = 4
"""Attention heads unless said otherwise; each has `features / heads` features."""

EXPONENT = 2.5
"""Exponent of the degrees' power law: P(degree = k) ~ k ** -EXPONENT."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Vertices, edges, features in and out, and the seed.

    Attributes:
        heads: of the attention layers.
        depth: how many of the layer follow each other, with a relu between.
        symmetric: whether every edge is there in both directions (`edges` counts both).
    """

    vertices: int
    edges: int
    features: int
    seed: int = 0
    heads: int = HEADS
    depth: int = 1
    symmetric: bool = False


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer that is measured.

    Attributes:
        title: for tables.
        parameters: shapes, a letter per axis: F features, H heads, D = F / H, and multiples of F
            by `MULTIPLES`.
        gathered: from F and H, the scalars that one edge moves in the forward and in the backward
            if traversals are fused as far as they can be: what the roofline counts.
        own: of those, the ones that belong to the edge itself (weights, edge features), which no
            cache can save.
        on_edges: whether the layer reads and returns edge features `[E, F]` too.
    """

    title: str
    parameters: Mapping[str, str]
    gathered: Callable[[int, int], tuple[int, int]]
    own: Callable[[int, int], tuple[int, int]] = lambda f, h: (0, 0)
    on_edges: bool = False


MULTIPLES = {"S": 2, "T": 3, "P": 15}
"""Letters for widths of several F: two and three concatenated, PNA's 5 reductions x 3 scalers."""


LAYERS: dict[str, Layer] = {
    "linear": Layer(
        "sum(w * src), one CSR product", {},
        lambda f, h: (f + 1, f + 1), lambda f, h: (1, 1),
    ),
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
    "pna": Layer(
        "PNA 5 x 3",
        {"own": "FF", "w": "PF", "b": "F"},
        lambda f, h: (f, 6 * f),
    ),
    "gns": Layer(
        "GNS block",
        {
            "e1": "TF", "c1": "F", "e2": "FF", "c2": "F", "e_scale": "F", "e_shift": "F",
            "v1": "SF", "b1": "F", "v2": "FF", "b2": "F", "v_scale": "F", "v_shift": "F",
        },
        lambda f, h: (3 * f, 5 * f),
        lambda f, h: (2 * f, 3 * f),
        on_edges=True,
    ),
    "transformer": Layer(
        "graph transformer",
        {
            "query": "FF", "b_query": "F", "key": "FF", "b_key": "F",
            "value": "FF", "b_value": "F", "skip": "FF", "b": "F",
        },
        lambda f, h: (2 * f, 4 * f + 3 * h),
    ),
}  # fmt: skip
"""Layers by the name that `--layers` takes."""

ON_CPU = ("linear", "sum", "gcn", "sage", "gin", "gat", "gatv2", "gatedgcn", "resgated")
"""What `bench_layers.py` measures."""

BAR_LAYERS = ("gcn", "sage", "gat", "resgated")
"""Where gnnjit wants to be 5 times as fast as PyG."""


def gathered(layer: str, mode: str, features: int, heads: int = HEADS) -> int:
    """Scalars that one edge moves in `mode` ("forward" or "both")."""
    forward, backward = LAYERS[layer].gathered(features, heads)
    return forward if mode == "forward" else forward + backward


def must_move(layer: str, mode: str, sizes: Sizes, item: int) -> dict[str, int]:
    """Bytes that a fused implementation moves, for scalars of `item` bytes.

    "edges": every edge reads its rows from memory; "vertices": every row is read from memory once
    and the edges find it in a cache. Both count one 4-byte index per edge and traversal (one in the
    forward, one in the backward), and one row per vertex of input and output (forward), of
    cotangent, input and input gradient (backward).
    """
    both = mode == "both"
    own = LAYERS[layer].own(sizes.features, sizes.heads)
    on_edge = own[0] + own[1] * both
    per_edge = gathered(layer, mode, sizes.features, sizes.heads)
    fixed = 4 * sizes.edges * (1 + both) + item * sizes.vertices * sizes.features * (2 + 3 * both)
    return {
        "edges": sizes.depth * (fixed + item * sizes.edges * per_edge),
        "vertices": sizes.depth * (fixed + item * sizes.edges * on_edge),
    }


@dataclasses.dataclass(frozen=True)
class Workload:
    """The inputs of every layer.

    Attributes:
        src, dst: int32 `[E]`, the edges, sorted by destination, then source; no duplicates and no
            self loops.
        weight: float32 `[E]`, for the linear traversal.
        x: float32 `[N, F]`.
        cotangent: float32 `[N, F]`, of the layer's output: what the backward starts from.
        focus: bool `[N]`, the destinations whose results are compared with a reference.
    """

    sizes: Sizes
    src: np.ndarray
    dst: np.ndarray
    weight: np.ndarray
    x: np.ndarray
    cotangent: np.ndarray
    focus: np.ndarray

    def on_edges(self, seed: int) -> np.ndarray:
        """float32 `[E, F]`, edge features or their cotangent: random rows, repeated."""
        rng = np.random.default_rng([self.sizes.seed, seed])
        some = rng.standard_normal((min(len(self.src), 65_521), self.sizes.features), np.float32)
        return np.resize(some, (len(self.src), self.sizes.features))

    def save(self, path: pathlib.Path) -> None:
        arrays = {k: getattr(self, k) for k in ARRAYS}
        np.savez(path, sizes=np.array(dataclasses.astuple(self.sizes)), **arrays)

    @staticmethod
    def load(path: pathlib.Path) -> Workload:
        with np.load(path) as file:
            sizes = Sizes(*map(int, file["sizes"]))  # type: ignore[arg-type]
            return Workload(sizes, **{k: file[k] for k in ARRAYS})


ARRAYS = ("src", "dst", "weight", "x", "cotangent", "focus")


def make(sizes: Sizes, focus_edges: int | None = None) -> Workload:
    """The workload of `sizes`: the same arrays for the same sizes and seed.

    `focus_edges` bounds the edges into `focus`, those of the largest hub aside; all if None.
    """
    rng = np.random.default_rng(sizes.seed)
    edges = mirrored_edges if sizes.symmetric else power_law_edges
    src, dst = edges(sizes.vertices, sizes.edges, rng)
    n, f = sizes.vertices, sizes.features
    return Workload(
        sizes,
        src,
        dst,
        weight=rng.uniform(0.5, 1.5, len(src)).astype(np.float32),
        x=rng.standard_normal((n, f), np.float32),
        cotangent=rng.standard_normal((n, f), np.float32),
        focus=_focus(np.bincount(dst, minlength=n), focus_edges, rng),
    )


def _focus(degree: np.ndarray, limit: int | None, rng: np.random.Generator) -> np.ndarray:
    """The largest hub, and vertices at random while their edges stay under `limit`."""
    if limit is None or limit >= degree.sum():
        return np.ones(len(degree), bool)
    order = rng.permutation(len(degree))
    focus = np.zeros(len(degree), bool)
    focus[order[: np.searchsorted(np.cumsum(degree[order]), limit)]] = True
    focus[degree.argmax()] = True
    return focus


def mirrored_edges(
    vertices: int, edges: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """`power_law_edges` with every edge in both directions, in seconds for 100 million edges.

    Endpoints come from the continuous form of the same distribution: `vertices * u ** p`.
    """
    half, power = edges // 2, (EXPONENT - 1) / (EXPONENT - 2)
    if 2 * half != edges or edges > vertices * (vertices - 1) // 2:
        raise ValueError(f"{edges} edges between {vertices} vertices: want an even, sparse number")
    number = rng.permutation(vertices).astype(np.int32)
    keys = np.empty(0, np.int64)
    while len(keys) < half:
        u = rng.random((2, half - len(keys) + half // 8 + 16), np.float32)
        a, b = number[np.minimum((vertices * u**power).astype(np.int32), vertices - 1)]
        low, high = np.minimum(a, b), np.maximum(a, b)
        fresh = (low.astype(np.int64) * vertices + high)[low != high]
        keys = np.sort(np.concatenate([keys, fresh]))
        keys = keys[np.diff(keys, prepend=-1) > 0]
    excess = rng.choice(len(keys), len(keys) - half, replace=False, shuffle=False)
    keys = np.delete(keys, excess)
    low, high = np.divmod(keys, vertices)
    keys = np.sort(np.concatenate([keys, high * vertices + low]))
    dst, src = np.divmod(keys, vertices)
    return src.astype(np.int32), dst.astype(np.int32)


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
    """float32 parameters, Glorot-sized, biases included; matrices are `[in, out]`.

    With a depth above 1, names are prefixed: "0.w", "1.w", ...
    """
    rng = np.random.default_rng([sizes.seed, zlib.crc32(layer.encode())])
    f = sizes.features
    width = {"F": f, "H": sizes.heads, "D": f // sizes.heads}
    width |= {letter: k * f for letter, k in MULTIPLES.items()}
    out = {}
    for i in range(sizes.depth):
        for name, axes in LAYERS[layer].parameters.items():
            shape = tuple(width[a] for a in axes)
            bound = (3 / shape[0 if len(shape) == 1 else -2]) ** 0.5
            key = name if sizes.depth == 1 else f"{i}.{name}"
            out[key] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return out


def of_layer(parameters: Mapping[str, Any], i: int, depth: int) -> dict[str, Any]:
    """The parameters of layer `i` of `depth`, under their own names."""
    if depth == 1:
        return dict(parameters)
    prefix = f"{i}."
    return {k.removeprefix(prefix): p for k, p in parameters.items() if k.startswith(prefix)}


def with_self_loops(work: Workload) -> tuple[np.ndarray, np.ndarray]:
    """The edges and a self loop at every vertex, sorted by destination, then source."""
    n, count = work.sizes.vertices, len(work.src)
    loops = np.arange(n, dtype=np.int32)
    start = np.concatenate([[0], np.cumsum(np.bincount(work.dst, minlength=n))])
    after = work.src > work.dst
    at_edge = np.arange(count) + work.dst + after
    at_loop = start[1:] - np.bincount(work.dst, weights=after, minlength=n).astype(np.int64) + loops
    src, dst = np.empty(count + n, np.int32), np.empty(count + n, np.int32)
    src[at_edge], dst[at_edge] = work.src, work.dst
    src[at_loop] = dst[at_loop] = loops
    return src, dst
