"""Layers that read the relation of an edge: those of plain gathers, in value and derivatives."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import LayerError

N, M, E, F, R, B = 30, 20, 500, 32, 5, 4
RNG = np.random.default_rng(0)
SRC, DST = RNG.integers(0, N, E), RNG.integers(0, M - 3, E)  # some vertices without edges
DST[:200] = 3  # a hub
SRC[20:40], DST[20:40] = 1, 2  # parallel edges
RELATION = RNG.integers(0, R - 1, E)  # the last one is empty
DEGREE = (
    (DST[:, None] == DST) & (RELATION[:, None] == RELATION)
).sum(1).astype(np.float32)  # fmt: skip


def draw(*shape: int, dtype: Any = np.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape) / 4, dtype)


def blocks(x: Any, w: Any) -> Any:
    return jnp.einsum("bi,bij->bj", x.reshape(B, F // B), w).reshape(-1)


class Edge:
    """What a message reads, of one edge, in plain JAX."""

    def __init__(self, src: Any, dst: Any, relation: Any, degree: Any):
        self.src, self.dst, self.relation, self.relation_degree = src, dst, relation, degree


MESSAGES = {
    "r-gcn": (lambda e, w: e.src @ w[e.relation] / e.relation_degree, (R, F, F)),
    "taken": (lambda e, w: e.src @ jnp.take(w, e.relation + 1, axis=0), (R, F, F)),
    "no matrix": (lambda e, w: e.src * w[e.relation], (R, F)),
    "from the left": (lambda e, w: w[e.relation] @ e.src, (R, 20, F)),
    "bases at the vertices": (
        lambda e, w: w[: R * 2].reshape(R, 2)[e.relation]
        @ jnp.einsum("i,bij->bj", e.src, w[R * 2 :].reshape(2, F, F)),
        (R * 2 + 2 * F * F,),
    ),
    "bases combined": (
        lambda e, w: e.src
        @ jnp.tensordot(w[: R * 2].reshape(R, 2), w[R * 2 :].reshape(2, F, F), 1)[e.relation],
        (R * 2 + 2 * F * F,),
    ),
    "of the vertex's kind": (
        lambda e, w: e.src @ w[(e.dst[0] > 0).astype(jnp.int32) + 1], (R, F, F)
    ),
    "blocks": (lambda e, w: blocks(e.src, w[e.relation]), (R, B, F // B, 16)),
    "twice": (
        lambda e, w: jnp.tanh(e.src @ w[e.relation]) @ w[e.relation].T * (e.dst @ e.src), (R, F, F)
    ),
}  # fmt: skip


def plain(name: str, x: Any, y: Any, w: Any) -> Any:
    message = lambda *a: MESSAGES[name][0](Edge(*a), w)  # noqa: E731
    found = jax.vmap(message)(x[SRC], y[DST], jnp.asarray(RELATION), jnp.asarray(DEGREE))
    return jax.ops.segment_sum(found, jnp.asarray(DST), M)


def layer(name: str) -> Any:
    return gnnjit.layer(lambda v, e, w: gnnjit.sum(MESSAGES[name][0](e, w)))


def bipartite(**options: Any) -> gnnjit.Graph:
    given = {"relation": RELATION, "num_relations": R} | options
    return gnnjit.Graph.from_edges(SRC, DST, num_src=N, num_dst=M, **given)


def close(got: Any, want: Any, tol: float = 3e-5) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = max(1, float(jnp.abs(b).max()))
        np.testing.assert_allclose(a / scale, b / scale, atol=tol)


def total(out: Any) -> Any:
    return jnp.sum(jnp.sin(out))


SHORT = ("r-gcn", "no matrix", "bases at the vertices", "of the vertex's kind", "blocks")


def some(names: Any, short: Any) -> list[Any]:
    """The cases, those that are not `short` among the long ones."""
    return [n if n in short else pytest.param(n, marks=pytest.mark.long) for n in names]


@pytest.mark.parametrize("name", some(MESSAGES, SHORT))
def test_values_gradients_and_no_matrix_of_an_edge(name: str) -> None:
    run, w, x, y = layer(name), draw(*MESSAGES[name][1]), draw(N, F), draw(M, F)
    g = bipartite()
    mine = lambda x, y, w: total(run(g, gnnjit.Bipartite(x, y), w))  # noqa: E731
    lowered = jax.jit(jax.value_and_grad(mine, (0, 1, 2))).lower(x, y, w)
    wanted = jax.value_and_grad(lambda *a: total(plain(name, *a)), (0, 1, 2))(x, y, w)
    compiled = lowered.compile()
    close(compiled(x, y, w), wanted)
    for text in (lowered.as_text(), compiled.as_text()):
        shapes = re.findall(r"(?:tensor<|\b[a-z]+\d*\[)((?:\d+[,x])*\d+)", text)
        sizes = [np.prod([int(n) for n in re.split("[,x]", s)]) for s in shapes]
        assert N * F <= max(sizes) < E * F * F / 8


def test_the_kernel_takes_it() -> None:
    found = layer("r-gcn").explain(bipartite(), gnnjit.Bipartite(draw(N, F), draw(M, F)),
                                   draw(R, F, F)).kernels  # fmt: skip
    if any("llvmlite" in str(k) for k in found):
        pytest.skip("llvmlite is not installed")
    assert {k.kernel for k in found} == {"cpu"}


@pytest.mark.parametrize("name", some(["r-gcn", "blocks"], ["r-gcn"]))
def test_derivatives_of_second_order_and_batches(name: str) -> None:
    run, w, x, y = layer(name), draw(*MESSAGES[name][1]), draw(N, F), draw(M, F)
    g = bipartite()
    mine = lambda x, w: total(run(g, gnnjit.Bipartite(x, y), w))  # noqa: E731
    want = lambda x, w: total(plain(name, x, y, w))  # noqa: E731

    def second(f: Any) -> Any:
        return jax.jvp(jax.grad(f, (0, 1)), (x, w), (jnp.cos(x), jnp.sin(w)))[1]

    close(jax.jit(lambda: second(mine))(), second(want))
    many = jnp.stack([w, 2 * w])
    close(jax.jit(jax.vmap(mine, (None, 0)))(x, many), jax.vmap(want, (None, 0))(x, many))


KINDS = ["padded", "traced", "one relation", "float64", "reversed twice"]


@pytest.mark.parametrize("kind", some(KINDS, KINDS[:-1]))
def test_graphs(kind: str) -> None:
    run, name = layer("r-gcn"), "r-gcn"
    wide = kind == "float64"
    with jax.enable_x64(wide):
        dtype = np.float64 if wide else np.float32
        x, y, w = (draw(*s, dtype=dtype) for s in ((N, F), (M, F), (R, F, F)))
        g = bipartite()
        if kind == "padded":
            g = g.pad(num_src=N, num_dst=M, num_edges=E + 70)
        if kind == "reversed twice":
            g = g.reverse().reverse()
        want = jax.value_and_grad(lambda *a: total(plain(name, *a)), (0, 1, 2))
        if kind == "one relation":
            zeros = np.zeros(E, np.int64)
            g = gnnjit.Graph.from_edges(SRC, DST, num_src=N, num_dst=M, relation=zeros)
            w = w[:1]
            count = np.bincount(DST, minlength=M)[DST].astype(np.float32)
            sums = lambda x, y, w: total(  # noqa: E731
                jax.ops.segment_sum((x @ w[0])[SRC] / count[:, None], jnp.asarray(DST), M)
            )
            want = jax.value_and_grad(sums, (0, 1, 2))

        def mine(x: Any, y: Any, w: Any, relation: Any) -> Any:
            graph = bipartite(relation=relation) if kind == "traced" else g
            return total(run(graph, gnnjit.Bipartite(x, y), w))

        got = jax.jit(jax.value_and_grad(mine, (0, 1, 2)))(x, y, w, RELATION)
        close(got, want(x, y, w), 1e-12 if wide else 3e-5)


def test_check_and_the_layer_by_hand() -> None:
    g = gnnjit.Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], 3, relation=[0, 1, 1, 1])
    run, x, w = layer("r-gcn"), draw(3, F), draw(2, F, F)
    assert run.check(g, x, w)
    want = run(g, x, w)
    with jax.disable_jit():
        np.testing.assert_allclose(run(g, x, w), want, atol=1e-6)


def test_on_shards() -> None:
    if len(jax.devices()) < 2:
        pytest.skip("needs 2 devices")
    src, dst = SRC[:90], DST[:90]
    g = gnnjit.Graph.from_edges(src, dst, N, relation=RELATION[:90], num_relations=R)
    sharded = gnnjit.shard(g, jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("shards",)))
    run, x, w = layer("r-gcn"), draw(N, F), draw(R, F, F)
    step = jax.jit(lambda g, x, w: jax.grad(lambda x, w: total(run(g, x, w)), (0, 1))(x, w))
    of_x, of_w = step(sharded, sharded.put(x), w)
    close((sharded.get(of_x), of_w), step(g, x, w))


def test_relations_that_are_not_there() -> None:
    g = gnnjit.Graph.from_edges([0, 1], [1, 0])

    @gnnjit.layer
    def run(v: Any, e: Any, w: Any) -> Any:
        return gnnjit.sum(e.src @ w[e.relation])

    with pytest.raises(LayerError) as error:
        run(g, draw(2, F), draw(R, F, F))
    place, _, message = str(error.value).partition(": ")
    assert re.fullmatch(r"test_relations.py:\d+", place)
    assert message == (
        f"{run.__qualname__.replace('<locals>.', '')} reads e.relation, but the edges of the graph "
        "have no relations: make it by gnnjit.Graph.from_edges(..., relation=, num_relations=); "
        "where edges are streamed or sampled, pass relations in edges= and read e.data"
    )
