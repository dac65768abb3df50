"""A user's mistakes: each has a message of its own, that says where, what came and what to do."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import GraphError, LayerError

HERE = pathlib.Path(__file__).name
G = gnnjit.Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=5)
B = gnnjit.Graph.from_edges([0, 1], [0, 2], num_src=2, num_dst=3)
X = jnp.ones((5, 4))
W = jnp.ones((4, 2))
ALL = jnp.ones((5, 4))
KEY = jax.random.key(0)


def message(fn: Any, *args: Any, error: type[Exception] = LayerError, **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        gnnjit.layer(fn)(*args, **kwargs)
    return str(caught.value)


def placed(text: str, line: str = r"\d+") -> str:
    """The message behind the place, which must be in this file."""
    found = re.match(rf"{re.escape(HERE)}:{line}: ", text)
    assert found, text
    return text[found.end() :]


def test_reducing_a_shared_matrix():
    def f(v, e, w):
        return gnnjit.sum(w)

    line = f.__code__.co_firstlineno + 1
    assert placed(message(f, G, X, W), str(line)) == (
        "sum() needs a value on edges or vertices, got the shared value w: float32[4, 2], which is "
        "the same for every edge. Did you mean sum(e.src @ w)?"
    )


@pytest.mark.parametrize("said", ["sum", "max", "min", "mean", "std", "softmax", "logsumexp"])
def test_reducing_a_shared_vector_names_what_was_called(said):
    text = message(lambda v, e, b: getattr(gnnjit, said)(b), G, X, jnp.ones(4))
    assert placed(text) == (
        f"{said}() needs a value on edges or vertices, got the shared value b: float32[4], which "
        "is the same for every edge. gnnjit.degree() counts the edges"
    )


@pytest.mark.parametrize(
    "fn",
    [lambda v, e: v + ALL, lambda v, e: gnnjit.sum(e.src * ALL), lambda v, e: ALL * v[0]],
    ids=["vertex", "edge", "scalar"],
)
def test_a_captured_array_of_the_whole_graph(fn):
    assert placed(message(fn, G, X)) == (
        "an array of shape [5, 4] that the layer captured is combined with a value of one element, "
        "and 5 is the number of vertices. Inside a layer everything is per element: pass the array "
        "in x (or edges) and read it through v, e.src or e.data"
    )


def test_a_captured_weight_with_as_many_rows_as_vertices_is_no_mistake():
    heads = jnp.arange(10.0).reshape(5, 2)
    w = jnp.arange(40.0).reshape(4, 10)
    layer = gnnjit.layer(lambda v, e: gnnjit.sum((e.src @ w).reshape(5, 2) * heads))
    want = (X[0] @ w).reshape(5, 2) * heads
    np.testing.assert_allclose(layer(G, X)[1], want)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda v, e, w: gnnjit.sum(e.src @ w), (jnp.ones((3, 2)),)),
        (lambda v, e, w: jnp.concatenate([v[None], gnnjit.sum(e.src)]), (W,)),
        (lambda v, e, w: v + w, (jnp.ones(7),)),
    ],
    ids=["width", "rank", "shapes"],
)
def test_wrong_shapes(fn, args):
    text = placed(message(fn, G, X, *args))
    assert "<lambda> cannot be traced for one element: " in text
    assert "per element: e.src: float32[4], v: float32[4], w: " in text
    assert text.endswith("A feature vector is [F] here, never [N, F] or [E, F]")


def test_a_value_kept_from_an_earlier_call():
    kept: list[Any] = []

    def f(v, e):
        kept.append(e.src)
        return gnnjit.sum(e.src) + kept[0]

    layer = gnnjit.layer(f)
    layer(G, X)
    with pytest.raises(LayerError) as caught:
        layer(G, X)
    text = placed(str(caught.value))
    assert "used a value that was kept from an earlier trace" in text
    assert text.endswith(
        "must not store e.src, v or anything computed from them; return it instead"
    )


def test_features_of_another_graph():
    text = placed(message(lambda v, e: v, G, jnp.ones((6, 4)), error=GraphError))
    assert "x" in text
    assert "6" in text
    assert "5 vertices" in text
    assert "pass arrays with one row per vertex" in text


def test_edges_of_another_graph():
    text = placed(message(lambda v, e: v, G, X, edges=jnp.ones((4, 2)), error=GraphError))
    assert "edges" in text
    assert "4" in text
    assert "3 edges" in text
    assert "pass arrays with one row per edge" in text


def test_missing_sources():
    x = gnnjit.Bipartite(src=None, dst=jnp.ones((3, 4)))
    assert placed(message(lambda v, e: gnnjit.sum(e.src), B, x)).endswith(
        "reads e.src, but no source features were given: call it with Bipartite(src=..., dst=...)"
    )


MISSING = gnnjit.Bipartite(src=jnp.ones((2, 4)), dst=None)


@pytest.mark.parametrize(
    "fn",
    [
        lambda v, e: gnnjit.sum(e.dst),
        lambda v, e: gnnjit.sum(e.src) * v,
        lambda v, e: v,
        lambda v, e: v == 0,
        lambda v, e: 2.0 if v else 1.0,
        lambda v, e: v > 0,
        lambda v, e: v**2,
        lambda v, e: jnp.sum(v),
        lambda v, e: jnp.concatenate([gnnjit.sum(e.src), v]),
        lambda v, e: v["h"],
        lambda v, e: v.shape,
        lambda v, e: jax.tree.map(lambda a: a * 2, v),
    ],
    ids=["e.dst", "product", "returned", "equal", "if", "greater", "power", "jnp.sum", "concat",
         "item", "attribute", "tree"],
)  # fmt: skip
def test_missing_destinations(fn):
    assert placed(message(fn, B, MISSING)).endswith(
        "reads v or e.dst, but no destination features were given: call it with "
        "Bipartite(src=..., dst=...)"
    )


def test_missing_edge_features():
    assert placed(message(lambda v, e: gnnjit.sum(e.data), G, X)).endswith(
        "reads e.data, but no edge features were given: call it with edges=..."
    )


def test_an_unknown_field_of_an_edge():
    text = message(lambda v, e: gnnjit.sum(e.source), G, X)
    assert placed(text) == "an edge has src, dst and data; it has no 'source'"


@pytest.mark.parametrize(
    "draw", [jax.random.uniform, jax.random.normal, lambda k, s: jax.random.bernoulli(k, 0.5, s)]
)
def test_drawing_from_a_shared_key(draw):
    text = placed(message(lambda v, e, key: gnnjit.sum(e.src * draw(key, (4,))), G, X, KEY))
    assert text == (
        "jax.random drew from a key inside a layer. The key is shared by the whole graph, so every "
        "edge and vertex would get the same numbers. Use gnnjit.dropout(value, rate, key) or "
        "gnnjit.random_uniform(key, like=value), which draw once per element"
    )


@pytest.mark.parametrize(
    ("said", "args"),
    [("sum", (X,)), ("max", (X,)), ("softmax", (X,)), ("degree", ()), ("dropout", (X, 0.5, KEY)),
     ("std", (X,)), ("random_uniform", (KEY, X))],
)  # fmt: skip
def test_vocabulary_outside_a_layer(said, args):
    with pytest.raises(LayerError) as caught:
        getattr(gnnjit, said)(*args)
    assert str(caught.value) == (
        f"gnnjit.{said}() was called outside a layer: it reads the edges of one vertex, so it has "
        "meaning only in a function decorated with @gnnjit.layer"
    )


def in_scan(v, e):
    return jax.lax.scan(lambda c, _: (c + gnnjit.sum(e.src), None), v, None, length=2)[0]


def in_cond(v, e):
    return jax.lax.cond(v[0] > 0, lambda: gnnjit.sum(e.src), lambda: v)


def in_while(v, e):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: c + gnnjit.sum(e.src), v)


@pytest.mark.parametrize(
    ("fn", "kind"), [(in_scan, "scan"), (in_cond, "cond"), (in_while, "while")]
)
def test_a_reduction_in_a_loop(fn, kind):
    assert placed(message(fn, G, X)) == (
        f"a gnnjit reduction sits inside {kind}; reductions must stand in the layer function "
        "itself, not in a loop, a condition or a custom derivative"
    )


@pytest.mark.parametrize("value", ["tanh", jnp.tanh, object()], ids=["str", "function", "object"])
def test_a_parameter_that_is_no_array(value):
    text = placed(message(lambda v, e, act: v, G, X, value))
    assert f"argument act is a {type(value).__name__}, not an array" in text
    assert text.endswith("Capture it by closure, or name it in @gnnjit.layer(static_argnames=...)")


@pytest.mark.parametrize(
    ("args", "came"),
    [((), "nothing"), ((X, G), "ArrayImpl, Graph"), ((G,), "Graph"), ((X,), "ArrayImpl")],
    ids=["nothing", "swapped", "no features", "no graph"],
)
def test_a_wrong_call(args, came):
    text = placed(message(lambda v, e: v, *args))
    assert text.endswith(
        "is called as layer(graph, x, *params), with a gnnjit.Graph and vertex features; got "
        f"({came})"
    )


def test_one_array_for_two_vertex_sets():
    text = placed(message(lambda v, e: v, B, X))
    assert text.endswith(
        "the graph has 2 sources and 3 destinations, but x is one array for both; pass "
        "gnnjit.Bipartite(src=..., dst=...)"
    )


@pytest.mark.parametrize(("out", "kind"), [("text", "str"), (object(), "object"), (len, "builtin")])
def test_returning_no_array(out, kind):
    text = placed(message(lambda v, e: (v, out), G, X))
    assert f"returned a {kind}" in text
    assert text.endswith("; return arrays, or pytrees of arrays")


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2, "half", float("nan")])
def test_a_dropout_rate_out_of_range(rate):
    text = message(lambda v, e, k: gnnjit.dropout(v, rate, k), G, X, KEY)
    assert placed(text) == f"gnnjit.dropout: rate must be a number in [0, 1), got {rate!r}"


@pytest.mark.parametrize("kind", ["max", "min"])
def test_differentiating_inside(kind):
    def f(v, e):
        return jax.grad(lambda x: getattr(gnnjit, kind)(e.src * x).sum())(v)

    text = message(f, G, X)
    assert placed(text) == (
        f"jax.jvp or jax.grad inside a layer reached gnnjit.{kind}(): differentiate the whole "
        "layer from outside instead"
    )


def first_caller(v, e, key):
    return gnnjit.sum(e.src * jax.random.uniform(key, (4,)))


def second_caller(v, e, key):
    return gnnjit.sum(e.src * jax.random.uniform(key, (4,)))


@pytest.mark.parametrize("fn", [first_caller, second_caller])
def test_the_line_is_the_callers_though_jax_traces_a_function_once(fn):
    line = fn.__code__.co_firstlineno + 1
    assert placed(message(fn, G, X, KEY), str(line)).startswith("jax.random drew")


def test_the_line_of_a_wrong_shape():
    def f(v, e, w):
        doubled = e.src * 2
        return gnnjit.sum(doubled @ w)

    text = message(f, G, X, jnp.ones((3, 2)))
    assert placed(text, str(f.__code__.co_firstlineno + 2)).startswith("test_the_line_of")
