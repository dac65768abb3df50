"""Values of graphs: readouts and globals against plain JAX, in value and gradient."""

from __future__ import annotations

import functools
import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import readout
from gnnjit.lower import choose

from .batches import (
    BATCHES,
    GRAPHS,
    Batch,
    F,
    batched,
    plain_readout,
    plain_softmax,
    rows_of_graphs,
    small,
)
from .drawn import assert_same

WORDS = ("sum", "mean", "max", "min", "std")
W = np.random.default_rng(7).normal(size=(F, F))


@functools.cache
def of(name: str) -> Batch:
    return BATCHES[name]()


def value(kind: str, v: Any, e: Any, w: Any) -> Any:
    """What is read out, per element."""
    return {
        "vertex": lambda: jnp.tanh(v @ w),
        "edge": lambda: jnp.tanh(e.src * v + e.data @ w),
        "source": lambda: e.src,
        "reduced": lambda: gnnjit.sum(e.src * e.data),
    }[kind]()


def plain_value(kind: str, b: Batch, a: dict[str, Any], w: Any) -> tuple[Any, list[np.ndarray]]:
    """The same for all elements, and which of them each graph has."""
    x, d, src, dst = a["x"], a["d"], np.asarray(b.graph.src), np.asarray(b.graph.dst)
    if kind == "vertex":
        return jnp.tanh(x @ w), b.vertices
    if kind == "edge":
        return jnp.tanh(x[src] * x[dst] + d @ w), b.edges
    if kind == "source":
        return x[src], b.edges
    real = b.real(b.edges)
    sums = jax.ops.segment_sum((x[src] * d)[real], dst[real], b.graph.num_nodes)
    return sums, b.vertices


def call(layer: Any, b: Batch, a: dict[str, Any], w: Any, used: str = "d") -> Any:
    given = {"edges": a["d"]} if "d" in used else {}
    given |= {"globals": a["u"]} if "u" in used else {}
    return layer(b.graph, a["x"], w, **given)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *itertools.product(BATCHES, ("vertex", "edge")),
        *itertools.product(("padded", "no edges"), ("source", "reduced")),
    ],
)
def test_readouts(name: str, kind: str) -> None:
    b, w = of(name), W.astype(np.float32)

    @gnnjit.layer
    def layer(v: Any, e: Any, w: Any) -> Any:
        return {word: getattr(readout, word)(value(kind, v, e, w)) for word in WORDS}

    def plain(a: Any, w: Any) -> Any:
        values = plain_value(kind, b, a, w)
        return {word: plain_readout(word, *values) for word in WORDS}

    used = "d" if kind in ("edge", "reduced") else ""
    assert_same(lambda a, w: call(layer, b, a, w, used), plain, (b.features(), w))


@pytest.mark.parametrize("kind", ["vertex", "edge"])
@pytest.mark.parametrize("name", BATCHES)
def test_softmax_keeps_the_space(name: str, kind: str) -> None:
    b, w = of(name), W.astype(np.float32)

    @gnnjit.layer
    def layer(v: Any, e: Any, w: Any) -> Any:
        score = value(kind, v, e, w)
        weight = readout.softmax(score)
        return weight, readout.sum(weight * score)

    def fast(a: Any, w: Any) -> Any:
        weight, total = call(layer, b, a, w, "d" if kind == "edge" else "")
        real = b.real(b.vertices if kind == "vertex" else b.edges)
        return jnp.zeros_like(weight).at[real].set(weight[real]), total

    def plain(a: Any, w: Any) -> Any:
        score, groups = plain_value(kind, b, a, w)
        weight = plain_softmax(score, groups)
        return weight, plain_readout("sum", weight * score, groups)

    assert_same(fast, plain, (b.features(), w))


