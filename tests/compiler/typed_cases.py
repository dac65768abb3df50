"""Typed graphs, layers on them, and an oracle in plain gathers and `jax.ops.segment_*`.

A layer is a function `(g, v, e, w)`. `g` is `Words`, where it is traced, or `Plain`, where the very
same text runs on arrays of all edges; reductions say what they run over: a relation, or `e`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit

F = 3
Key = tuple[str, str, str]


class Words:
    """gnnjit's own words."""

    def at(self, over: Any, x: Any) -> Any:
        """A vertex value, as edges read it."""
        return x

    def __getattr__(self, name: str) -> Any:
        word = getattr(gnnjit, name)
        return lambda x, over, **keywords: word(x, **keywords)


@dataclasses.dataclass(frozen=True)
class Ends:
    """The edges of one relation, or of several one after the other."""

    key: Any
    src: Any
    dst: Any
    data: Any
    to: np.ndarray

    @property
    def name(self) -> str:
        return self.key[1]

    @property
    def src_type(self) -> str:
        return self.key[0]


@dataclasses.dataclass(frozen=True)
class AllEdges:
    dst_type: str
    relations: tuple[Ends, ...]

    @property
    def to(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.int64), *(r.to for r in self.relations)])

    def map(self, f: Any) -> Any:
        return jnp.concatenate([f(r) for r in self.relations]) if self.relations else None


class Plain:
    """The words on arrays of all edges, for a type of `count` vertices."""

    def __init__(self, count: int):
        self.count = count

    def at(self, over: Any, x: Any) -> Any:
        return x[over.to]

    def some(self, x: Any, over: Any) -> Any:
        degree = np.bincount(over.to, minlength=self.count)
        return jnp.reshape(jnp.asarray(degree > 0), (-1,) + (1,) * (x.ndim - 1))

    def sum(self, x: Any, over: Any) -> Any:
        if x is None:  # over no relations
            return jnp.zeros(())
        return jax.ops.segment_sum(x, over.to, self.count)

    def max(self, x: Any, over: Any, initial: Any = 0) -> Any:
        if x is None:
            return jnp.full((), initial)
        best = jax.ops.segment_max(x, over.to, self.count)
        return jnp.where(self.some(x, over), best, initial)

    def min(self, x: Any, over: Any) -> Any:
        return -self.max(-x, over) if x is not None else jnp.zeros(())

    def mean(self, x: Any, over: Any) -> Any:
        if x is None:
            return jnp.zeros(())
        degree = jnp.maximum(jnp.asarray(np.bincount(over.to, minlength=self.count)), 1)
        return self.sum(x, over) / jnp.reshape(degree, (-1,) + (1,) * (x.ndim - 1))

    def var(self, x: Any, over: Any) -> Any:
        if x is None:
            return jnp.zeros(())
        return self.mean((x - self.mean(x, over)[over.to]) ** 2, over)

    def logsumexp(self, x: Any, over: Any) -> Any:
        if x is None:
            return jnp.zeros(())
        top = self.max(jax.lax.stop_gradient(x), over)
        total = self.sum(jnp.exp(x - top[over.to]), over)
        some = self.some(x, over)
        return jnp.where(some, jnp.log(jnp.where(some, total, 1)) + top, 0)

    def softmax(self, x: Any, over: Any) -> Any:
        if x is None:
            return 0.0
        top = self.max(jax.lax.stop_gradient(x), over)
        weight = jnp.exp(x - top[over.to])
        return weight / self.sum(weight, over)[over.to]


Edges = dict[Key, tuple[np.ndarray, np.ndarray]]


def run_plain(
    layer: Any, edges: Edges, x: dict[str, Any], w: Any, data: dict[Key, Any] | None = None
) -> dict[str, Any]:
    """The oracle's results for each vertex type."""
    found = {}
    for node_type, rows in x.items():
        ends = []
        for key, (src, dst) in edges.items():
            if key[2] == node_type:
                src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
                own = None if data is None else data.get(key)
                ends.append(Ends(key, x[key[0]][src], rows[dst], own, dst))
        out = layer(Plain(len(rows)), rows, AllEdges(node_type, tuple(ends)), w)
        filled = jnp.zeros((len(rows), F))  # a number stands for a row of it at each vertex
        found[node_type] = jax.tree.map(lambda a, b=filled: a if a.ndim else a + b, out)
    return found


