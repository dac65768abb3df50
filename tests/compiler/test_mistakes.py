"""A user's mistakes: each has a message of its own, that says where, what came and what to do."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit.errors import GnnjitWarning, GraphError, LayerError

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
    assert placed(text) == (
        "an edge has src, dst, data, globals, relation and relation_degree; it has no 'source'"
    )


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


def call(*args: Any, fn: Any = lambda v, e: gnnjit.sum(e.src), **kwargs: Any) -> str:
    with pytest.raises((LayerError, GraphError)) as caught:
        gnnjit.layer(fn)(*args, **kwargs)
    assert len(str(caught.value)) <= 1000
    return placed(str(caught.value))


class Frame:
    """A data frame, or a tensor: an array of another library."""

    def __array__(self, dtype=None, copy=None):
        return np.ones((5, 4))


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.ones((5, 400)).tolist(), "is a list of 5 Python values, which JAX takes for a pytree "
         "of scalars; expected arrays: pass jnp.asarray(x)"),
        ([[1, 2], [3]], "is a list of 2 Python values, which JAX takes for a pytree of scalars; "
         "expected arrays: pass jnp.asarray(x)"),
        (Frame(), f"is a {__name__}.Frame, expected an array of numbers: convert it "
         "first, as in jnp.asarray(np.asarray(x))"),
        ("text", "is a str, expected an array of numbers: pass arrays, or pytrees (dicts, tuples, "
         "dataclasses known to JAX) of arrays"),
        (len, "is a builtin_function_or_method, expected an array of numbers: pass arrays, or "
         "pytrees (dicts, tuples, dataclasses known to JAX) of arrays"),
        (np.array([[object()]] * 5), "has dtype object, expected numbers: make numbers of it, as "
         "in x.astype('float32')"),
        (np.array([["a"]] * 5), "has dtype <U1, expected numbers: give each text a number, as in "
         "np.unique(..., return_inverse=True)[1]"),
        (np.zeros((5, 1), "datetime64[s]"), "has dtype datetime64[s], expected numbers: subtract a "
         "date and divide by a unit, as in (t - t[0]) / np.timedelta64(1, 's')"),
        (np.zeros(5, [("a", "f4")]), "has dtype [('a', '<f4')], expected numbers: pass its fields "
         "as a dict of arrays"),
        (np.ma.ones((5, 4)), "is a masked array, of which JAX has no kind: pass its .filled(0), "
         "and its mask as a feature"),
        (G, "is a Graph, expected features: a layer is called as layer(graph, x)"),
        (2.0, "has no rows (it is a scalar), but the graph has 5 vertices: pass arrays with one "
         "row per vertex"),
    ],
    ids=["list", "ragged", "frame", "text", "function", "object", "strings", "dates", "records",
         "masked", "graph", "scalar"],
)  # fmt: skip
def test_features_that_are_no_arrays(x, said):
    text = call(G, x)
    assert text.split(": x ", 1)[1] == said
    if x is not G and not np.isscalar(x):
        wrong = gnnjit.Bipartite(src=X, dst=x)
        assert ": x.dst " in call(G, wrong)


def test_features_in_the_other_byte_order():
    got = gnnjit.layer(lambda v, e: v)(G, np.arange(20.0).reshape(5, 4).astype(">f4"))
    np.testing.assert_array_equal(got, np.arange(20.0).reshape(5, 4))


def test_many_wrong_arrays_are_listed_in_part():
    text = call(G, {f"k{i}": np.ones(6) for i in range(300)})
    assert text.count("has 6 rows") == 5
    assert text.endswith(
        "; 295 more do not fit either, but the graph has 5 vertices: pass arrays with one row per "
        "vertex"
    )


PYTHON = (
    "A layer is traced once, for all vertices and edges, so Python sees no numbers. Write {}; "
    "under `with jax.disable_jit():` print shows the numbers"
)


@pytest.mark.parametrize(
    ("fn", "said", "write"),
    [
        (lambda v, e: v if v[1] > 0 else -v,
         "needs the truth of a value of the graph in Python (if, while, and, or, not, assert). ",
         "jnp.where(condition, a, b), jnp.logical_and(a, b) or jax.lax.cond"),
        (lambda v, e: gnnjit.sum(np.log(e.src)),
         "gave a value of the graph to NumPy or another library (np.exp, np.asarray, ...). ",
         "the function of jax.numpy, as jnp.exp for np.exp"),
        (lambda v, e: [1, 2, 3][v[0].astype(int)],
         "used a value of the graph as a Python integer (an index of a list, a size, a range). ",
         "an index of a JAX array, as in jnp.asarray(table)[i]"),
        (lambda v, e: gnnjit.sum(e.src[e.src > 0]),
         "picked entries by a condition, of which it is not known how many hold. ",
         "jnp.where(condition, x, 0)"),
        (lambda v, e: v[0].item(),
         "made a Python number of a value of the graph (float(), int(), .item(), math.exp, ...). ",
         "jnp.exp for math.exp, x.astype(float) for float(x)"),
    ],
    ids=["if", "numpy", "index", "mask", "item"],
)  # fmt: skip
def test_python_that_needs_numbers(fn, said, write):
    assert call(G, X, fn=fn) == f"<lambda> {said}{PYTHON.format(write)}"


@pytest.mark.parametrize(
    "fn",
    [lambda v, e: gnnjit.mean(e), lambda v, e: e.shape, lambda v, e: e + 1, lambda v, e: e,
     lambda v, e: jnp.tanh(e), lambda v, e: e["src"], lambda v, e: list(e), lambda v, e: v * e],
    ids=["word", "shape", "sum", "returned", "function", "item", "iterated", "product"],
)  # fmt: skip
def test_an_edge_is_no_array(fn):
    assert call(G, X, fn=fn) == (
        "an edge was used as an array; its arrays are e.src and e.dst (features of its ends) and "
        "e.data (its own). Write e.src for the neighbour's features"
    )


def test_a_vertex_has_no_src():
    assert call(G, X, fn=lambda v, e: gnnjit.sum(v.src)) == (
        "test_a_vertex_has_no_src.<lambda> asked an array for .src, which an edge has: v are this "
        "vertex's own features, and those of an incoming edge are e.src, e.dst and e.data. Write "
        "e.src"
    )


@pytest.mark.parametrize("fn", [lambda v, e: v.mine, lambda v, e: gnnjit.sum(e.src.mine)])
def test_an_attribute_that_arrays_do_not_have(fn):
    text = call(G, X, fn=fn)
    assert ".<lambda> asked an array for .mine, which arrays do not have\n" in "." + text
    assert "v: float32[4]. A feature vector is [F] here" in text


@pytest.mark.parametrize("unit", ["s", "ns", "D"])
@pytest.mark.parametrize("kind", ["m8", "M8"])
def test_times_are_no_numbers(kind, unit):
    times, numbers = np.zeros((5, 2), f"{kind}[{unit}]"), X
    for x, edges in ((times, None), (numbers, times[:3])):
        text = call(G, x, edges=edges, fn=lambda v, e: gnnjit.sum(e.src))
        assert f"has dtype {times.dtype}, expected numbers: " in text
        assert "np.timedelta64(1, 's')" in text or "divide it by a unit" in text


def test_an_index_too_many():
    assert call(G, X, fn=lambda v, e: gnnjit.sum(e.src[:, :3])) == (
        "test_an_index_too_many.<lambda> cannot be traced for one element: Too many indices: array "
        "is 1-dimensional, but 2 were indexed\n  per element: e.src: float32[4], v: float32[4]. A "
        "feature vector is [F] here, never [N, F] or [E, F]"
    )


@pytest.mark.parametrize(
    ("out", "what"), [(None, "None"), ((), "tuple without arrays"), ({}, "dict without arrays")]
)
def test_returning_nothing(out, what):
    text = call(G, X, fn=lambda v, e: out)
    assert text.endswith(
        f"<lambda> returned {what}, expected arrays: does it end with `return`? Reductions give "
        "their results back, they store nothing"
    )


def test_another_number_of_parameters():
    def f(v, e, w):
        return v * w

    name = "test_another_number_of_parameters.f(v, e, w)"
    end = ". A layer's function takes (v, e, *params); features of edges are given as edges=..."
    assert call(G, X, fn=f) == (
        f"{name} was called with 0 parameters after the graph and x: missing a required argument: "
        f"'w'{end}"
    )
    assert call(G, X, 1.0, 2.0, fn=f) == (
        f"{name} was called with 2 parameters after the graph and x: too many positional arguments"
        f"{end}"
    )
    assert call(G, X, 1.0, rate=2.0, fn=f) == (
        f"{name} was called with 1 parameter, rate= after the graph and x: got an unexpected "
        f"keyword argument 'rate'{end}"
    )


class Mine(ValueError):
    pass


@pytest.mark.parametrize("error", [ValueError("mine"), TypeError("mine"), Mine("m"), KeyError(1)])
def test_errors_of_the_function_itself_pass_through(error):
    def inner(x):
        if x.shape == (4,):
            raise error
        return x

    with pytest.raises(type(error)) as caught:
        gnnjit.layer(lambda v, e: gnnjit.sum(inner(e.src)))(G, X)
    assert caught.value is error
    assert caught.traceback[-1].name == "inner"


def test_random_numbers_for_a_shared_value():
    text = call(G, X, KEY, W, fn=lambda v, e, k, w: v @ gnnjit.dropout(w, 0.5, k))
    assert text == (
        "random numbers for a shared value (float32[4, 2]), the same for the whole graph, expected "
        "like= (or what gnnjit.dropout is given) on edges or vertices: draw for a parameter with "
        "jax.random, outside the layer"
    )


def test_no_message_is_long():
    names = {f"a parameter with a long name {i}" * 30: jnp.ones(3) for i in range(100)}
    call(G, X, names, fn=lambda v, e, w: v @ next(iter(w.values())))
    call(G, {"x" * 5000: np.ones(6)})
    text = message(lambda v, e, k: gnnjit.dropout(v, "x" * 5000, k), G, X, KEY)
    assert len(text) < 1000


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gnnjit.layer(3), "gnnjit.layer decorates a function of (v, e, *params), got int; "
         "options are keywords, as in @gnnjit.layer(memory_budget=...)"),
        (lambda: gnnjit.explain("gat"), "explain: got str, expected a layer or a function"),
        (lambda: gnnjit.check("gat"), "check: got str, expected a layer or a function"),
        (lambda: gnnjit.check(gnnjit.layer(lambda v, e: v), G, X, rtol="1%"),
         "check: rtol is '1%', expected a number, 0 or more"),
    ],
    ids=["layer", "explain", "check", "rtol"],
)  # fmt: skip
def test_what_is_no_layer(call, said):
    with pytest.raises(LayerError) as caught:
        call()
    assert str(caught.value) == said


# --------------------------------------------------------------- what runs, and was hardly meant

SQUARE = jnp.ones((5, 5))
PER_VERTEX = jnp.arange(5.0)


def warned(fn: Any, *args: Any) -> str:
    with pytest.warns(GnnjitWarning) as caught:
        jax.eval_shape(lambda: gnnjit.layer(fn)(*args))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    return placed(str(caught[0].message))


def test_two_hops_in_one_layer():
    assert warned(lambda v, e: gnnjit.sum(gnnjit.sum(e.src) * 2), G, X) == (
        "gnnjit.sum() of a vertex value (float32[4]), the same for all incoming edges, so this is "
        "gnnjit.degree() times the value; a layer reaches one hop: for two, call two layers, one "
        "on what the other returns. Write gnnjit.degree() * value if that is meant"
    )


@pytest.mark.parametrize(
    ("said", "means"),
    [("max", "the value itself, where there are edges"), ("std", "0"),
     ("softmax", "all weights are 1 / gnnjit.degree()"),
     ("logsumexp", "the value and the logarithm of gnnjit.degree()")],
)  # fmt: skip
def test_a_vertex_value_reduced(said, means):
    text = warned(lambda v, e: getattr(gnnjit, said)(v), G, X)
    means = means if said == "softmax" else f"this is {means}"
    assert text == (
        f"gnnjit.{said}() of a vertex value (float32[4]), the same for all incoming edges, so "
        f"{means}; e.src is the neighbour's value."
    )


@pytest.mark.parametrize(
    "fn",
    [lambda v, e: sum(e.src), lambda v, e: jnp.sum(e.src, axis=0), lambda v, e: v + e.src.mean()],
    ids=["Python", "jnp", "method"],
)
def test_sums_over_the_features_instead_of_the_edges(fn):
    assert warned(fn, G, X) == (
        "this adds up the 4 features of one edge's source (e.src), and the layer reduces over no "
        "edges, so it returns a value per edge. Python's sum and jnp.sum know one element: "
        "gnnjit.sum(e.src) adds up over the incoming edges"
    )


def test_a_captured_vector_of_as_many_entries_as_vertices_and_features():
    assert warned(lambda v, e: gnnjit.sum(e.src * PER_VERTEX), G, SQUARE) == (
        "a captured array of shape [5] is combined with 5 features, and 5 is also the number of "
        "vertices: it is read as one number per feature. If it has one for each of the vertices, "
        "pass it in x; if one per feature, pass it as a parameter, which silences this"
    )


class Biased(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(5, 5, rngs=nnx.Rngs(0))

    @gnnjit.layer
    def __call__(self, v, e):
        return gnnjit.sum(self.linear(e.src))


def xyz(v, e):
    a, b, *_ = e.src
    return jnp.stack([a + 1, b + 1])


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda v, e: jnp.sum(e.src * e.dst), (X,)),
        (lambda v, e: jnp.linalg.norm(e.src) * jnp.linalg.norm(v), (X,)),
        (lambda v, e: e.src / jnp.sum(e.src), (X,)),
        (lambda v, e: gnnjit.sum(jnp.sum(e.src)), (X,)),
        (lambda v, e: e.src, (X,)),
        (xyz, (X,)),
        (lambda v, e, b: gnnjit.sum(e.src + b), (SQUARE, PER_VERTEX)),
        (lambda v, e: gnnjit.sum(e.src) + jnp.arange(4.0), (X,)),
        (lambda v, e: gnnjit.degree() * v + gnnjit.mean(e.src), (X,)),
        (lambda v, e: gnnjit.std(gnnjit.softmax(e.src) * v), (X,)),
        (Biased(), (SQUARE,)),
    ],
    ids=["dot", "norms", "normalised", "both", "gather", "unpacked", "parameter", "constant",
         "degree", "words", "module"],
)  # fmt: skip
def test_no_warning_where_it_is_meant(fn, args, recwarn):
    layer = fn if isinstance(fn, nnx.Module) else gnnjit.layer(fn)
    jax.eval_shape(lambda: layer(G, *args))
    assert not [w for w in recwarn if issubclass(w.category, GnnjitWarning)]