@pytest.mark.parametrize("name", BATCHES)
def test_globals_of_vertices_edges_and_graphs(name: str) -> None:
    b, w = of(name), W.astype(np.float32)

    @gnnjit.layer
    def layer(v: Any, e: Any, w: Any) -> Any:
        u = jnp.tanh(e.globals @ w)
        return gnnjit.sum(e.src * u), jnp.sin(e.data + e.globals), u, readout.sum(v * e.globals)

    def plain(a: Any, w: Any) -> Any:
        x, d, u = a["x"], a["d"], a["u"]
        src, dst = np.asarray(b.graph.src), np.asarray(b.graph.dst)
        of_graphs = jnp.tanh(u @ w)
        real = b.real(b.edges)
        at_edges = rows_of_graphs(of_graphs, b.edges, b.graph.num_edges)
        sums = jax.ops.segment_sum((x[src] * at_edges)[real], dst[real], b.graph.num_nodes)
        plain_edges = jnp.sin(d + rows_of_graphs(u, b.edges, b.graph.num_edges))
        plain_edges = jnp.zeros_like(d).at[real].set(plain_edges[real])
        total = plain_readout("sum", x * rows_of_graphs(u, b.vertices, b.graph.num_nodes),
                              b.vertices)  # fmt: skip
        return sums, plain_edges, of_graphs, total

    assert_same(lambda a, w: call(layer, b, a, w, "du"), plain, (b.features(), w))


def mlp(p: Any, *parts: Any) -> Any:
    return jax.nn.relu(jnp.concatenate(parts, axis=-1) @ p["w"] + p["b"])


def graph_net_params(seed: int = 0) -> dict[str, Any]:
    """Weights that leave values of about 1: sums of larger ones round to more than tests allow."""
    rng = np.random.default_rng(seed)
    widths = {"edge": (4 * F, 4), "vertex": (4 + 2 * F, 5), "graph": (4 + 5 + F, F)}
    return {
        name: {
            "w": (rng.normal(size=size) / np.sqrt(size[0])).astype(np.float32),
            "b": np.ones(size[1], np.float32),
        }
        for name, size in widths.items()
    }


@gnnjit.layer
def graph_net(v: Any, e: Any, p: Any) -> Any:
    """A whole block: Battaglia et al. (2018), algorithm 1."""
    edge = mlp(p["edge"], e.data, e.src, v, e.globals)
    vertex = mlp(p["vertex"], gnnjit.sum(edge), v, e.globals)
    graph = mlp(p["graph"], readout.sum(edge), readout.sum(vertex), e.globals)
    return vertex, edge, graph


def as_jraph(b: Batch, a: Any, p: Any) -> Any:
    """The arithmetic of `jraph.GraphNetwork`, with edges aggregated at their receivers."""
    senders, receivers = np.asarray(b.graph.src), np.asarray(b.graph.dst)
    n_node, n_edge = ([len(g) for g in groups] for groups in (b.vertices, b.edges))
    num_graphs, nodes, edges = len(n_node), len(a["x"]), len(a["d"])
    of_node = jnp.repeat(jnp.arange(num_graphs), np.array(n_node), total_repeat_length=nodes)
    of_edge = jnp.repeat(jnp.arange(num_graphs), np.array(n_edge), total_repeat_length=edges)
    sent, received = a["x"][senders], a["x"][receivers]
    new_edges = mlp(p["edge"], a["d"], sent, received, a["u"][of_edge])
    at_receivers = jax.ops.segment_sum(new_edges, receivers, nodes)
    new_nodes = mlp(p["vertex"], at_receivers, a["x"], a["u"][of_node])
    edge_total = jax.ops.segment_sum(new_edges, of_edge, num_graphs)
    node_total = jax.ops.segment_sum(new_nodes, of_node, num_graphs)
    return new_nodes, new_edges, mlp(p["graph"], edge_total, node_total, a["u"])


@pytest.mark.parametrize("name", ["some", "one graph", "no edges", "not batched"])
def test_a_graph_nets_block_against_jraphs_arithmetic(name: str) -> None:
    b = of(name)
    plain = functools.partial(as_jraph, b)
    assert_same(lambda a, p: call(graph_net, b, a, p, "du"), plain,
                (b.features(), graph_net_params()))  # fmt: skip


