"""`jax.disable_jit()`: a layer runs as plain Python, one edge after the other."""

from __future__ import annotations

import functools
import pathlib
import re
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import gnnjit
from gnnjit.errors import GnnjitWarning, LayerError

SRC, DST = np.array([0, 1, 2, 0, 3]), np.array([1, 2, 0, 2, 1])
G = gnnjit.Graph.from_edges(SRC, DST, num_nodes=5)
X = jnp.arange(10.0).reshape(5, 2) / 8
W = jnp.asarray([[1.0, -0.5], [0.25, 2.0]])
KEY = jax.random.key(3)
HERE = pathlib.Path(__file__).name


def attention(v, e, w, key, say=lambda *_: None):
    z = e.src @ w
    say("z", z)
    s = gnnjit.softmax(jnp.tanh(z.sum() - v.sum()))
    say("s", s)
    out = gnnjit.sum(gnnjit.dropout(s * z, 0.25, key)) + gnnjit.random_uniform(key, like=v)
    say("out", out)
    return {"vertex": out * gnnjit.degree() + gnnjit.std(e.src).sum(), "edge": s, "shared": w * 2}


layer = gnnjit.layer(attention)


def loss(w, x=X):
    return sum(jnp.square(y).sum() for y in jax.tree.leaves(layer(G, x, w, KEY)))


def close(got, want):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


def test_the_same_values_also_of_random_numbers():
    want = layer(G, X, W, KEY)
    with jax.disable_jit():
        close(layer(G, X, W, KEY), want)


@pytest.mark.long
@pytest.mark.parametrize(
    "transformed",
    [lambda f: jax.jit(jax.grad(f)), lambda f: lambda w: jax.vmap(jax.grad(f))(w[None])[0]],
    ids=["grad", "vmap"],
)
def test_the_same_derivatives(transformed):
    want = jax.grad(loss)(W)
    with jax.disable_jit():
        close(transformed(loss)(W), want)


def test_it_prints_the_numbers_of_each_edge_once(capsys):
    said = gnnjit.layer(functools.partial(attention, say=lambda *xs: print(*xs)))
    with jax.disable_jit():
        made = said(G, X, W, KEY)
    lines = capsys.readouterr().out.splitlines()
    found = [float(line.split()[1]) for line in lines if line.startswith("s ")]
    order = np.argsort(DST, kind="stable")
    np.testing.assert_allclose(found, made["edge"][order], rtol=1e-4)
    rows = [np.fromstring(line[3:].strip(" []"), sep=" ") for line in lines if line[:2] == "z "]
    np.testing.assert_allclose(rows, (X @ W)[SRC[order]], rtol=1e-4)


def test_debugging_words_of_jax(capsys):
    seen: list[Any] = []

    def f(v, e):
        jax.debug.print("edge {} {}", e.src[0], v[1])
        jax.debug.callback(seen.append, e.src[1])
        return gnnjit.sum(e.src)

    with jax.disable_jit():
        close(gnnjit.layer(f)(G, X), jax.ops.segment_sum(X[SRC], DST, 5))
    made_up = [0.5, 0.5]  # two vertices have no edge, and are called with one of no meaning
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0] == "edge 0.5 0.125"  # 2 -> 0, the first vertex' only one
    assert sorted(map(float, seen)) == sorted([*map(float, X[SRC, 1]), *made_up])


def test_breakpoints_stop_once_per_edge(monkeypatch):
    stops: list[float] = []

    def f(v, e):
        breakpoint()
        return gnnjit.sum(gnnjit.softmax(e.src[0]) * e.src)

    def hook():
        import inspect

        stops.append(float(inspect.currentframe().f_back.f_locals["e"].src[0]))

    monkeypatch.setattr("sys.breakpointhook", hook)
    with jax.disable_jit():
        gnnjit.layer(f)(G, X)
    assert sorted(stops) == sorted(map(float, X[SRC, 0]))


def test_an_error_has_the_users_frames_and_the_edge():
    def check(m):
        if isinstance(m, jax.core.Tracer):
            return
        if m[0] > 0.7:
            raise KeyError("mine")

    def f(v, e):
        m = e.src + 0.0
        check(m)
        return gnnjit.sum(m)

    with jax.disable_jit(), pytest.raises(KeyError, match="mine") as caught:
        gnnjit.layer(f)(G, X)
    where = f"{HERE}:{f.__code__.co_firstlineno}"
    name = "test_an_error_has_the_users_frames_and_the_edge.f"
    assert caught.value.__notes__ == [f"{where}: {name}, edge 4, from 3, to 1"]
    frames = traceback.extract_tb(caught.value.__traceback__)
    own = [x.name for x in frames if x.filename.endswith(HERE)]
    assert own[-2:] == ["f", "check"]
    assert own.count("f") == 1
    assert len(frames) < 9


