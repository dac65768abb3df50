"""Layers on graphs that know their pairs of edges: the same results, the work of both ends once."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnjit
from gnnjit.compiler import call
from gnnjit.compiler.call import TracedCall, recorded_calls
from gnnjit.geometry import RadiusSearch, radius
from gnnjit.graph import Graph, batch

N, F = 7, 4


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers run over pairs wherever they can."""
    monkeypatch.setattr(TracedCall, "chosen", lambda self: self.over_pairs() or self)


def edges(seed: int, pairs: int = 12, vertices: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Edges in both directions, some more than once, none a loop, in any order."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, vertices, pairs)
    b = (a + rng.integers(1, vertices, pairs)) % vertices
    order = rng.permutation(2 * pairs)
    return np.concatenate([a, b])[order], np.concatenate([b, a])[order]


def symmetric(seed: int, **options: Any) -> Graph:
    return Graph.from_edges(*edges(seed), num_nodes=N, symmetric=True, **options)


def features(seed: int, vertices: int = N) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (F,), "r": (3,), "h": (F, 3)}
    return {k: jnp.asarray(rng.normal(size=(vertices, *s)), jnp.float32) for k, s in shapes.items()}


def parameters(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"f1": (1, F), "f2": (F, F), "w": (F, F), "u": (3, 3), "o": (F, F)}
    return {k: jnp.asarray(rng.normal(size=s) / 2, jnp.float32) for k, s in shapes.items()}


def length(step: Any) -> Any:
    return jnp.sqrt(jnp.sum(step * step, keepdims=True) + 1e-3)


def schnet(v: Any, e: Any, p: Any) -> Any:
    filters = jax.nn.softplus(length(v["r"] - e.src["r"]) @ p["f1"]) @ p["f2"]
    return v["x"] + jnp.tanh(gnnjit.sum((e.src["x"] @ p["w"]) * filters) @ p["o"])


def painn(v: Any, e: Any, p: Any) -> Any:
    """Directions change their sign, and meet features of the source and of the vertex."""
    step = e.src["r"] - v["r"]
    filters = jax.nn.silu(length(step) @ p["f1"]) @ p["f2"]
    way = jnp.sin(step @ p["u"]) / length(step)
    vectors = gnnjit.sum(
        e.src["h"] * filters[:, None] + (e.src["x"] * v["x"] * filters)[:, None] * way
    )
    return {"h": v["h"] + vectors, "x": gnnjit.mean(e.src["x"] * filters), "r": gnnjit.sum(way)}


def egnn(v: Any, e: Any, p: Any) -> Any:
    """The weight of a step is that of the source and the vertex, in this order."""
    step = v["r"] - e.src["r"]
    weight = jnp.tanh(e.src["x"] @ p["w"] + v["x"] @ p["f2"] + length(step) @ p["f1"]) @ p["o"]
    return {"r": v["r"] + gnnjit.mean(step * weight[:3]), "x": gnnjit.sum(weight)}


def azimuth(v: Any, e: Any, p: Any) -> Any:
    """On a grid, the sign of a zero decides between the angles pi and -pi."""
    step = jnp.round(v["r"]) - jnp.round(e.src["r"])
    return gnnjit.sum(jnp.arctan2(step[1], step[0]) + 0 * e.src["x"] @ p["f2"])


def energy(v: Any, e: Any, p: Any) -> Any:
    """The total over each graph, of which edges read nothing."""
    per_vertex = gnnjit.sum(jnp.sum(jnp.tanh(e.src["x"] * v["x"] * length(v["r"] - e.src["r"]))))
    return gnnjit.readout.sum(per_vertex), gnnjit.degree() * v["x"]


def drawn(v: Any, e: Any, p: Any) -> Any:
    """A source draws once, whichever edges read it."""
    kept = gnnjit.dropout(e.src["x"], 0.5, jax.random.key(0))
    return gnnjit.sum(kept * jnp.exp(-length(v["r"] - e.src["r"])))


LAYERS = [schnet, painn, egnn, azimuth, energy, drawn]