@pytest.mark.parametrize("name", ["some", "padded", "no vertices", "not batched, padded"])
def test_check_and_explain(name: str) -> None:
    b, p = of(name), graph_net_params()
    a = b.features()
    assert graph_net.check(b.graph, a["x"], p, edges=a["d"], globals=a["u"]).ok
    with gnnjit.reference():
        want = call(graph_net, b, a, p, "du")
    for got, plain in zip(call(graph_net, b, a, p, "du"), want, strict=True):
        np.testing.assert_allclose(got, plain, rtol=1e-5, atol=1e-5)
    text = str(graph_net.explain(b.graph, a["x"], p, edges=a["d"], globals=a["u"]))
    assert "e.globals[graph of v]" in text
    assert "over (v in graph) of" in text


def test_what_depends_on_the_graph_alone_is_computed_once_a_graph() -> None:
    b, p = of("some"), graph_net_params()
    a = b.features()
    text = str(graph_net.explain(b.graph, a["x"], p, edges=a["d"], globals=a["u"]))
    runs = text.split("--- the program that runs")[1].split("---")[0]
    products = [line for line in runs.splitlines() if " = e.globals @ " in line]
    assert len(products) == 1
    assert ": f32[graph, 4]" in products[0]


@pytest.mark.parametrize("kernel", choose.KERNELS)
def test_every_lowering(kernel: str) -> None:
    b, p = of("some"), graph_net_params()
    with choose.prefer(kernel):
        assert_same(lambda a, p: call(graph_net, b, a, p, "du"),
                    functools.partial(as_jraph, b), (b.features(), p))  # fmt: skip


@pytest.mark.parametrize("word", ["sum", "mean", "max", "std"])
@pytest.mark.parametrize("kind", ["vertex", "edge"])
def test_double_precision_and_second_derivatives(word: str, kind: str) -> None:
    with jax.enable_x64(True):
        b = BATCHES["padded"]()
        a, w = b.features(np.float64), jnp.asarray(W)

        @gnnjit.layer
        def layer(v: Any, e: Any, w: Any) -> Any:
            return getattr(readout, word)(value(kind, v, e, w) * e.globals)

        def plain(a: Any, w: Any) -> Any:
            values, groups = plain_value(kind, b, a, w)
            return plain_readout(word, values * rows_of_graphs(a["u"], groups, len(values)), groups)

        def fast(a: Any, w: Any) -> Any:
            return call(layer, b, a, w, "du" if kind == "edge" else "u")

        assert fast(a, w).dtype == jnp.float64
        assert_same(fast, plain, (a, w), rtol=1e-9)

        def turned(f: Any, w: Any) -> Any:
            return jnp.sum(jnp.sin(jax.jvp(lambda w: f(a, w), [w], [jnp.cos(w)])[1]))

        def squares(f: Any, w: Any) -> Any:
            return jnp.sum(f(a, w) ** 2)

        for second in (lambda f: jax.grad(functools.partial(turned, f)),
                       lambda f: jax.hessian(functools.partial(squares, f))):  # fmt: skip
            got, want = (jax.jit(second(f))(w) for f in (fast, plain))
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "word", "kind"),
    [(name, "max", kind) for name in BATCHES for kind in ("vertex", "source")]
    + [("padded", "min", "vertex"), ("padded", "min", "source")],
)
def test_ties_share_the_gradient_evenly(name: str, word: str, kind: str) -> None:
    b = of(name)
    x = np.random.default_rng(0).integers(0, 2, (b.graph.num_nodes, F)).astype(np.float32)

    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        return getattr(readout, word)(v if kind == "vertex" else e.src)

    def plain(x: Any) -> Any:
        rows, groups = (
            (x, b.vertices) if kind == "vertex" else (x[np.asarray(b.graph.src)], b.edges)
        )
        return plain_readout(word, rows, groups)

    assert_same(lambda x: layer(b.graph, x), plain, (x,))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.int8, jnp.bool_])
