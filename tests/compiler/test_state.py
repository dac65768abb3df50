"""Batch normalisation, dropout, sown values and other state inside a layer: what has a meaning for
one vertex works, all else is named, and nothing holds values of a trace afterwards."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import gnnjit
from gnnjit.errors import LayerError

HERE = pathlib.Path(__file__).name
SRC, DST = [0, 1, 2, 2, 4], [1, 2, 0, 1, 1]
G = gnnjit.Graph.from_edges(SRC, DST, num_nodes=5)
X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)), jnp.float32)
KEY = jax.random.key(0)

BATCH_NORM = (
    "runs batch normalisation in training mode: its mean and variance are over all vertices, and a "
    "layer computes one. Apply it between layers, on arrays [N, F], or pass "
    "use_running_average=True inside"
)
SOWN = (
    "sows a value: a layer is traced once for all vertices and edges, so there is no array to keep "
    "yet. Return the value too (return y, value) and sow it where the layer is called"
)
DRAWN = (
    "draws a key from nnx.Rngs, which counts: the layer is traced once, "
    "apart from the state of the model. "
    "Draw the key outside and pass it, layer(graph, x, key=rngs()); inside, use "
    "gnnjit.dropout(value, rate, key) in place of Dropout"
)
DROPOUT = (
    "{}.Dropout drew from a key inside a layer. The key is shared by the whole graph, so every "
    "edge and vertex would get the same numbers. Use gnnjit.dropout(value, rate, key) or "
    "gnnjit.random_uniform(key, like=value), which draw once per element"
)
STORED = (
    "stores a value of its trace in {}: a layer is traced once for all vertices and edges, so "
    "there is no array to keep yet. Return the value too, and store it where the layer is called"
)
MADE = (
    "makes the parameter {} while it is traced, so there is no array to keep yet. Make it before "
    "the layer, and let the layer capture it or pass it as a parameter: w = {}(...); "
    "layer(graph, x, w)"
)
MUTABLE = (
    "the layer reads or writes a mutable array (jax.Ref), and is traced once for all vertices and "
    "edges: read it before the layer and pass the array; return what should be stored, and store "
    "it where the layer is called"
)


def refused(call: Any, *args: Any, **keywords: Any) -> str:
    """The message without its place, which is a line of this file."""
    with pytest.raises(LayerError) as caught:
        call(*args, **keywords)
    found = re.match(rf"{re.escape(HERE)}:\d+: (.*)", str(caught.value))
    assert found, caught.value
    return found[1]


def summed(x: Any) -> Any:
    return jax.ops.segment_sum(x[jnp.asarray(SRC)], jnp.asarray(DST), 5)


class Norm(nnx.Module):
    def __init__(self, train: bool):
        self.norm = nnx.BatchNorm(4, use_running_average=not train, rngs=nnx.Rngs(0))
        self.norm.mean[...] = jnp.arange(4.0)

    @gnnjit.layer
    def __call__(self, v, e):
        return gnnjit.sum(self.norm(e.src))


def test_batch_norm_of_nnx():
    train = Norm(train=True)
    assert refused(train, G, X) == f"Norm.__call__ {BATCH_NORM}"
    np.testing.assert_array_equal(train.norm.mean[...], jnp.arange(4.0))
    by_hand = summed((X - jnp.arange(4.0)) / np.sqrt(1 + 1e-5))
    np.testing.assert_allclose(Norm(train=False)(G, X), by_hand, rtol=1e-5, atol=1e-5)


def test_other_statistics_are_no_batch_normalisation():
    norm = nnx.SpectralNorm(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))

    class Linen(linen.Module):
        @linen.compact
        def __call__(self, x):
            h = linen.SpectralNorm(linen.Dense(4))
            return gnnjit.layer(lambda v, e: gnnjit.sum(h(e.src, update_stats=True)))(G, x)

    def spectral(v, e):
        return gnnjit.sum(norm(e.src, update_stats=True))

    assert "stores a value of its trace in an object of nnx (" in refused(
        gnnjit.layer(spectral), G, X
    )
    assert "stores a value of its trace in the variable batch_stats/" in refused(
        Linen().init, jax.random.key(0), X
    )


class Nnx(nnx.Module):
    def __init__(self):
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        self.rngs = nnx.Rngs(1)
        self.count = nnx.Variable(jnp.zeros(4))
        self.items = nnx.List([])

    @gnnjit.layer(static_argnames="deterministic")
    def dropped(self, v, e, *, deterministic=False):
        return gnnjit.sum(self.drop(e.src, deterministic=deterministic))

    @gnnjit.layer
    def with_key(self, v, e, key):
        return gnnjit.sum(self.drop(e.src, rngs=key))

    @gnnjit.layer
    def drawn(self, v, e):
        return gnnjit.dropout(gnnjit.sum(e.src), 0.5, self.rngs.noise())

    @gnnjit.layer
    def ours(self, v, e, key):
        return gnnjit.dropout(v, 0.5, key)

    @gnnjit.layer
    def sown(self, v, e):
        self.sow(nnx.Intermediate, "y", v)
        return gnnjit.sum(e.src)

    @gnnjit.layer
    def counted(self, v, e):
        self.count[...] = self.count[...] + v
        return gnnjit.sum(e.src)

    @gnnjit.layer
    def assigned(self, v, e):
        self.last = v
        return gnnjit.sum(e.src)

    @gnnjit.layer
    def listed(self, v, e):
        self.items.append(nnx.Param(v))
        return gnnjit.sum(e.src)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("dropped", DRAWN),
        ("drawn", DRAWN),
        ("sown", SOWN),
        ("counted", STORED.format("an object of nnx (Variable)")),
        ("assigned", STORED.format("an object of nnx (Nnx)")),
        ("listed", STORED.format("an object of nnx (List)")),
    ],
)
def test_state_of_nnx(method, message):
    model = Nnx()
    before = nnx.state(model)
    assert refused(getattr(model, method), G, X) == f"Nnx.{method} {message}"
    assert jax.tree.structure(nnx.state(model)) == jax.tree.structure(before)
    jax.tree.map(np.testing.assert_array_equal, *map(_numbers, (nnx.state(model), before)))


def _numbers(state: Any) -> Any:
    def number(x: Any) -> Any:
        assert not isinstance(x, jax.core.Tracer)
        return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return jax.tree.map(number, state)


def test_dropout_of_nnx_with_a_key_and_without_any():
    model = Nnx()
    assert refused(model.with_key, G, X, KEY) == DROPOUT.format("nnx")
    np.testing.assert_allclose(model.dropped(G, X, deterministic=True), summed(X), rtol=1e-6)
    assert float(jnp.mean(model.ours(G, X, model.rngs()) == 0)) > 0.1


class Linen(linen.Module):
    """Every state of linen, in layers of its own."""

    what: str
    train: bool = True

    def setup(self):
        self.norm = linen.BatchNorm(use_running_average=not self.train)
        self.drop = linen.Dropout(0.5, deterministic=not self.train)
        self.seen = self.variable("memory", "seen", jnp.zeros, 4)

    def __call__(self, graph, x):
        return getattr(self, self.what)(graph, x)

    @gnnjit.layer
    def normed(self, v, e):
        return gnnjit.sum(self.norm(e.src))

    @gnnjit.layer
    def dropped(self, v, e):
        return gnnjit.sum(self.drop(e.src))

    @gnnjit.layer
    def sown(self, v, e):
        self.sow("intermediates", "y", v)
        return gnnjit.sum(e.src)

    @gnnjit.layer
    def stored(self, v, e):
        self.seen.value = self.seen.value + v
        return gnnjit.sum(e.src)

    @gnnjit.layer
    def drawn(self, v, e):
        return gnnjit.dropout(v, 0.5, self.make_rng("noise"))


def variables(what: str) -> Any:
    return {
        "params": {"norm": {"scale": jnp.ones(4), "bias": jnp.zeros(4)}}
        if what == "normed"
        else {},
        "batch_stats": {"norm": {"mean": jnp.arange(4.0), "var": jnp.ones(4)}},
        "memory": {"seen": jnp.zeros(4)},
    }


@pytest.mark.parametrize("mutable", [True, False], ids=["mutable", "immutable"])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("normed", f"Linen.normed {BATCH_NORM}"),
        ("dropped", DROPOUT.format("linen")),
        ("sown", f"Linen.sown {SOWN}"),
        ("stored", "Linen.stored " + STORED.format("the variable memory/seen of linen")),
    ],
)
def test_state_of_linen(what, message, mutable):
    def apply() -> Any:
        kept = ["batch_stats", "memory", "intermediates"] if mutable else False
        return Linen(what).apply(variables(what), G, X, mutable=kept, rngs={"dropout": KEY})

    if what == "sown" and not mutable:  # nothing is kept
        np.testing.assert_allclose(apply(), summed(X), rtol=1e-6)
    else:
        assert refused(apply) == message


def test_what_works_in_linen():
    got = Linen("normed", train=False).apply(variables("normed"), G, X)
    by_hand = summed((X - jnp.arange(4.0)) / np.sqrt(1 + 1e-5))
    np.testing.assert_allclose(got, by_hand, rtol=1e-5, atol=1e-5)
    got = Linen("dropped", train=False).apply(variables("dropped"), G, X)
    np.testing.assert_allclose(got, summed(X), rtol=1e-6)
    drawn, state = Linen("drawn").apply(
        variables("drawn"), G, X, mutable=["memory"], rngs={"noise": KEY}
    )
    assert 0.1 < float(jnp.mean(drawn == 0)) < 0.9
    np.testing.assert_array_equal(state["memory"]["seen"], jnp.zeros(4))


class Inside(linen.Module):
    """A layer that is a function inside a method, with submodules of its own or of the method."""

    bad: bool = False

    @linen.compact
    def __call__(self, graph, x):
        norm = linen.BatchNorm(use_running_average=not self.bad)

        @gnnjit.layer
        def layer(v, e):
            return gnnjit.sum(norm(linen.Dense(3)(e.src)))

        h = layer(graph, x)
        return linen.Dense(2)(h)


def test_a_layer_inside_a_method_of_linen():
    made = Inside().init(KEY, G, X)
    assert not [x for x in jax.tree.leaves(made) if isinstance(x, jax.core.Tracer)]
    first, second = (made["params"][f"Dense_{i}"] for i in (0, 1))
    h = summed((X @ first["kernel"]) / np.sqrt(1 + 1e-5))
    got = Inside().apply(made, G, X)
    np.testing.assert_allclose(got, h @ second["kernel"], rtol=1e-4, atol=1e-5)
    text = refused(Inside(bad=True).apply, made, G, X, mutable=["batch_stats"])
    assert text == f"Inside.__call__.layer {BATCH_NORM}"


class Plain:
    def __init__(self):
        self.kept: list[Any] = []
        self.by_name: dict[str, Any] = {"old": 1}
        self.calls = 0

    @gnnjit.layer
    def listed(self, v, e):
        self.kept.append(v)
        return gnnjit.sum(e.src)

    @gnnjit.layer
    def named(self, v, e):
        self.by_name["new"] = {"h": e.src}
        return gnnjit.sum(e.src)

    @gnnjit.layer
    def assigned(self, v, e):
        self.last = v * 2
        return gnnjit.sum(e.src)

    @gnnjit.layer
    def counted(self, v, e):
        self.calls += 1
        return gnnjit.sum(e.src)


@pytest.mark.parametrize(
    ("method", "where"),
    [("listed", "kept.0"), ("named", "by_name.new.h"), ("assigned", "last")],
)
@pytest.mark.parametrize("jit", [False, True])
def test_state_of_plain_objects(method, where, jit):
    owner = Plain()
    call = getattr(owner, method)
    text = refused(jax.jit(call) if jit else call, G, X)
    assert text == f"Plain.{method} " + STORED.format(f"Plain.{where}")
    assert vars(owner) == {"kept": [], "by_name": {"old": 1}, "calls": 0}


def test_numbers_may_be_stored():
    owner = Plain()
    np.testing.assert_allclose(owner.counted(G, X), summed(X), rtol=1e-6)
    assert owner.calls == 1


def test_mutable_arrays():
    ref = jax.new_ref(jnp.zeros(4))

    def writes(v, e):
        ref[...] = v
        return gnnjit.sum(e.src)

    assert refused(gnnjit.layer(writes), G, X) == MUTABLE
    assert refused(gnnjit.layer(lambda v, e: v * ref[...]), G, X) == MUTABLE
    text = refused(gnnjit.layer(lambda v, e, scale: v * scale[...]), G, X, ref)
    assert text.endswith(f"argument scale: {MUTABLE}")
    np.testing.assert_array_equal(ref[...], jnp.zeros(4))


# ------------------------------------------------------------------------------------------ Haiku


@pytest.fixture
def hk():
    return pytest.importorskip("haiku")


def test_parameters_of_haiku(hk):
    def made_inside(x):
        @gnnjit.layer
        def layer(v, e):
            return gnnjit.sum(e.src @ hk.get_parameter("w", (4, 3), init=jnp.ones))

        return layer(G, x)

    def made_before(x):
        dense = hk.Linear(3)
        dense(x)
        return gnnjit.layer(lambda v, e: gnnjit.sum(dense(e.src)))(G, x)

    inside, before = hk.transform(made_inside), hk.transform(made_before)
    text = refused(inside.init, KEY, X)
    assert text.endswith(MADE.format("~/w of Haiku", "hk.get_parameter"))
    got = inside.apply({"~": {"w": jnp.ones((4, 3))}}, None, X)
    np.testing.assert_allclose(got, summed(X @ jnp.ones((4, 3))), rtol=1e-4, atol=1e-5)
    made = before.init(KEY, X)
    got = before.apply(made, None, X)
    np.testing.assert_allclose(got, summed(X @ made["linear"]["w"]), rtol=1e-4, atol=1e-5)


def test_modules_of_haiku_made_inside(hk):
    def net(x):
        return gnnjit.layer(lambda v, e: gnnjit.sum(hk.Linear(3)(e.src)))(G, x)

    text = refused(hk.transform(net).init, KEY, X)
    assert text.endswith(MADE.format("linear/w of Haiku", "hk.get_parameter"))


def test_keys_and_state_of_haiku(hk):
    def draws(x):
        return gnnjit.layer(lambda v, e: gnnjit.dropout(v, 0.5, hk.next_rng_key()))(G, x)

    def stores(x):
        def layer(v, e):
            hk.set_state("seen", v)
            return gnnjit.sum(e.src)

        return gnnjit.layer(layer)(G, x)

    assert "draws a key from Haiku" in refused(hk.transform(draws).apply, {}, KEY, X)
    text = refused(hk.transform_with_state(stores).init, KEY, X)
    assert text.endswith(STORED.format("the state ~/seen of Haiku"))