def loss(layer: Any, graph: Any, x: Any, p: Any) -> Any:
    outs = jax.tree.leaves(layer(graph, x, p))
    return sum(jnp.sum(jnp.sin(o + i)) for i, o in enumerate(outs))


def forces_loss(layer: Any, graph: Any, x: Any, p: Any) -> Any:
    found = jax.grad(lambda r: loss(layer, graph, {**x, "r": r}, p))(x["r"])
    return jnp.sum(jnp.cos(found))


def close(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def call_of(layer: Any, graph: Graph, *args: Any) -> TracedCall:
    with recorded_calls() as calls:
        jax.eval_shape(lambda: layer(graph, *args))
    (call,) = calls
    return call


@pytest.mark.parametrize("fn", LAYERS, ids=lambda fn: fn.__name__)
@pytest.mark.usefixtures("forced")
def test_values_and_derivatives(fn: Any) -> None:
    layer, graph, x, p = gnnjit.layer(fn), symmetric(3), features(1), parameters(2)
    assert call_of(layer, graph, x, p).chosen().graph.num_edges == 12
    plain = Graph.from_edges(graph.src, graph.dst, num_nodes=N)
    for ask in (layer, *(jax.grad(f, argnums=(2, 3)) for f in (loss, forces_loss))):
        args = () if ask is layer else (layer,)
        with gnnjit.reference():
            want = ask(*args, plain, x, p)
        close(ask(*args, graph, x, p), want)
        close(jax.jit(ask, static_argnums=() if ask is layer else 0)(*args, graph, x, p), want)


@pytest.mark.parametrize("fn", [schnet, painn, energy], ids=lambda fn: fn.__name__)
@pytest.mark.usefixtures("forced")
def test_padding_and_batches(fn: Any) -> None:
    """Graphs of one capacity share a compilation."""
    layer, p = gnnjit.layer(fn), parameters(2)
    count = 0

    @jax.jit
    def run(graph: Graph, x: Any) -> Any:
        nonlocal count
        count += 1
        value, slopes = jax.value_and_grad(loss, argnums=(2, 3))(layer, graph, x, p)
        return layer(graph, x, p), value, slopes

    for seed in (1, 2):
        parts = [symmetric(seed), Graph.from_edges(*edges(seed, 5), num_nodes=N, symmetric=True)]
        whole, _ = batch(parts)
        graph = whole.pad(num_nodes=20, num_edges=41, num_graphs=3)
        assert graph.pairs is not None
        assert (graph.pairs.num_edges, graph.pairs.members) == (20, None)
        bare = Graph.from_edges(whole.src, whole.dst, num_nodes=2 * N)
        bare = dataclasses.replace(bare, members=whole.members).pad(20, 41, num_graphs=3)
        x = jax.tree.map(
            lambda a: jnp.concatenate([a, jnp.ones((6, *a.shape[1:]))]), features(seed, 14)
        )
        with gnnjit.reference():
            want = layer(bare, x, p), *jax.value_and_grad(loss, argnums=(2, 3))(layer, bare, x, p)
        close(run(graph, x), want)
    assert count == 1


@pytest.mark.usefixtures("forced")
def test_a_mask_halves_the_places() -> None:
    src, dst = edges(5)
    src, dst = np.append(src, [9, 9, 9]), np.append(dst, [9, 9, 0])
    mask = np.arange(27) < 24
    graph = Graph.from_edges(src, dst, num_nodes=N, edge_mask=mask, symmetric=True)
    assert graph.pairs is not None
    assert graph.pairs.num_edges == 13
    assert int(graph.pairs.mask.sum()) == 12
    layer, x, p = gnnjit.layer(schnet), features(1), parameters(2)
    close(layer(graph, x, p), layer(symmetric(5), x, p))


@pytest.mark.usefixtures("forced")
def test_edges_found_inside_jit() -> None:
    layer, x, p = gnnjit.layer(painn), features(1, 30), parameters(2)
    place = jnp.asarray(np.random.default_rng(0).uniform(0, 3, (30, 3)), jnp.float32)
    search = RadiusSearch.fit(place, 1.2)

    def asked(place: Any) -> Any:
        graph = search(place).graph
        return loss(layer, graph, {**x, "r": place}, p), graph.pairs

    (value, pairs), slopes = jax.jit(jax.value_and_grad(asked, has_aux=True))(place)
    graph = radius(place, 1.2)
    assert pairs.num_edges == search.num_edges // 2
    assert int(pairs.mask.sum()) == graph.num_edges // 2 == graph.pairs.num_edges
    there, back = zip(pairs.src, pairs.dst, strict=True), zip(pairs.dst, pairs.src, strict=True)
    real = np.asarray(pairs.mask)
    found = {
        (int(u), int(v)) for (u, v), r in zip([*there, *back], [*real, *real], strict=True) if r
    }
    assert found == {(int(u), int(v)) for u, v in zip(graph.src, graph.dst, strict=True)}
    with gnnjit.reference():
        want = jax.value_and_grad(lambda r: loss(layer, graph, {**x, "r": r}, p))(place)
    close((value, slopes), want)
    assert RadiusSearch.fit(place, 1.2, loops=True)(place).graph.pairs is None
    assert radius(place, 1.2, loops=True).pairs is None


@pytest.mark.usefixtures("forced")
def test_many_graphs_under_vmap() -> None:
    layer, p = gnnjit.layer(painn), parameters(2)
    x = jax.tree.map(lambda *a: jnp.stack(a), *(features(s) for s in range(3)))
    graph = symmetric(4)
    got = jax.vmap(lambda x: layer(graph, x, p))(x)
    with gnnjit.reference():
        want = jax.vmap(lambda x: layer(graph, x, p))(x)
    close(got, want)


@pytest.mark.usefixtures("forced")
def test_two_arrays_at_the_ends() -> None:
    graph, a, b = symmetric(6), features(1)["x"], features(2)["x"]
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(jnp.tanh(e.src - v) * e.src))
    with gnnjit.reference():
        want = layer(graph, gnnjit.Bipartite(a, b))
    close(layer(graph, gnnjit.Bipartite(a, b)), want)


