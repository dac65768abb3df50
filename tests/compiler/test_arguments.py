"""What a layer is given: edges that it does not read, sparse arrays, complex numbers, and a random
key of each vertex or edge."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse

import gnnjit
from gnnjit.errors import GraphError, LayerError
from gnnjit.lower import choose

HERE = pathlib.Path(__file__).name
RNG = np.random.default_rng(0)
N, E = 6, 14
SRC, DST = RNG.integers(0, 5, E), RNG.integers(0, N - 1, E)
G = gnnjit.Graph.from_edges(SRC, DST, N)
X = jnp.asarray(RNG.normal(size=(N, 3)), jnp.float32)
LOWERINGS = ("cpu", "pallas", "csr", "bucketed", "segment", "reference")


def on(lowering: str) -> Any:
    if lowering == "reference":
        return gnnjit.reference()
    return contextlib.nullcontext() if lowering == "cpu" else choose.prefer(lowering)


def message(call: Any, *args: Any, error: type[Exception] = LayerError, **keywords: Any) -> str:
    with pytest.raises(error) as caught:
        call(*args, **keywords)
    text = str(caught.value)
    assert text.startswith(f"{HERE}:")
    assert len(text) <= 1000
    return text.split(": ", 1)[1]


# ------------------------------------------------------------------------ edges that nobody reads


def forgotten(v, e):
    weight = jnp.exp(e.data)  # noqa: F841
    return gnnjit.sum(e.src)


def unread(v, e):
    return gnnjit.mean(e.src) + v


@pytest.mark.parametrize("fn", [forgotten, unread])
def test_edges_that_are_not_read(fn):
    text = message(gnnjit.layer(fn), G, X, edges=jnp.full((E, 2), jnp.nan))
    assert text == (
        f"{fn.__name__} was given edges=, and its results depend on none of it (per edge: "
        "e.data: float32[2]). Read it in the layer as e.data, as in gnnjit.sum(e.data * e.src); "
        "of a module of gnnjit.nn, ask for it where the module is made (edge_features=...) or "
        "take one that has edge features; or leave edges= out"
    )


def test_the_message_names_leaves_and_stays_short():
    data = {f"{'long' * 20}{i}": jnp.ones(E) for i in range(50)}
    text = message(gnnjit.layer(lambda v, e: v), G, X, edges=data)
    assert f"e.data['{'long' * 20}0']: float32[]" in text
    assert f"and {50 - text.count('float32[]')} more)" in text


@pytest.mark.parametrize("call", ["explain", "check"])
def test_explain_and_check_refuse_them_too(call):
    layer = gnnjit.layer(lambda v, e: v)
    assert "depend on none of it" in message(getattr(layer, call), G, X, edges=jnp.ones(E))


READERS: dict[str, Callable[..., Any]] = {
    "one leaf of two": lambda v, e: gnnjit.sum(e.data["w"] * e.src),
    "returned": lambda v, e: (gnnjit.sum(e.src), e.data["w"]),
    "its shape's draw": lambda v, e: gnnjit.random_uniform(jax.random.key(0), like=e.data["w"]),
    "in a loop": lambda v, e: jax.lax.fori_loop(0, 200, lambda i, x: x * e.data["w"], e.src),
}


@pytest.mark.parametrize("name", READERS)
def test_what_counts_as_read(name):
    layer = gnnjit.layer(READERS[name])
    layer(G, X, edges={"w": jnp.ones(E), "other": jnp.ones(E)})


def test_no_leaves_are_no_edges():
    np.testing.assert_array_equal(gnnjit.layer(lambda v, e: v)(G, X, edges={}), X)


# ---------------------------------------------------------------------------------- sparse arrays

BAG = np.asarray(RNG.integers(0, 2, (N, 3)), np.float32)
BAG[:2] = np.eye(3)[:2]
BAG.ravel()[np.flatnonzero(BAG)[N:]] = 0  # as many entries as vertices


def test_as_many_entries_as_vertices():
    bag = sparse.BCOO.fromdense(BAG)
    assert bag.nse == N
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    assert message(layer, G, bag, error=GraphError).endswith(
        "x is a sparse array (jax's BCOO of shape (6, 3)), expected a dense one: a layer computes "
        "with the row of one element. Multiply before the layer, h = x @ w, and pass h; or pass "
        "x.todense()"
    )


@pytest.mark.parametrize(
    ("x", "name"),
    [
        (sparse.BCSR.fromdense(BAG), "jax's BCSR"),
        (scipy.sparse.csr_matrix(BAG), "scipy's csr_matrix"),
        (scipy.sparse.coo_array(BAG), "scipy's coo_array"),
    ],
    ids=["bcsr", "csr_matrix", "coo_array"],
)
def test_sparse_arrays_anywhere(x, name):
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    for args, keywords, path in [
        ((x,), {}, "x"),
        (({"a": X, "words": x},), {}, "x['words']"),
        ((gnnjit.Bipartite(x, X),), {}, "x.src"),
        ((X,), {"edges": [x]}, "edges[0]"),
    ]:
        text = message(layer, G, *args, error=GraphError, **keywords)
        assert f"{path} is a sparse array ({name} of shape (6, 3)), expected a dense one" in text
        recipe = "h = x @ w" if "jax" in name else "BCOO.from_scipy_sparse(x) @ w"
        assert recipe in text
    text = message(gnnjit.layer(lambda v, e, p: v), G, X, {"w": x})
    assert text.endswith(
        f"argument p['w'] is a sparse array ({type(x).__name__}), expected a dense one: multiply "
        "by it outside the layer, on arrays of all vertices, or pass it dense (todense, toarray)"
    )


def test_a_captured_sparse_matrix():
    w = sparse.BCOO.fromdense(BAG[:3])
    assert message(gnnjit.layer(lambda v, e: gnnjit.sum(e.src @ w)), G, X) == (
        "bcoo_dot_general computes with a sparse array inside a layer, expected dense ones: "
        "multiply by it outside the layer, on arrays of all vertices, or make it dense (todense)"
    )


# -------------------------------------------------------------------------------- complex numbers


def complex_normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape) + 1j * RNG.normal(size=shape), jnp.complex64)


Z, W, D = complex_normal(N, 3), complex_normal(3, 2), complex_normal(E)
COUNT = np.bincount(DST, minlength=N)[:, None]


def summed(x: Any) -> Any:
    return jax.ops.segment_sum(x, DST, N)


def spread(x: Any) -> Any:
    """`jnp.var` of each vertex's rows."""
    mean = summed(x) / np.maximum(COUNT, 1)
    return summed(jnp.abs(x - mean[DST]) ** 2) / np.maximum(COUNT, 1)


