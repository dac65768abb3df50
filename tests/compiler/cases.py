"""Layer functions and graphs for tests. A function takes the vocabulary (`gnnjit` itself, or the
oracle's) before `v` and `e`; features are small, so that everything compiles fast."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from reads import with_edges_as_read

import gnnjit

F = 3
STEPS = 50
"""Of a loop that stays one."""


@dataclasses.dataclass(frozen=True)
class Edges:
    """An edge list; `real` is False on padding."""

    src: np.ndarray
    dst: np.ndarray
    num_src: int
    num_dst: int
    bipartite: bool = False
    mask: np.ndarray | None = None

    @property
    def real(self) -> np.ndarray:
        return np.ones(len(self.src), bool) if self.mask is None else self.mask

    def graph(self) -> gnnjit.Graph:
        sizes = (
            {"num_src": self.num_src, "num_dst": self.num_dst}
            if self.bipartite
            else {"num_nodes": self.num_dst}
        )
        return gnnjit.Graph.from_edges(self.src, self.dst, edge_mask=self.mask, **sizes)


def edges(src: Any, dst: Any, n: int, n_dst: int | None = None, mask: Any = None) -> Edges:
    return Edges(
        np.asarray(src, np.int32),
        np.asarray(dst, np.int32),
        n,
        n if n_dst is None else n_dst,
        n_dst is not None,
        None if mask is None else np.asarray(mask, bool),
    )


def hub(n: int = 9) -> Edges:
    """Vertex 2 receives half of all edges, and sends a quarter."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, n, 24), rng.integers(0, n, 24)
    dst[:12], src[::4] = 2, 2
    return edges(src, dst, n)


GRAPHS = {
    "isolated": edges([0, 1, 1, 3], [1, 3, 0, 0], 6),
    "self loops": edges([0, 1, 2, 0], [0, 1, 2, 1], 3),
    "duplicates": edges([0, 0, 0, 1, 1], [1, 1, 1, 2, 2], 3),
    "no edges": edges([], [], 4),
    "one vertex": edges([0, 0], [0, 0], 1),
    "one vertex, no edges": edges([], [], 1),
    "hub": hub(),
    "bipartite": edges([0, 1, 4, 4, 2], [0, 0, 1, 1, 1], 5, 3),
    "padding": edges([0, 9, 1, -1, 2, 2], [1, 0, 1, 77, 0, 1], 4, mask=[1, 0, 1, 0, 1, 1]),
}