def attention(v: Any, e: Any, p: Any) -> Any:
    return gnnjit.sum(gnnjit.softmax(jnp.dot(e.src["x"], v["x"])) * e.src["x"])


REFUSED = {
    "attention": attention,
    "largest": lambda v, e, p: gnnjit.max(e.src["x"] * v["x"]),
    "edge result": lambda v, e, p: e.src["x"] - v["x"],
    "outgoing": lambda v, e, p: gnnjit.sum(v["x"], over="out"),
    "dropout": lambda v, e, p: gnnjit.sum(
        gnnjit.dropout(e.src["x"] * v["x"], 0.5, jax.random.key(0))
    ),
    "fold": lambda v, e, p: gnnjit.fold(lambda s, x: s + x, v["x"], e.src["x"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_asks_for_single_edges_stays(name: str) -> None:
    layer = gnnjit.layer(REFUSED[name])
    assert call_of(layer, symmetric(3), features(1), parameters(2)).over_pairs() is None


def test_data_of_edges_stays() -> None:
    graph = symmetric(3)
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.data * e.src))
    a = jnp.arange(24.0)[:, None]
    with recorded_calls() as calls:
        layer(graph, features(1)["x"], edges=a)
    assert calls[0].over_pairs() is None


def test_the_cost_decides() -> None:
    """A filter network is worth it, a sum of neighbours is not."""
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(*edges(0, 20_000, 2_000), num_nodes=2_000, symmetric=True)
    x = {"x": np.zeros((2_000, 64), np.float32), "r": np.zeros((2_000, 3), np.float32)}
    shapes = {"f1": (1, 64), "f2": (64, 64), "w": (64, 64), "o": (64, 64)}
    p = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    assert call_of(gnnjit.layer(schnet), graph, x, p).chosen().graph.num_edges == 20_000
    gcn = gnnjit.layer(lambda v, e, p: gnnjit.sum(e.src["x"] @ p["w"]))
    assert call_of(gcn, graph, x, p).chosen().graph.num_edges == 40_000


def test_pairs_that_have_to_be_found_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, place = gnnjit.layer(schnet), np.random.default_rng(0).uniform(0, 9, (2_000, 3))
    search = RadiusSearch.fit(place, 1.2)
    wide = {"f1": (1, 64), "f2": (64, 64), "w": (64, 64), "o": (64, 64)}
    p = {k: jnp.ones(s, jnp.float32) for k, s in wide.items()}

    def edges_of_chosen() -> int:
        found = []

        def run(place: Any) -> Any:
            graph = search(place).graph
            x = {"x": jnp.ones((2_000, 64)), "r": place}
            found.append(call_of(layer, graph, x, p).chosen().graph.num_edges)
            return place

        jax.eval_shape(run, jnp.asarray(place, jnp.float32))
        return found[0]

    assert edges_of_chosen() == search.num_edges // 2
    monkeypatch.setattr(call, "PAIR_SECONDS", 1.0)
    assert edges_of_chosen() == search.num_edges


def test_explain_says_so(forced: None) -> None:
    shown = str(gnnjit.layer(schnet).explain(symmetric(3), features(1), parameters(2)))
    assert (
        "on Graph(7 vertices, 24 edges): each two edges u -> v and v -> u as one, 12 in all"
    ) in shown
    assert "sum over (v <- u)" in shown


def test_check_compares_it(forced: None) -> None:
    assert gnnjit.layer(painn).check(symmetric(3), features(1), parameters(2)).ok


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> Any:
    """A random edge value of both ends, even, odd or neither."""
    if depth == 0 or (depth < 3 and draw(st.booleans())):
        leaf = draw(st.sampled_from(["src", "v", "step", "product", "one"]))
        return {
            "src": lambda v, e, p: e.src["x"],
            "v": lambda v, e, p: v["x"],
            "step": lambda v, e, p: v["x"] - e.src["x"],
            "product": lambda v, e, p: v["x"] * e.src["x"],
            "one": lambda v, e, p: p["o"][0],
        }[leaf]
    kind = draw(st.sampled_from(
        "add sub mul div where tanh abs cube square neg cos matmul dot concat pick reverse "
        "floor max relu offset".split()
    ))  # fmt: skip
    a = draw(expressions(depth=depth - 1))
    if kind in ("add", "sub", "mul", "div", "where", "dot", "concat", "max"):
        b = draw(expressions(depth=depth - 1))
        how: Any = {
            "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "max": jnp.maximum,
            "div": lambda a, b: a / (2 + jnp.abs(b)),
            "where": lambda a, b: jnp.where(a > 0, a, b),
            "dot": lambda a, b: jnp.dot(a, b) * b,
            "concat": lambda a, b: jnp.concatenate([a[:2], b[:2]]),
        }[kind]  # fmt: skip
        return lambda v, e, p: how(a(v, e, p), b(v, e, p))
    if kind == "matmul":
        return lambda v, e, p: a(v, e, p) @ p["w"]
    how = {
        "tanh": jnp.tanh, "abs": jnp.abs, "cube": lambda x: x**3, "square": jnp.square,
        "neg": jnp.negative, "cos": jnp.cos, "pick": lambda x: x[jnp.array([2, 0, 1, 1])],
        "reverse": lambda x: x[::-1], "floor": jnp.floor, "relu": jax.nn.relu,
        "offset": lambda x: x + 0.25,
    }[kind]  # fmt: skip
    return lambda v, e, p: how(a(v, e, p))


@given(expressions(), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_random_layers(value: Any, seed: int) -> None:
    def layer(v: Any, e: Any, p: Any) -> Any:
        return gnnjit.sum(value(v, e, p) * jnp.cos(jnp.dot(e.src["x"], v["x"])))

    x, p = features(seed), parameters(seed)
    whole = call_of(gnnjit.layer(layer), symmetric(seed), x, p)
    other = whole.over_pairs()
    assert other is not None
    want = whole.interpret(whole.program)
    got = other.interpret(other.program)
    np.testing.assert_allclose(got[0], want[0], rtol=2e-4, atol=2e-5 * (1 + np.abs(want[0]).max()))