def formula(v, e, w):
    product = gnnjit.sum(jnp.conj(e.src) * v * e.data)
    return product, gnnjit.sum((e.src @ w) * e.data), gnnjit.var(e.src * e.data)


def by_hand(x: Any, w: Any, d: Any) -> Any:
    product = summed(x[SRC].conj() * x[DST] * d[:, None])
    return product, summed((x @ w)[SRC] * d[:, None]), spread(x[SRC] * d[:, None])


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_complex_layers(lowering):
    """Value, and gradient in JAX's convention, of products, matrices and spreads."""
    layer = gnnjit.layer(formula)

    def loss(f: Any) -> Any:
        def of(*args: Any) -> Any:
            outs = f(*args)
            parts = [jnp.sin(o.real) * 2 + jnp.cos(o.imag) for o in outs]
            return sum(jnp.sum(p) for p in parts), outs

        return jax.jit(jax.value_and_grad(of, (0, 1, 2), has_aux=True))

    want = loss(by_hand)(Z, W, D)
    with on(lowering):
        have = loss(lambda x, w, d: layer(G, x, w, edges=d))(Z, W, D)
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("said", ["var", "std"])
def test_a_spread_of_complex_numbers_is_real(said):
    got = gnnjit.layer(lambda v, e: getattr(gnnjit, said)(e.src, initial=-1))(G, Z)
    rows = [np.asarray(Z)[SRC[DST == v]] for v in range(N)]
    want = [getattr(np, said)(r, axis=0) if len(r) else np.full(3, -1) for r in rows]
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, np.stack(want), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("max", "gnnjit.max(jnp.abs(z)), or max of jnp.real(z) and of jnp.imag(z)"),
        ("min", "gnnjit.min(jnp.abs(z)), or min of jnp.real(z) and of jnp.imag(z)"),
        ("softmax", "gnnjit.softmax(jnp.real(z)) for weights"),
        ("logsumexp", "jnp.log(gnnjit.sum(jnp.exp(z)))"),
    ],
)
def test_complex_numbers_have_no_order(said, instead):
    text = message(gnnjit.layer(lambda v, e: getattr(gnnjit, said)(e.src)), G, Z)
    assert text == (
        f"{said}() got complex64[3], expected real numbers: complex ones have no order, so there "
        f"is no largest of them. Write {instead}"
    )


