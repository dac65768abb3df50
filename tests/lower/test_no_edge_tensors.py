"""No buffer of edges x features: read off the lowered and the compiled program, both ways."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from planned import planned

import gnnjit
from gnnjit.graph.degree_buckets import build_buckets
from gnnjit.lower import choose
from gnnjit.lower.xla import segment
from gnnjit.nn import GAT, GCN, GIN, SAGE, GatedGCN

N, E, F = 200, 8000, 32
RNG = np.random.default_rng(0)
SRC, DST = RNG.integers(0, N, E), RNG.integers(0, N, E)
DST[: E // 4] = 3  # a hub
X = jnp.asarray(RNG.normal(size=(N, F)), jnp.float32)
MODULES = {
    "gcn": lambda r: GCN(F, F, rngs=r),
    "sage": lambda r: SAGE(F, F, rngs=r),
    "sage-pool": lambda r: SAGE(F, F, aggregator="pool", rngs=r),
    "gat": lambda r: GAT(F, F // 4, heads=4, rngs=r),
    "gated": lambda r: GatedGCN(F, F, rngs=r),
    "gin": lambda r: GIN(F, F, F, rngs=r),
}


def sizes(text: str) -> dict[str, int]:
    """The elements of every array type in a StableHLO or HLO text."""
    stable = re.findall(r"tensor<((?:\d+x)+)\w+>", text)
    compiled = re.findall(r"\b(?:pred|[subf]f?\d+)\[([\d,]+)\]", text)
    found = {s: math.prod(map(int, s.rstrip("x").split("x"))) for s in stable}
    return found | {s: math.prod(map(int, s.split(","))) for s in compiled}


def too_large(f: Any, *args: Any) -> list[str]:
    """Array types of edges x features elements in the program of `f`, lowered and compiled."""
    lowered = jax.jit(f).lower(*args)
    texts = [lowered.as_text(), lowered.compile().as_text()]
    assert all(sizes(t) for t in texts)
    return [s for t in texts for s, n in sizes(t).items() if n >= E * F]


def forward_and_backward(layer: Any) -> Any:
    def loss(params: Any, x: Any, graph: Any) -> Any:
        return jnp.sum(jnp.sin(layer(params, graph, x)))

    return jax.value_and_grad(loss, (0, 1))


def with_buckets(graph: gnnjit.Graph, width: int = 64) -> gnnjit.Graph:
    def add(s: Any) -> Any:
        return dataclasses.replace(s, buckets=build_buckets(np.asarray(s.indptr), width))

    return dataclasses.replace(
        graph, in_structure=add(graph.in_structure), out_structure=add(graph.out_structure)
    )


GRAPH = with_buckets(gnnjit.Graph.from_edges(SRC, DST, N))


@pytest.mark.parametrize(
    ("name", "kernel"),
    [*((name, kernel) for name in MODULES for kernel in ("cpu", "segment")),
     ("gcn", "bucketed"), pytest.param("gat", "bucketed", marks=pytest.mark.long)],
)  # fmt: skip
def test_modules(name, kernel, monkeypatch):
    monkeypatch.setattr(segment, "CHUNK_SCALARS", 1 << 14)
    definition, params, rest = nnx.split(MODULES[name](nnx.Rngs(0)), nnx.Param, ...)
    f = forward_and_backward(lambda p, g, x: nnx.merge(definition, p, rest)(g, x))
    with choose.prefer(kernel):
        assert too_large(f, params, X, GRAPH) == []


@gnnjit.layer
def concat_attention(v, e, p):
    score = jnp.concatenate([e.src, e.dst]) @ p["w"] @ p["a"]
    return gnnjit.sum(gnnjit.softmax(score) * (e.src @ p["w"][:F]))


PARAMS = {"w": jnp.ones((2 * F, F)) / F, "a": jnp.ones(F)}


@pytest.mark.parametrize("kernel", ["cpu", "segment"])
def test_attention_over_a_concatenation(kernel, monkeypatch):
    monkeypatch.setattr(segment, "CHUNK_SCALARS", 1 << 14)
    f = forward_and_backward(lambda p, g, x: concat_attention(g, x, p))
    with choose.prefer(kernel):
        assert too_large(f, PARAMS, X, GRAPH) == []


def edge_network(v, e, w):
    """A matmul that cannot leave the edges."""
    return gnnjit.max(jnp.tanh(jnp.tanh(e.src + v) @ w))


def test_an_edge_network_is_cut_in_chunks(monkeypatch):
    """With a limit: without one, what sources sum is stored (`store-shared-products`)."""
    monkeypatch.setattr(segment, "CHUNK_SCALARS", 1 << 14)
    mlp = gnnjit.layer(lambda v, e, w: gnnjit.sum(jnp.tanh(e.src + v) @ w))
    w = jnp.ones((F, F)) / F
    for layer in (mlp, planned(edge_network, limit=1 << 14)):
        f = forward_and_backward(lambda w, g, x, layer=layer: layer(g, x, w))
        assert too_large(f, w, X, GRAPH) == []


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_many_hubs_and_a_large_one(kind):
    """Nearly every row is cut into pieces, and one into 250 of them."""
    layer = gnnjit.layer(lambda v, e: getattr(gnnjit, kind)(jnp.tanh(e.src + v)))
    with choose.prefer("bucketed"):
        assert too_large(lambda x, g: layer(g, x), X, with_buckets(GRAPH, 8)) == []


@pytest.mark.parametrize("backward", [False, True])
def test_the_check_finds_the_buffers_of_plain_code(backward):
    def plain(w: Any, graph: Any, x: Any) -> Any:
        return jax.ops.segment_sum(jax.nn.sigmoid(x @ w)[graph.src] * x[graph.dst], graph.dst, N)

    f = forward_and_backward(plain) if backward else lambda w, x, g: plain(w, g, x)
    found = too_large(f, jnp.ones((F, F)), X, GRAPH)
    assert f"{E}x{F}x" in found
    assert any(s.startswith(f"{E},") for s in found)


def test_the_check_finds_the_buffers_of_the_reference():
    f = forward_and_backward(lambda p, g, x: concat_attention(g, x, p))
    with gnnjit.reference():
        assert too_large(f, PARAMS, X, GRAPH)


def test_the_check_finds_one_chunk_of_everything(monkeypatch):
    monkeypatch.setattr(segment, "CHUNK_SCALARS", 1 << 30)
    f = forward_and_backward(lambda p, g, x: concat_attention(g, x, p))
    with choose.prefer("segment"):
        assert too_large(f, PARAMS, X, GRAPH)
