"""Modules of `gnnjit.nn`, made and called."""

from __future__ import annotations

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gnnjit import nn

from .calls import Call, Nonsense, Pick, Shape
from .features import FULL, Leaves, Unknown, features, plain, rows_of


@functools.cache
def module(name: str) -> Any:
    rngs = nnx.Rngs(0)
    return {
        "GCN": lambda: nn.GCN(3, 2, rngs=rngs), "SAGE": lambda: nn.SAGE(3, 2, rngs=rngs),
        "GAT": lambda: nn.GAT(3, 2, rngs=rngs), "GIN": lambda: nn.GIN(3, 3, 2, rngs=rngs),
        "GGNN": lambda: nn.GGNN(3, rngs=rngs), "GATv2": lambda: nn.GATv2(3, 2, rngs=rngs),
        "EdgeConv": lambda: nn.EdgeConv(3, 3, 2, rngs=rngs),
        "CommNet": lambda: nn.CommNet(3, 2, rngs=rngs),
        "GatedGCN": lambda: nn.GatedGCN(3, 2, rngs=rngs),
        "Cheb": lambda: nn.Cheb(3, 2, rngs=rngs), "PNA": lambda: nn.PNA(3, 2, rngs=rngs),
        "GraphTransformer": lambda: nn.GraphTransformer(3, 2, rngs=rngs),
    }[name]()  # fmt: skip


NAMES = (
    "GCN", "SAGE", "GAT", "GIN", "GGNN", "GATv2", "EdgeConv", "CommNet", "GatedGCN", "Cheb", "PNA",
    "GraphTransformer",
)  # fmt: skip


def module_call(pick: Pick) -> Call:
    name = pick(dict(zip(NAMES, NAMES, strict=True)))
    x = pick(features(pick.rng, 4))

    def oracle() -> Any:
        try:
            rows = rows_of(plain(x), 4)
        except Unknown:
            return None
        if isinstance(rows, Leaves):  # Flax stacks lists
            return None
        if not isinstance(rows, np.ndarray) or rows.ndim != 2:
            raise Nonsense
        if rows.dtype.kind == "c" or x.dtype == bool or (name == "GGNN" and rows.shape[1] < 3):
            return None  # some modules have a meaning, some have none
        if rows.shape[1] != 3:
            raise Nonsense
        return Shape((4, 3 if name == "GGNN" else 2))

    return Call("module", lambda: module(name)(FULL, x), oracle)