@pytest.mark.parametrize("word", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", ["some", "one graph"])
def test_dtypes_are_those_of_jax(name: str, word: str, dtype: Any) -> None:
    b = of(name)
    x = jnp.asarray(np.random.default_rng(0).integers(0, 2, (b.graph.num_nodes, F))).astype(dtype)
    got = gnnjit.layer(lambda v, e: getattr(readout, word)(v))(b.graph, x)
    assert got.dtype == getattr(jnp, word)(x, axis=0).dtype
    want = [
        getattr(jnp, word)(x[group], axis=0) if len(group) else 0 * x[0] for group in b.vertices
    ]
    for row, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(np.float32(row), np.float32(expected), rtol=1e-2)


def test_sums_of_half_precision_do_not_lose_small_terms() -> None:
    b = batched([small(4096, 0, 0), small(1, 0, 0)])
    x = jnp.ones((4097, 1), jnp.bfloat16)
    assert gnnjit.layer(lambda v, e: readout.sum(v))(b.graph, x)[:, 0].tolist() == [4096, 1]


def test_initial_is_for_graphs_without_any() -> None:
    b = of("some")
    x = b.features()["x"]
    got = gnnjit.layer(lambda v, e: (readout.max(v, initial=-1.0), readout.sum(e.src, initial=7)))
    largest, total = got(b.graph, x)
    assert largest[2].tolist() == [-1.0] * F
    assert [bool((row == 7).all()) for row in total] == [False, True, True, False, False]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_padding_may_hold_anything(bad: float) -> None:
    b = of("padded")
    a, w = b.features(), W.astype(np.float32)
    a["x"][13:], a["d"][20:], a["u"][5:] = bad, bad, bad

    @gnnjit.layer
    def layer(v: Any, e: Any, w: Any) -> Any:
        edge = jnp.tanh(e.src * v + e.data @ w + e.globals)
        out = readout.sum(edge) + readout.mean(gnnjit.max(edge)) + readout.std(v) + readout.max(v)
        return out + readout.sum(readout.softmax(v) * v)

    got = call(layer, b, a, w, "du")
    assert np.isfinite(got).all()
    grads = jax.grad(lambda a, w: jnp.sum(jnp.sin(call(layer, b, a, w, "du"))), (0, 1))(a, w)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_one_array_for_padded_vertices_and_for_edges() -> None:
    graph = small(3, 5, 0).pad(5, 5)
    x = np.float32(np.random.default_rng(0).normal(size=(5, F)))
    layer = gnnjit.layer(lambda v, e: (readout.sum(e.data), readout.sum(v)))
    of_edges, of_vertices = layer(graph, x, edges=x)
    np.testing.assert_allclose(of_edges[0], x.sum(0), rtol=1e-5)
    np.testing.assert_allclose(of_vertices[0], x[:3].sum(0), rtol=1e-5)


def test_nan_reaches_its_own_graph_alone() -> None:
    b = of("some")
    x = b.features()["x"]
    x[0] = np.nan
    layer = gnnjit.layer(lambda v, e: (readout.max(v), readout.sum(v)))
    for got in layer(b.graph, x):
        assert np.isnan(got[0]).all()
        assert np.isfinite(got[1:]).all()
    grad = jax.grad(lambda x: jnp.sum(layer(b.graph, x)[0]))(x)
    assert np.isfinite(grad[4:]).all()


def test_transformations() -> None:
    b, p = of("some"), graph_net_params()
    a = b.features()
    every = {name: np.stack([leaf, leaf * 0.5]) for name, leaf in a.items()}
    got = jax.vmap(lambda a: call(graph_net, b, a, p, "du"))(every)
    for i in range(2):
        want = as_jraph(b, {name: leaf[i] for name, leaf in every.items()}, p)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-5, atol=1e-5)

    def step(u: Any, _: Any) -> Any:
        return call(graph_net, b, {**a, "u": u}, p, "du")[2], None

    last, _ = jax.jit(lambda u: jax.lax.scan(step, u, None, length=2))(a["u"])
    once = as_jraph(b, a, p)[2]
    np.testing.assert_allclose(last, as_jraph(b, {**a, "u": once}, p)[2], rtol=1e-4, atol=1e-4)


