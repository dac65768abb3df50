"""Calls of layers, of the words inside them, of `explain` and `check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit

from .calls import Call, Nonsense, Pick, anything, nothing_right
from .features import (
    DST,
    FULL,
    GRAPHS,
    SRC,
    Leaves,
    Other,
    Tensor,
    Unknown,
    features,
    in_full,
    plain,
    rows_of,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Edge:
    src: Any
    dst: Any
    data: Any


MESSAGES: dict[str, Callable[..., Any]] = {
    "e.src": lambda v, e, *p: e.src,
    "e.src * v": lambda v, e, *p: e.src * v,
    "e.src + e.data": lambda v, e, *p: e.src + e.data,
    "e.data": lambda v, e, *p: e.data,
    "e.src @ w": lambda v, e, *p: e.src @ p[0],
    "e.src * b": lambda v, e, *p: e.src * p[0],
    "e.dst - e.src": lambda v, e, *p: e.dst * 1.0 - e.src,
    "e.src[0]": lambda v, e, *p: e.src[0],
    "e.src['a']": lambda v, e, *p: e.src["a"],
    "e.src[:, 0]": lambda v, e, *p: e.src[:, 0],
    "e.source": lambda v, e, *p: e.source,
    "e": lambda v, e, *p: e,
    "v.src": lambda v, e, *p: v.src,
    "v[7] if v[0] > 0": lambda v, e, *p: v if v[0] > 0 else e.src,
    "float(e.src)": lambda v, e, *p: float(e.src[0]),
    "None": lambda v, e, *p: None,
    "text": lambda v, e, *p: "text",
    "e.src + 1": lambda v, e, *p: e.src * 1.0 + 1,
}
NEEDS_TRACE = ("v[7] if v[0] > 0", "float(e.src)")
"""What plain arrays can do and a traced value cannot: there is no right result."""

WORDS = ("sum", "mean", "max", "min", "edge")
REDUCE: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}

PARAMETERS = {
    "nothing": (), "nothing again": (), "still nothing": (),
    "w": (np.eye(3, 2, dtype=np.float32),), "b": (np.ones(3, np.float32),),
    "number": (2.0,), "other w": (np.ones((4, 2), np.float32),), "two": (1.0, 2.0),
    "text": ("text",), "tensor": (Tensor(np.ones((3, 2))),), "list": ([[1.0, 2.0]] * 3,),
    "None": (None,), "object": (Other(),), "long b": (np.ones(999, np.float32),),
    "objects": (np.array([None] * 3),), "function": (len,),
}  # fmt: skip


def layer_call(pick: Pick) -> Call:
    graph = pick(GRAPHS)
    rng = pick.rng
    two = graph.num_src != graph.num_dst
    x = pick(features(rng, graph.num_dst))
    if two and rng.random() < 0.8:
        pick.names.append("Bipartite")
        x = gnnjit.Bipartite(src=pick(features(rng, graph.num_src)), dst=x)
    said = list(MESSAGES)[rng.integers(len(MESSAGES))]
    given = rng.random() < (0.9 if "data" in said else 0.1)
    edges = pick(features(rng, graph.num_edges)) if given else None
    word = WORDS[rng.integers(len(WORDS))]
    pick.names += [said, word]
    params = pick(PARAMETERS)
    message = MESSAGES[said]

    def function(v: Any, e: Any, *p: Any) -> Any:
        m = message(v, e, *p)
        return m if word == "edge" else getattr(gnnjit, word)(m)

    layer = gnnjit.layer(function)
    values = rng.random() < 0.1

    def oracle() -> Any:
        if said in NEEDS_TRACE:
            raise Nonsense(said)
        if "data" not in said and jax.tree.leaves(edges):
            raise Nonsense("edges that nothing reads")
        try:
            return longhand(graph, x, edges, params, message, word)
        except Unknown:
            return None

    return Call("layer", lambda: layer(graph, x, *params, edges=edges), oracle, values)


def longhand(
    graph: Any, x: Any, edges: Any, params: tuple[Any, ...], message: Any, word: str
) -> Any:
    """The layer on plain arrays, edge by edge."""
    src, dst = (x.src, x.dst) if isinstance(x, gnnjit.Bipartite) else (x, x)
    if graph.num_src != graph.num_dst and not isinstance(x, gnnjit.Bipartite):
        raise Nonsense("one array for two sets")
    sizes = (graph.num_src, graph.num_dst, graph.num_edges)
    src, dst, data = (
        None if a is None else rows_of(plain(a), n)
        for a, n in zip((src, dst, edges), sizes, strict=True)
    )
    p = [plain_parameter(a) for a in params]
    real = np.ones(graph.num_edges, bool) if graph.mask is None else np.asarray(graph.mask)
    us, vs = np.asarray(graph.src), np.asarray(graph.dst)

    def at(tree: Any, i: int) -> Any:
        return (
            None
            if tree is None
            else jax.tree.map(
                lambda a: np.zeros(a.shape[1:], a.dtype) if len(a) == 0 else a[i], tree
            )
        )

    def one(i: int) -> Any:
        u, v = (us[i], vs[i]) if len(us) else (0, 0)
        given = Edge(at(src, u), at(dst, v), at(data, i))
        found = message(at(dst, v), given, *p)
        if found is None or isinstance(found, (str, Edge)):
            raise Nonsense(type(found).__name__)
        if not jax.tree.leaves(found):
            raise Nonsense("nothing")
        return jax.tree.map(in_full, found)

    every = jax.tree.map(lambda *a: np.stack(a), *[one(i) for i in range(max(len(us), 1))])
    if word == "edge":
        return jax.tree.map(
            lambda a: np.where(real.reshape(-1, *[1] * (a.ndim - 1)), a[: len(us)], 0), every
        )
    into = [np.flatnonzero((vs == v) & real) for v in range(graph.num_dst)]

    def reduced(a: Any) -> Any:
        if word in ("max", "min") and a.dtype.kind == "c":
            raise Nonsense("complex numbers have no order")
        rows = [REDUCE[word](a[i], axis=0) if len(i) else np.zeros(a.shape[1:]) for i in into]
        return np.stack(rows) if rows else np.zeros((0, *a.shape[1:]))

    return jax.tree.map(reduced, every)


def plain_parameter(a: Any) -> Any:
    if isinstance(a, (float, int)):
        return a
    if a is None or isinstance(a, list):  # no error unless something is done with it
        return Leaves([])
    if isinstance(a, np.ndarray) and a.dtype.kind in "biuf":
        return a
    raise Nonsense(type(a).__name__)


# ------------------------------------------------------------------------- words, inside a layer


def word_call(pick: Pick) -> Call:
    word = pick({w: w for w in ("sum", "mean", "max", "min", "std", "var", "logsumexp", "softmax")})
    value = pick({
        "e.src": lambda v, e: e.src, "v": lambda v, e: v, "e": lambda v, e: e,
        "a list": lambda v, e: [e.src, v], "text": lambda v, e: "x", "number": lambda v, e: 1.0,
        "None": lambda v, e: None, "zeros": lambda v, e: jnp.zeros(3),
        "object": lambda v, e: Other(),
        "dict": lambda v, e: {"a": e.src}, "word": lambda v, e: gnnjit.sum(e.src),
        "words": lambda v, e: getattr(gnnjit, word)(getattr(gnnjit, word)(e.src)),
    })  # fmt: skip
    options = pick({
        "plain": {}, "initial": {"initial": 1.0}, "initial text": {"initial": "x"},
        "initial wide": {"initial": np.ones(9)}, "axis": {"axis": 0}, "keepdims": {"keepdims": 1},
    })  # fmt: skip
    place = pick({"inside": True, "outside": False, "in vmap": "vmap", "in scan": "scan"})
    x = jnp.asarray(pick.rng.normal(size=(4, 3)), jnp.float32)

    def function(v: Any, e: Any) -> Any:
        def call(*_: Any) -> Any:
            return getattr(gnnjit, word)(value(v, e), **options)

        if place == "vmap":
            return jax.vmap(call)(jnp.arange(2))
        if place == "scan":
            return jax.lax.scan(lambda c, _: (c, call()), 0, jnp.arange(2))[1]
        return call()

    if not place:
        return Call("word", lambda: getattr(gnnjit, word)(x, **options), nothing_right)
    return Call("word", lambda: gnnjit.layer(function)(FULL, x), anything)


def dropout_call(pick: Pick) -> Call:
    rate = pick({
        "half": 0.5, "0": 0, "1": 1.0, "-1": -1, "nan": float("nan"), "text": "half", "None": None,
        "numpy": np.float32(0.25), "array": np.array([0.5]), "traced": jnp.float32(0.5),
        "True": True, "long": "x" * 5000,
    })  # fmt: skip
    key = jax.random.key(1)
    x = jnp.ones((4, 3))
    of = pick({"edge": lambda v, e, w: e.src, "vertex": lambda v, e, w: v,
               "shared": lambda v, e, w: w, "number": lambda v, e, w: 1.0})  # fmt: skip
    layer = gnnjit.layer(lambda v, e, w: gnnjit.dropout(of(v, e, w), rate, key))
    return Call("dropout", lambda: layer(FULL, x, jnp.ones(3)), anything)


def arguments_call(pick: Pick) -> Call:
    x = jnp.ones((4, 3))
    layer = gnnjit.layer(lambda v, e, w=2.0: gnnjit.sum(e.src * w))
    args = pick({
        "()": (), "(x)": (x,), "(x, g)": (x, FULL), "(g)": (FULL,), "(g, g)": (FULL, FULL),
        "(g, x, x, x)": (FULL, x, x, x), "(None, x)": (None, x), "(g, x)": (FULL, x),
        "(text)": ("graph", x), "(src, dst, x)": (SRC, DST, x), "(x, x)": (x, x),
    })  # fmt: skip
    keywords = pick({
        "plain": {}, "w": {"w": 3.0}, "unknown": {"weight": 3.0}, "x twice": {"x": x},
        "bad edges": {"edges": "text"},
    })  # fmt: skip
    right = pick.names[0] == "(g, x)"
    tools = {"call": layer, "explain": layer.explain, "check": layer.check}
    how = layer if right else pick(tools)  # these two would compile
    oracle = anything if right and pick.names[1] in ("plain", "w") else nothing_right
    return Call("arguments", lambda: how(*args, **keywords), oracle)


def tool_call(pick: Pick) -> Call:
    x = jnp.ones((4, 3))
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    call = pick({
        "explain text": lambda: gnnjit.explain("layer"),
        "explain nothing": lambda: gnnjit.explain(lambda: None),
        "explain wrt": lambda: layer.explain(FULL, x, wrt="weights"),
        "explain learn": lambda: layer.explain(FULL, x, learn=True),
        "check text": lambda: gnnjit.check("layer"),
        "check nothing": lambda: gnnjit.check(lambda: None),
        "check rtol": lambda: layer.check(FULL, x, rtol="small"),
        "check below": lambda: layer.check(FULL, x, rtol=-1),
        "layer of 3": lambda: gnnjit.layer(3),
        "layer of text": lambda: gnnjit.layer("f"),
        "no (v, e)": lambda: gnnjit.layer(lambda: 1)(FULL, x),
        "v alone": lambda: gnnjit.layer(lambda v: v)(FULL, x),
        "a class": lambda: gnnjit.layer(dict)(FULL, x),
        "budget": lambda: gnnjit.layer(lambda v, e: v, memory_budget="much"),
        "budget 0": lambda: gnnjit.layer(lambda v, e: v, memory_budget=0),
        "budget list": lambda: gnnjit.layer(lambda v, e: v, memory_budget=[1]),
        "budget long": lambda: gnnjit.layer(lambda v, e: v, memory_budget="9" * 3000 + "XB"),
        "budget within": lambda: gnnjit.memory_budget(-1).__enter__(),
    })  # fmt: skip
    return Call("tool", call, nothing_right)


def tool_options_call(pick: Pick) -> Call:
    """Options of `explain` and `check`, of a layer that is right; most of them wrong."""
    x = jnp.ones((4, 3))
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    odd = {
        "None": None, "text": "yes", "number": 3, "array": np.ones(2), "list": ["all"], "dict": {},
        "NaN": float("nan"), "object": Other(), "long": "x" * 4000, "key": jax.random.key(0),
        "complex": 1j, "-1": -1, "1.5": 1.5, "infinite": float("-inf"), "bytes": b"all",
        "2**80": 2**80, "tensor": Tensor(np.ones(2)), "traced": "traced",
    }  # fmt: skip
    name = pick({k: k for k in ("wrt", "backward", "measure", "learn", "rtol", "seed", "mode")})
    value = pick(odd)
    tool = pick({"explain": layer.explain, "check": layer.check, "of a function": gnnjit.explain,
                 "check of one": gnnjit.check})  # fmt: skip
    args = (FULL, x) if tool in (layer.explain, layer.check) else (layer, FULL, x)
    computes = {"wrt": ("None",), "rtol": ("None", "number", "1.5"), "seed": ("number", "2**80")}
    if pick.names[1] in computes.get(name, ()):  # right: tested where `check` is
        return Call("options", lambda: None, anything)

    def call() -> Any:
        if isinstance(value, str) and value == "traced":
            return jax.jit(lambda y: str(tool(*args, **{name: y})))(1.0)
        return str(tool(*args, **{name: value}))

    return Call("options", call, nothing_right)