def features(e: Edges, seed: int = 0, integers: bool = False) -> dict[str, Any]:
    """`src`, `dst`, `data` and `p` for the functions below; NaN where an edge is padding."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        x = rng.integers(-3, 4, shape) if integers else rng.normal(size=shape)
        return jnp.asarray(x, jnp.float32)

    dst = draw(e.num_dst, F)
    src = draw(e.num_src, F) if e.bipartite else dst
    data = draw(len(e.src), F)
    data = jnp.where(jnp.asarray(e.real)[:, None], data, jnp.nan) if len(e.src) else data
    p = {"w": draw(F, 4), "u": draw(F, 4), "c": draw(3 * F, 4), "k": draw(4, 4), "a": draw(4),
         "b": draw(2, 3, F)}  # fmt: skip
    return {"src": src, "dst": dst, "data": data, "p": p}


@dataclasses.dataclass(frozen=True)
class Case:
    """`fn(vocabulary, v, e, p)`; `kinds` says of each output: "v"ertex, "e"dge or "s"hared."""

    fn: Callable[..., Any]
    kinds: str = "v"


CASES: dict[str, Case] = {}


def case(kinds: str = "v") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES[fn.__name__] = Case(fn, kinds)
        return fn

    return add


@case()
def total(g, v, e, p):
    return g.sum(e.src * e.data)


@case()
def average(g, v, e, p):
    return g.mean(e.src) + v


@case()
def extremes(g, v, e, p):
    return g.max(e.src @ p["w"]) - g.min(jnp.tanh(e.dst - e.src) @ p["w"])


@case()
def moments(g, v, e, p):
    return g.std(e.src @ p["w"]) + g.var(e.src @ p["w"] - v @ p["u"])


@case()
def soft(g, v, e, p):
    return g.logsumexp(e.src * v, initial=-2.0) + g.sum(g.softmax(e.data) * e.src)


@case()
def initials(g, v, e, p):
    return g.max(e.src, initial=7.0) + g.sum(e.src, initial=v) + g.mean(e.data, initial=0.5)


@case()
def degrees(g, v, e, p):
    count = g.degree().astype(jnp.float32)
    return (g.sum(e.src) + v) / (count + 1) + g.sum(e.src * count) + g.sum(v) + g.max(v)


@case("vve")
def trees(g, v, e, p):
    x = {"h": e.src @ p["w"], "scalar": jnp.sum(e.src * e.data)}
    y = g.sum(x)
    return y["h"], y["scalar"], jnp.sin(e.data) * x["scalar"]


@case()
def gat(g, v, e, p):
    z_u, z_v = e.src @ p["w"], v @ p["w"]
    score = jax.nn.leaky_relu(z_u @ p["a"] + z_v @ p["a"], 0.2)
    return g.sum(g.softmax(score) * z_u)


@case()
def gat_concat(g, v, e, p):
    score = jnp.tanh(jnp.concatenate([e.src, e.dst]) @ p["c"][: 2 * F]) @ p["a"]
    return g.sum(g.softmax(score) * (e.src @ p["w"]))


@case()
def heads(g, v, e, p):
    q = jnp.einsum("hkf,f->hk", p["b"], v)
    k = jnp.einsum("hkf,f->hk", p["b"], e.src)
    weight = g.softmax(jnp.sum(q * k, axis=-1) / np.sqrt(3))
    return g.sum(weight[:, None] * k).reshape(-1)


@case()
def gated(g, v, e, p):
    return jax.nn.relu(g.sum(jax.nn.sigmoid(e.src @ p["w"] + v @ p["u"]) * (e.src @ p["u"])))


@case("ev")
def graph_net(g, v, e, p):
    edge = jax.nn.silu(jnp.concatenate([e.src, e.dst, e.data]) @ p["c"])
    return edge, jnp.concatenate([v @ p["w"], g.sum(edge)])


@case("sve")
def several(g, v, e, p):
    return p["a"] * 2, g.sum(e.src), e.src


@case()
def edge_mlp(g, v, e, p):
    hidden = jax.nn.gelu((e.dst - e.src) @ p["w"] + e.data @ p["u"])
    return g.max(jax.nn.gelu(hidden @ p["k"]))


@case()
def vectors(g, v, e, p):
    """Many features with few components each, which are the last axis."""
    long = jnp.tile(p["w"], (1, 4))
    pair = jnp.outer(e.src @ long, e.dst) - jnp.outer(e.dst @ long, v)
    mixed = jnp.einsum("fk,fg->gk", pair, jnp.tile(p["k"], (4, 4)))
    return g.sum(mixed * jax.nn.sigmoid(jnp.sum(mixed * mixed, axis=1, keepdims=True)))


@case()
def pna(g, v, e, p):
    m = e.src @ p["w"] + v @ p["u"]
    return jnp.concatenate([g.mean(m), g.max(m), g.min(m), g.std(m)]) * jnp.log(g.degree() + 1.0)


@case()
def factors(g, v, e, p):
    return g.sum(-v * e.data * (e.src / (2 + v**2))) / (1 + jnp.abs(v))


@case()
def loop(g, v, e, p):
    def step(x, _):
        return jnp.tanh(x @ p["k"] / 8 + e.src[0]), None

    h, _ = jax.lax.scan(step, e.dst @ p["w"], None, length=STEPS)
    return g.sum(h)


@case()
def nested_reductions(g, v, e, p):
    centre = g.mean(e.src)
    spread = g.mean(jnp.abs(e.src - centre) ** 1.5 + 1e-2)
    return g.max((e.src - centre) / (spread + 0.5))


@case("v")
def rows_of_weights(g, v, e, p):
    return jnp.sum(g.sum(e.src[:, None] * p["w"]), axis=1)


def layer_of(fn: Callable[..., Any]) -> Any:
    """The compiled layer of a case, which takes `edges=` whether the case reads them or not."""

    def function(v: Any, e: Any, *params: Any) -> Any:
        return fn(gnnjit, v, e, *params)

    function.__qualname__ = fn.__name__
    return with_edges_as_read(gnnjit.layer(function), fn)