def test_batches_made_inside_a_compiled_function() -> None:
    b, p = of("some"), graph_net_params()
    a = b.features()

    @jax.jit
    def run(graphs: list[gnnjit.Graph], a: Any, p: Any) -> Any:
        return call(graph_net, Batch(gnnjit.graph.batch(graphs)[0], [], []), a, p, "du")

    for got, want in zip(run(GRAPHS, a, p), as_jraph(b, a, p), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_batch_of_bipartite_graphs() -> None:
    one = gnnjit.Graph.from_edges([0, 1, 1], [0, 0, 2], num_src=2, num_dst=3)
    two = gnnjit.Graph.from_edges([0], [0], num_src=1, num_dst=1)
    graph, index = gnnjit.graph.batch([one, two])
    rng = np.random.default_rng(0)
    src, dst, u = (rng.normal(size=(n, F)).astype(np.float32) for n in (3, 4, 2))

    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        return gnnjit.sum(e.src + e.globals), readout.sum(jnp.tanh(e.src + e.globals) * v)

    def plain(src: Any, dst: Any, u: Any) -> Any:
        read = src + u[index.src]
        far, near = read[graph.src], dst[graph.dst]
        return (
            jax.ops.segment_sum(far, graph.dst, 4),
            jax.ops.segment_sum(jnp.tanh(far) * near, index.dst[graph.dst], 2),
        )

    def fast(src: Any, dst: Any, u: Any) -> Any:
        return layer(graph, gnnjit.Bipartite(src, dst), globals=u)

    assert_same(fast, plain, (src, dst, u))


def test_globals_are_a_pytree_and_random_numbers_are_drawn_once_a_graph() -> None:
    b = of("some")
    u = {"a": np.arange(5.0, dtype=np.float32), "b": np.ones((5, 2), np.float32)}

    @gnnjit.layer
    def layer(v: Any, e: Any, key: Any) -> Any:
        drawn = gnnjit.random_uniform(key, like=e.globals["b"])
        return drawn, v[:2] * 0 + drawn, e.globals["a"]

    drawn, read, same = layer(b.graph, b.features()["x"], jax.random.key(0), globals=u)
    assert len(np.unique(drawn)) == 10
    for number, group in enumerate(b.vertices):
        np.testing.assert_array_equal(read[group], np.tile(drawn[number], (len(group), 1)))
    np.testing.assert_array_equal(same, u["a"])


def test_ten_thousand_graphs_need_no_array_of_vertices_and_graphs() -> None:
    count, per_graph = 10_000, 7
    ring = np.arange(per_graph)
    one = gnnjit.Graph.from_edges(ring, np.roll(ring, 1), per_graph)
    graph, _ = gnnjit.graph.batch([one] * count)
    x = np.random.default_rng(0).normal(size=(graph.num_nodes, 4)).astype(np.float32)

    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        score = jnp.sum(v)
        return readout.sum(readout.softmax(score) * v), readout.max(e.src * v), readout.std(v)

    def loss(graph: Any, x: Any) -> Any:
        return sum(jnp.sum(jnp.sin(o)) for o in layer(graph, x))

    compiled = jax.jit(jax.value_and_grad(loss, 1)).lower(graph, x).compile()
    largest = 40 * graph.num_nodes * 4 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < largest
    shapes = re.findall(r"\[(\d+(?:,\d+)*)\]", compiled.as_text())
    sizes = [math.prod(map(int, shape.split(","))) for shape in shapes]
    assert max(sizes) < 100 * graph.num_nodes < graph.num_nodes * count / 50
    total, _ = compiled(graph, x)
    weight = jax.nn.softmax(x.sum(1).reshape(count, per_graph), axis=1)[..., None]
    of_graphs = x.reshape(count, per_graph, 4)
    far = (x[np.asarray(graph.src)] * x[np.asarray(graph.dst)]).reshape(count, per_graph, 4)
    plain = [(weight * of_graphs).sum(1), far.max(1), of_graphs.std(1)]
    np.testing.assert_allclose(total, sum(np.sin(p).sum() for p in plain), rtol=1e-4)
