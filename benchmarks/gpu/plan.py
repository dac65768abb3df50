"""What `bench_gpu.py` measures, in which order, and what counts as right."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence

from common.workloads import LAYERS, Sizes

CHOSEN = (
    "linear", "gcn", "sage", "gin", "gat", "gatv2", "gatedgcn", "pna", "gns", "transformer",
)  # fmt: skip

SIZES = {
    "check": Sizes(1_500, 30_000, 64, seed=1, symmetric=True),
    "small": Sizes(10_000, 200_000, 64, symmetric=True),
    "small3": Sizes(10_000, 200_000, 64, depth=3, symmetric=True),
    "arxiv": Sizes(169_343, 2_315_598, 128, symmetric=True),
    "reddit": Sizes(232_965, 114_615_892, 64, heads=1, symmetric=True),
    "reddit4": Sizes(232_965, 114_615_892, 64, heads=4, symmetric=True),
}
"""`small3` is three layers after each other; `reddit` has one attention head, `reddit4` four."""

SMOKE_SIZES = {
    "check": Sizes(60, 300, 8, seed=1, symmetric=True),
    "small": Sizes(300, 2_000, 16, symmetric=True),
    "small3": Sizes(100, 500, 8, depth=3, symmetric=True),
}

FOCUS_EDGES = 200_000
"""Edges into the vertices at which results are compared, beside the largest hub: all of small
graphs."""

ALONE = 2**33
"""Bytes of edges x features from which one implementation at a time holds the device."""

DTYPES = {"float32": 4, "bfloat16": 2}

PEERS = {
    "default": ("gnnjit", "default"),
    "bucketed": ("gnnjit", "bucketed"),
    "segment": ("segment", "sorted"),
    "pyg": ("pyg", "coo"),
    "compiled": ("pyg", "compiled"),
    "cusparse": ("pyg", "cusparse"),
    "csr": ("pyg", "csr"),
    "edge_index": ("pyg", "edge_index"),
}
"""Implementation and configuration, by the name that `--peers` takes."""

USUAL_PEERS = ("default", "segment", "pyg", "compiled", "cusparse")

WAVES = (("default", "bucketed"), ("segment",), ("cusparse",), ("compiled",), ("pyg",))
"""Peers that may hold the device together where memory is short."""

FUSED = ("linear", "sum", "gcn", "sage", "gin")
"""Layers that are one CSR product and dense work."""


@dataclasses.dataclass(frozen=True)
class Group:
    """One layer on one workload in one precision: what takes turns."""

    layer: str
    size: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.layer} {self.size} {self.dtype}"


_FIRST = (
    ("linear", "arxiv", "float32"),  # against cuSPARSE
    ("gat", "arxiv", "float32"),  # against PyG and compiled PyG, with memory; roofline
    ("gatv2", "arxiv", "float32"),
    ("gcn", "arxiv", "float32"),  # roofline
    ("gcn", "small3", "float32"),  # against compiled PyG
    ("sage", "small3", "float32"),
    ("gin", "small3", "float32"),
    ("linear", "small", "float32"),
    ("gat", "reddit", "float32"),  # a step within 50 ms
    ("linear", "arxiv", "bfloat16"),
    ("gat", "arxiv", "bfloat16"),
    ("gns", "arxiv", "float32"),
    ("pna", "arxiv", "float32"),
    ("transformer", "arxiv", "float32"),
    ("gatedgcn", "arxiv", "float32"),
    ("gatv2", "arxiv", "bfloat16"),
    ("gcn", "arxiv", "bfloat16"),
    ("gns", "arxiv", "bfloat16"),
    ("linear", "reddit", "float32"),
)
"""Cases with a bar first, then the rest."""


def groups(
    layers: Sequence[str], sizes: Sequence[str], dtypes: Sequence[str], smoke: bool
) -> list[Group]:
    """All that were asked for, the most important first."""
    rest = [(n, s, d) for d in DTYPES for s in SIZES for n in CHOSEN]
    ordered = [Group(*g) for g in dict.fromkeys((*_FIRST, *rest))]
    return [
        g for g in ordered
        if g.layer in layers and g.size in sizes and g.dtype in dtypes and _sensible(g, smoke)
    ]  # fmt: skip


def _sensible(group: Group, smoke: bool) -> bool:
    if group.size == "check":
        return False
    if group.size == "small3" and (group.layer not in ("gcn", "sage", "gin") or smoke):
        return False
    if group.size == "small" and group.layer in ("gcn", "sage", "gin") and not smoke:
        return False  # measured three deep
    if smoke and group.dtype == "bfloat16":
        return group.layer in ("linear", "gat")
    if group.size == "reddit4":
        return group.layer in ("gat", "gatv2", "transformer")
    return not (group.size.startswith("reddit") and LAYERS[group.layer].on_edges)  # 29 GB features


def is_alone(group: Group, sizes: Sizes) -> bool:
    """Whether the implementations hold the device one after another."""
    return sizes.edges * sizes.features * DTYPES[group.dtype] > ALONE


def waves(peers: Sequence[str], alone: bool) -> list[list[str]]:
    """Peers that are loaded, checked and timed together."""
    if not alone:
        return [list(peers)]
    rest = [(p,) for p in PEERS if not any(p in wave for wave in WAVES)]
    found = [[p for p in wave if p in peers] for wave in (*WAVES, *rest)]
    return [wave for wave in found if wave]


def why_not(group: Group, peer: str, platform: str) -> str | None:
    """A reason not to run a peer, or None."""
    implementation, _ = PEERS[peer]
    if peer == "bucketed" and platform == "cpu":
        return "a graph on a CPU has no degree buckets"
    if implementation != "pyg":
        return None
    for package in ("torch", "torch_geometric"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed: pip install 'gnnjit[bench]'"
    if peer in ("compiled", "cusparse") and platform == "cpu":
        return "measured on a GPU only"
    if peer in ("cusparse", "csr") and group.layer not in FUSED:
        return "the layer is not one CSR product"
    if peer == "csr" and group.layer == "linear":
        return "the configuration cusparse is this"
    return None


def floor(layer: str, dtype: str, matmul: str) -> float:
    """Relative error that is always allowed, in the 2-norm.

    float32: sums in another order. tf32 rounds the operands of matrix products to 10 bits, where
    the plain computation on the CPU that we compare with does not: gradients that cancel, those of
    GAT's scores, are off by 3 % in every implementation, so that the check in float32 has to
    tell what is right. bfloat16 has 8 bits.
    """
    if dtype == "bfloat16":
        return 5e-3
    return PEER_LIMIT if matmul == "tf32" and LAYERS[layer].parameters else 1e-5


def wrong(
    errors: Mapping[str, tuple[float, float]],
    plain: Mapping[str, tuple[float, float]],
    layer: str,
    dtype: str,
    matmul: str,
) -> str | None:
    """Which array is further off than twice plain low precision and the floor, or None.

    In the 2-norm, and where float32 is exact in its largest entry too: elsewhere rounding can put
    single values on the other side of a kink (relu, max).
    """
    least = floor(layer, dtype, matmul)
    for name, (norm, largest) in errors.items():
        allowed = [2 * e + least for e in plain[name]]
        if not norm <= allowed[0]:
            return f"{name} is off by {norm:.2g} in norm, allowed {allowed[0]:.2g}"
        strict = dtype == "float32" and least < 1e-4
        if strict and not largest <= allowed[1]:
            return f"{name} is off by {largest:.2g} in an entry, allowed {allowed[1]:.2g}"
    return None


PEER_LIMIT = 5e-2
"""A peer's float32 results off by more are no longer the same function. In bfloat16 peers that sum
in bfloat16 may be off by anything: it is only recorded."""


def peer_wrong(errors: Mapping[str, tuple[float, float]], dtype: str) -> str | None:
    """Which array of a peer is too far off to compare times, or None."""
    if dtype != "float32":
        return None
    name, (norm, _) = max(errors.items(), key=lambda item: item[1][0])
    return f"{name} is off by {norm:.2g} in norm" if not norm <= PEER_LIMIT else None