# -------------------------------------------------------------------------------------------- keys

KEYS = jax.random.split(jax.random.key(1), N)
OF_EDGES = jax.random.split(jax.random.key(2), E)


def drawn(v, e):
    own = v["x"] * jax.random.uniform(v["key"], (3,))
    sent = gnnjit.sum(e.src["x"] * jax.random.normal(e.src["key"], (3,)))
    return own + sent, gnnjit.sum(e.src["x"] * jax.random.uniform(e.data, (3,)))


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "raw"])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_key_of_each_vertex_and_edge(lowering, typed):
    """`jax.random` draws from them as under `jax.vmap`, the same numbers in the gradient."""
    keys, of_edges = (k if typed else jax.random.key_data(k) for k in (KEYS, OF_EDGES))
    uniform = jax.vmap(lambda k: jax.random.uniform(k, (3,)))
    normal = jax.vmap(lambda k: jax.random.normal(k, (3,)))
    u, n, on_edges = uniform(KEYS), normal(KEYS), uniform(OF_EDGES)

    def loss(f: Any) -> Any:
        return jax.jit(jax.value_and_grad(lambda x: sum(map(jnp.sum, map(jnp.sin, f(x))))))(X)

    layer = gnnjit.layer(drawn)
    want = loss(lambda x: (x * u + summed((x * n)[SRC]), summed(x[SRC] * on_edges)))
    with on(lowering):
        have = loss(lambda x: layer(G, {"x": x, "key": keys}, edges=of_edges))
    for a, b in zip(have, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "raw"])
def test_dropout_with_a_key_of_each_vertex(typed):
    keys = KEYS if typed else jax.random.key_data(KEYS)
    layer = gnnjit.layer(lambda v, e: gnnjit.dropout(v["x"], 0.5, v["key"]))
    ones = jnp.ones((N, 200))
    got = layer(G, {"x": ones, "key": keys})
    assert 0.4 < float(jnp.mean(got == 0)) < 0.6
    other = layer(G, {"x": ones, "key": keys[::-1]})
    assert (np.asarray(got) != np.asarray(other)).any(axis=1).all()


@pytest.mark.parametrize(
    ("key", "came"),
    [
        (3, "int"),
        (None, "NoneType"),
        (jnp.ones(2), "float32[2]"),
        (KEYS, "key<fry>[6]"),
        (jax.random.key_data(KEYS), "uint32[6, 2]"),
        (jnp.zeros(3, jnp.uint32), "uint32[3]"),
    ],
    ids=["int", "none", "floats", "keys", "raw keys", "words"],
)
@pytest.mark.parametrize("said", ["dropout", "random_uniform"])
def test_what_is_no_key(said, key, came):
    def layer(v, e):
        return gnnjit.dropout(v, 0.5, key) if said == "dropout" else gnnjit.random_uniform(key, v)

    more = "; a key of each vertex or edge is given in x or edges" if "[" in came else ""
    assert message(gnnjit.layer(layer), G, X) == (
        f"gnnjit.{said}() got {came} as its key, expected one random key: pass "
        f"jax.random.key(seed){more}"
    )


def test_keys_are_no_numbers():
    text = message(gnnjit.layer(lambda v, e: gnnjit.sum(e.src)), G, KEYS)
    assert text == "sum() got random keys (key<fry>), which are no numbers: draw from them first"