def on_graph(layer: Any) -> Any:
    """The layer as gnnjit compiles it."""

    @gnnjit.layer
    def compiled(v: Any, e: Any, w: Any) -> Any:
        return layer(Words(), v, e, w)

    return compiled


def edges_of(case: str) -> tuple[Edges, dict[str, int]]:
    """The edges of each relation, and the vertices of each type."""
    rng = np.random.default_rng(3)

    def some(n: int, m: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = rng.permutation(n * m)[:count]  # no duplicates: ties are tested by themselves
        return pairs // m, pairs % m

    hub = np.arange(6), np.full(6, 2)
    none = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if case == "one-type":
        return {("a", "to", "a"): some(5, 5, 9)}, {"a": 5}
    if case == "bipartite":
        return {("a", "to", "b"): some(5, 4, 9)}, {"a": 5, "b": 4}
    return {
        ("author", "writes", "paper"): some(6, 7, 14),
        ("author", "likes", "paper"): hub,  # parallel, and a hub
        ("paper", "cites", "paper"): some(7, 7, 9),  # of one type
        ("venue", "prints", "paper"): none,
        ("paper", "by", "author"): some(7, 6, 5),
    }, {"author": 6, "paper": 7, "venue": 2, "nothing": 0}


CASES = ("academic", "one-type", "bipartite")


def rgcn(g: Any, v: Any, e: Any, w: Any) -> Any:
    out = v @ w["self"][e.dst_type]
    for r in e.relations:
        out += g.mean(r.src @ w[r.name], r)
    return jax.nn.relu(out)


def attention_by_relation(g: Any, v: Any, e: Any, w: Any) -> Any:
    out = v
    for r in e.relations:
        score = jax.nn.leaky_relu(r.src @ w["a"] + r.dst @ w["b"], 0.2)
        out += g.sum(g.softmax(score, r)[..., None] * (r.src @ w[r.name]), r)
    return out


def hgt(g: Any, v: Any, e: Any, w: Any) -> Any:
    def key(r: Any) -> Any:
        query = r.dst @ w["q"]
        return jnp.sum((r.src @ w["k"] @ w[r.name]) * query, -1)

    weight = g.softmax(e.map(key), e)
    message = e.map(lambda r: jnp.tanh(r.src @ w[r.name]))
    if weight is None or message is None:
        return v + jnp.zeros_like(v)
    return v + g.sum(weight[..., None] * message, e)


def statistics_of_all(g: Any, v: Any, e: Any, w: Any) -> Any:
    x = e.map(lambda r: r.src @ w[r.name] + r.dst)
    out = g.mean(x, e) + 0.5 * g.var(x, e) - g.min(x, e) + g.logsumexp(x, e)
    return out + g.max(x, e, initial=2.0) + jnp.zeros_like(v)


def two_stages(g: Any, v: Any, e: Any, w: Any) -> Any:
    """A relation's edges read what all relations gave, and a product of the vertex."""
    total = g.sum(e.map(lambda r: r.src), e) + v @ w["q"]
    total = total + jnp.zeros_like(v)
    out = total
    for r in e.relations:
        gate = jax.nn.sigmoid(g.at(r, total) * r.src)
        out += g.max(gate * (r.src @ w[r.name]), r)
    return out


def vertices_alone(g: Any, v: Any, e: Any, w: Any) -> Any:
    return jnp.tanh(v @ w["q"])


LAYERS = (rgcn, attention_by_relation, hgt, statistics_of_all, two_stages, vertices_alone)


def inputs(edges: Edges, counts: dict[str, int], dtype: Any = np.float32) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)

    def draw(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape), dtype)

    x = {t: draw(n, F) for t, n in counts.items()}
    w: dict[str, Any] = {key[1]: draw(F, F) for key in edges}
    w |= {"self": {t: draw(F, F) for t in counts}, "q": draw(F, F), "k": draw(F, F)}
    return x, w | {"a": draw(F), "b": draw(F)}