def test_padding_is_no_edge_and_no_edges_are_no_numbers(capsys):
    padded = G.pad(7, 9)
    x = jnp.full((7, 2), jnp.nan).at[:5].set(X)

    def f(v, e):
        print("edge", e.src)
        m = gnnjit.max(jnp.log(e.src + e.data)) + v
        print("vertex", m)
        return m, e.data * v

    edges = jnp.full(9, jnp.nan).at[:5].set(1.0)
    one = gnnjit.layer(f)
    want = one(padded, x, edges=edges)
    capsys.readouterr()
    with jax.disable_jit():
        close(one(padded, x, edges=edges), want)
    text = capsys.readouterr().out
    assert text.count("edge [") == 5
    assert "nan" not in "".join(re.findall("edge .*", text))
    assert (
        text.count("vertex [") == 5 + 4
    )  # values of edges are returned, so each is run to its end


def test_modules():
    class Net(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))

        @gnnjit.layer
        def __call__(self, v, e):
            return self.linear(v) + gnnjit.mean(nnx.relu(self.linear(e.src)))

    class Compact(linen.Module):
        @linen.compact
        @gnnjit.layer
        def __call__(self, v, e):
            return linen.Dense(3)(v) + gnnjit.mean(linen.Dense(2)(e.src)).sum()

    net, compact = Net(), Compact()
    params = compact.init(jax.random.key(0), G, X)
    want = net(G, X), compact.apply(params, G, X)
    with jax.disable_jit():
        close((net(G, X), compact.apply(params, G, X)), want)


def test_reductions_inside_vmap_are_compiled_and_a_warning_says_so():
    def f(v, e, w):
        return jax.vmap(lambda w: gnnjit.sum(e.src @ w))(w)

    heads = jnp.stack([W, W.T])
    want = gnnjit.layer(f)(G, X, heads)
    with jax.disable_jit(), pytest.warns(GnnjitWarning) as caught:
        close(gnnjit.layer(f)(G, X, heads), want)
    where = f"{HERE}:{f.__code__.co_firstlineno}"
    assert str(caught[0].message) == (
        f"{where}: test_reductions_inside_vmap_are_compiled_and_a_warning_says_so.f calls a "
        "reduction inside jax.vmap or jax.grad, so it cannot run edge by edge under "
        "jax.disable_jit(); it is compiled, and prints nothing"
    )


def test_large_graphs_are_said_to_be_slow(monkeypatch):
    monkeypatch.setattr("gnnjit.frontend.by_hand.MANY", 4)
    with jax.disable_jit(), pytest.warns(GnnjitWarning, match="for each of 5 edges: debug with a"):
        gnnjit.layer(lambda v, e: gnnjit.sum(e.src))(G, X)


def test_graphs_explain_and_check():
    with jax.disable_jit():
        made = jax.jit(lambda s, d: gnnjit.Graph.from_edges(s, d, num_nodes=5))(SRC, DST)
        close(made.in_degree, G.in_degree)
        assert G.pad(8, 9).num_edges == 9
        small = gnnjit.layer(lambda v, e: gnnjit.sum(e.src) * v)
        assert "training" in str(small.explain(G, X))
        assert small.check(G, X).ok
        with gnnjit.reference():
            close(small(G, X), jax.ops.segment_sum(X[SRC], DST, 5) * X)


def halved(v, e):
    return {
        "loop": gnnjit.sum(jax.lax.while_loop(lambda c: (c > 1).any(), lambda c: c / 2, e.src)),
        "mean": gnnjit.mean(e.src),
    }


def test_explain_says_that_a_loop_has_no_gradient_and_shows_the_rest():
    found = gnnjit.layer(halved).explain(G, X)
    text = str(found)
    assert found.no_gradient is not None
    assert found.no_gradient.startswith("Reverse-mode differentiation does not work for lax.while")
    assert f"--- training\nnot shown, the layer has no gradient: {found.no_gradient}" in text
    assert "--- plan for inference" in text.lower() or "inference" in text
    assert "forward: " in text
    assert "backward: " not in text
    assert "training" in found._repr_html_()


def test_check_says_that_a_loop_has_no_gradient_and_compares_values():
    report = gnnjit.layer(halved).check(G, X)
    assert [d.what for d in report.differences] == ["output 0", "output 1"]
    assert "  gradients: not compared, the layer has none: Reverse-mode" in str(report)


def test_what_only_has_an_effect_is_told_where_it_works():
    with pytest.raises(LayerError) as caught:
        gnnjit.layer(lambda v, e: (jax.debug.print("{}", v), v)[1])(G, X)
    assert re.fullmatch(
        rf"{re.escape(HERE)}:\d+: debug_\w+ has an effect and no result, so it cannot run once per "
        r"edge in a compiled traversal\. Under `with jax\.disable_jit\(\):` it does, edge after "
        r"edge; or print what the layer returns",
        str(caught.value),
    )