WIDTHS = {"2": 2, "3": 3, "1": 1, "numpy": np.int64(4)}
NO_WIDTHS = {
    "0": 0, "-1": -1, "2.5": 2.5, "2.0": 2.0, "text": "2", "None": None, "True": True, "list": [2],
    "NaN": float("nan"), "shape": (2, 3), "array": np.array([2, 3]), "long": "9" * 5000,
    "key": jax.random.key(0), "2**70": 2**70, "graph": FULL, "bytes": b"2",
}  # fmt: skip
NO_FLAGS = {"None": None, "text": "no", "array": np.ones(2), "number": 1}
WIDE_SETS: dict[str, tuple[str, ...]] = {
    "GCN": ("in_features", "out_features"), "SAGE": ("in_features", "out_features"),
    "GAT": ("in_features", "out_features", "heads"),
    "EdgeConv": ("in_features", "hidden", "out_features"),
    "GATv2": ("in_features", "out_features", "heads"),
    "GIN": ("in_features", "hidden", "out_features"),
    "GGNN": ("features", "edge_types"), "CommNet": ("in_features", "out_features"),
    "GatedGCN": ("in_features", "out_features"), "Cheb": ("in_features", "out_features", "terms"),
    "PNA": ("in_features", "out_features"),
    "GraphTransformer": ("in_features", "out_features", "heads"),
}  # fmt: skip
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "aggregator": (
        {"mean": "mean", "sum": "sum"},
        {"Mean": "Mean", "None": None, "3": 3, "list": ["mean"], "function": jnp.mean,
         "long": "m" * 4000},
    ),
    "dropout": (
        {"0": 0.0, "half": 0.5, "numpy": np.float32(0.1), "1": 1},
        {"-1": -0.1, "2": 2.0, "NaN": float("nan"), "text": "half", "None": None, "list": [0.5],
         "array": np.array([0.5, 0.2]), "long": "x" * 5000},
    ),
    "negative_slope": (
        {"0": 0.0, "usual": 0.2, "numpy": np.float32(0.1), "1": 1},
        {"text": "0.2", "None": None, "list": [0.1], "NaN": float("nan"), "infinite": float("inf"),
         "array": np.ones(3), "long": "x" * 5000, "complex": 1j},
    ),
    "eps": (
        {"0": 0, "half": 0.5, "numpy": np.float32(0.1)},
        {"text": "small", "None": None, "list": [0.1], "NaN": float("nan"), "long": "x" * 5000,
         "array": np.ones(3), "complex": 1j},
    ),
    "steps": (
        {"1": 1, "2": 2, "0": 0},
        {k: v for k, v in NO_WIDTHS.items() if k not in ("0", "2**70")},
    ),
    "edge_features": ({"None": None}, {k: v for k, v in NO_WIDTHS.items() if k != "None"}),
    **dict.fromkeys(
        ("concat", "self_loops", "use_bias", "normalize", "train_eps", "beta"),
        ({"yes": True, "no": False, "numpy": np.True_}, NO_FLAGS),
    ),
    "batch_norm": ({"no": False}, NO_FLAGS),
}  # fmt: skip
TAKES: dict[str, tuple[str, ...]] = {
    "GCN": ("self_loops", "use_bias"), "SAGE": ("aggregator", "normalize"),
    "GAT": ("dropout", "negative_slope", "concat", "self_loops", "edge_features"),
    "GATv2": ("dropout", "negative_slope", "concat", "self_loops", "edge_features"),
    "GIN": ("eps", "train_eps", "batch_norm", "edge_features"), "GGNN": ("steps",),
    "EdgeConv": (), "CommNet": ("aggregator",), "GatedGCN": ("edge_features",),
    "Cheb": (), "PNA": ("edge_features",),
    "GraphTransformer": ("dropout", "concat", "beta", "edge_features"),
}  # fmt: skip
NO_RNGS = {
    "None": None, "0": 0, "key": jax.random.key(0), "text": "seed", "class": nnx.Rngs,
    "dict": {"params": jax.random.key(0)}, "dropout alone": lambda: nnx.Rngs(dropout=0),
}  # fmt: skip


def make_call(pick: Pick) -> Call:
    """A module made with odd arguments, and called."""
    name = pick(dict(zip(NAMES, NAMES, strict=True)))
    arguments: dict[str, Any] = {}
    right = True

    def draw(key: str, good: dict[str, Any], bad: dict[str, Any], often: float) -> None:
        nonlocal right
        wrong = pick.rng.random() < often
        right &= not wrong
        arguments[key] = pick(bad if wrong else good)
        pick.names[-1] = f"{key} {pick.names[-1]}"

    for key in WIDE_SETS[name]:
        draw(key, WIDTHS, NO_WIDTHS, 0.1)
    for key in TAKES[name]:
        if pick.rng.random() < 0.5:
            draw(key, *OPTIONS[key], 0.3)
    draw("rngs", {"right": lambda: nnx.Rngs(0)}, NO_RNGS, 0.07)
    if pick.rng.random() < 0.03:
        arguments[pick({"dim": "dim", "bias": "bias"})] = 3
        right = False
    width = arguments.get("in_features", arguments.get("features"))
    x = np.ones((4, int(width) if right else 3), np.float32)

    def call() -> Any:
        rngs = arguments["rngs"]
        rngs = rngs() if isinstance(rngs, types.FunctionType) else rngs  # of this trace
        return getattr(nn, name)(**arguments | {"rngs": rngs})(FULL, x)

    def oracle() -> Any:
        if not right:
            raise Nonsense
        return right_shape(name, arguments)

    return Call(name, call, oracle)


def right_shape(name: str, arguments: dict[str, Any]) -> Shape | None:
    """The shape of what a module made with these arguments returns; None where it refuses."""
    if name == "GGNN":
        types = int(arguments["edge_types"])
        refused = types > 1 and arguments.get("steps") != 0  # as it is called without edges
        return None if refused else Shape((4, int(arguments["features"])))
    heads = arguments.get("heads", 1) if arguments.get("concat", True) else 1
    return Shape((4, int(arguments["out_features"]) * int(heads)))
