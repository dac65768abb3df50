"""Modules for typed graphs against their formulas, in value and gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.nn import HAN, HGT, RGAT, RGCN
from gnnjit.nn.han import mean_of_rows

SIZES = {"a": 5, "b": 6, "c": 2}
WIDTHS = {"a": 3, "b": 4, "c": 2}
EDGES = {
    ("a", "to", "b"): np.array([[0, 1, 2, 2, 4, 1], [0, 0, 1, 3, 3, 5]]),
    ("b", "of", "b"): np.array([[0, 1, 2], [1, 0, 0]]),
    ("c", "in", "b"): np.zeros((2, 0), np.int64),
    ("b", "by", "a"): np.array([[5, 0, 1], [0, 0, 4]]),
}
GRAPH = gnnjit.TypedGraph.from_edges(EDGES, SIZES)
SCHEMA: Any = {"types": GRAPH.types, "relations": GRAPH.relations}


def features(widths: dict[str, int]) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {t: jnp.asarray(rng.normal(size=(n, widths[t])), jnp.float32) for t, n in SIZES.items()}


def randomised(module: Any) -> Any:
    """The module with random parameters, biases and gates too."""
    graphdef, state = nnx.split(module)
    rng = np.random.default_rng(1)
    state = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), state)
    return nnx.merge(graphdef, state)


def into(node_type: str) -> list[tuple[Any, str, np.ndarray, np.ndarray]]:
    return [(k, "__".join(k), *ends) for k, ends in EDGES.items() if k[2] == node_type]


def total(x: Any, dst: Any, n: int) -> Any:
    return jax.ops.segment_sum(x, dst, n)


def softmax(scores: Any, dst: Any, n: int) -> Any:
    top = jax.ops.segment_max(jax.lax.stop_gradient(scores), dst, n)
    weight = jnp.exp(scores - top[dst])
    return weight / total(weight, dst, n)[dst]


def rgcn(m: Any, x: Any) -> Any:
    out = {}
    for t, n in SIZES.items():
        y = x[t] @ m.own[t].kernel + m.own[t].bias
        for key, name, src, dst in into(t):
            w = m.weight[name][...]
            w = w if m.basis is None else sum(c * v for c, v in zip(w, m.basis[...], strict=True))
            count = np.maximum(np.bincount(dst, minlength=n), 1)
            y += total((x[key[0]] @ w)[src], dst, n) / count[:, None]
        out[t] = y
    return out


def hgt(m: Any, x: Any) -> Any:
    heads, width = m.shape
    out = {}
    for t, n in SIZES.items():
        query = m.query[t](x[t]).reshape(n, heads, width)
        scores, values, ends = [], [], []
        for key, name, src, dst in into(t):
            k = m.key[key[0]](x[key[0]]).reshape(-1, heads, width)
            k = jnp.einsum("nhd,hdf->nhf", k, m.attend[name][...])[src]
            scores.append((k * query[dst]).sum(-1) * m.prior[name][...] / np.sqrt(width))
            v = m.value[key[0]](x[key[0]]).reshape(-1, heads, width)
            values.append(jnp.einsum("nhd,hdf->nhf", v, m.message[name][...])[src])
            ends.append(dst)
        h = jnp.zeros((n, heads, width))
        if ends:
            dst = np.concatenate(ends)
            weight = softmax(jnp.concatenate(scores), dst, n)
            h = total(weight[..., None] * jnp.concatenate(values), dst, n)
        y = m.out[t](jax.nn.gelu(h.reshape(n, -1), approximate=False))
        if t in m.skip:
            gate = jax.nn.sigmoid(m.skip[t][...])
            y = gate * y + (1 - gate) * x[t]
        out[t] = y
    return out


def han(m: Any, x: Any) -> Any:
    heads, width = m.shape
    z = {t: m.linear[t](x[t]).reshape(-1, heads, width) for t in SIZES}
    out = {}
    for t, n in SIZES.items():
        found = []
        for key, name, src, dst in into(t):
            score = (z[key[0]] * m.attend_src[name][...]).sum(-1)[src]
            score += (z[t] * m.attend_dst[name][...]).sum(-1)[dst]
            score = jax.nn.leaky_relu(score, 0.2)
            weight = softmax(score, dst, n)
            y = total(weight[..., None] * z[key[0]][src], dst, n)
            found.append(jax.nn.relu(y).reshape(n, -1))
        if not found:
            out[t] = jnp.zeros((n, heads * width))
            continue
        level = [jnp.mean(jnp.tanh(m.semantic(y)) @ m.query[...]) for y in found]
        beta = jax.nn.softmax(jnp.stack(level))
        out[t] = sum(b * y for b, y in zip(beta, found, strict=True))
    return out


def rgat(m: Any, x: Any) -> Any:
    heads, width = m.shape
    out = {}
    for t, n in SIZES.items():
        scores, values, ends = [], [], []
        for key, name, src, dst in into(t):
            z = (x[key[0]] @ m.weight[name][...]).reshape(-1, heads, width)
            k = jnp.einsum("nhf,hfd->nhd", z, m.key[name][...])[src]
            q = (x[t] @ m.query[name][...]).reshape(n, heads, -1)[dst]
            additive = jax.nn.leaky_relu(q + k, 0.2)[..., 0]
            scores.append(additive if m.scores == "additive" else (q * k).sum(-1))
            values.append(z[src])
            ends.append(dst)
        h = jnp.zeros((n, heads, width))
        if ends and m.attention == "across":
            scores, values = [jnp.concatenate(scores)], [jnp.concatenate(values)]
            ends = [np.concatenate(ends)]
        for score, value, dst in zip(scores, values, ends, strict=True):
            h += total(softmax(score, dst, n)[..., None] * value, dst, n)
        out[t] = (h.reshape(n, -1) if m.concat else h.mean(1)) + m.bias[t][...]
    return out


CASES = {
    "rgcn": (lambda: RGCN(WIDTHS, 4, **SCHEMA, rngs=nnx.Rngs(0)), rgcn, WIDTHS),
    "rgcn-bases": (
        lambda: RGCN(4, 5, bases=2, **SCHEMA, rngs=nnx.Rngs(0)), rgcn, dict.fromkeys(SIZES, 4)
    ),
    "hgt": (lambda: HGT(WIDTHS, 4, heads=2, **SCHEMA, rngs=nnx.Rngs(0)), hgt, WIDTHS),
    "han": (
        lambda: HAN(WIDTHS, 4, heads=2, semantic_features=3, **SCHEMA, rngs=nnx.Rngs(0)), han,
        WIDTHS,
    ),
    "rgat": (lambda: RGAT(WIDTHS, 2, heads=2, **SCHEMA, rngs=nnx.Rngs(0)), rgat, WIDTHS),
    "rgat-within": (
        lambda: RGAT(
            WIDTHS, 3, heads=2, attention="within", scores="multiplicative", concat=False, **SCHEMA,
            rngs=nnx.Rngs(0),
        ), rgat, WIDTHS,
    ),
}  # fmt: skip


SHORT = [
    pytest.param(case, marks=[pytest.mark.long] if case == "rgat-within" else []) for case in CASES
]


@pytest.mark.parametrize("case", SHORT)
def test_values_and_gradients(case):
    make, formula, widths = CASES[case]
    module, x = randomised(make()), features(widths)
    graphdef, state = nnx.split(module)

    def loss(run: Any) -> Any:
        def of(state: Any, x: Any) -> Any:
            out = run(nnx.merge(graphdef, state), x)
            return sum(jnp.sum(jnp.sin(y)) for y in out.values()), out

        return jax.jit(jax.value_and_grad(of, (0, 1), has_aux=True))

    (_, got), grads = loss(lambda m, x: m(GRAPH, x))(state, x)
    (_, expected), plain = loss(formula)(state, x)
    for a, b in zip(jax.tree.leaves((got, grads)), jax.tree.leaves((expected, plain)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "make",
    [HAN, partial(RGAT, attention="across"), partial(RGAT, attention="within")],
    ids=["han", "rgat-across", "rgat-within"],
)
def test_dropout_draws_from_the_key(make):
    module, x = make(WIDTHS, 4, dropout=0.5, **SCHEMA, rngs=nnx.Rngs(0)), features(WIDTHS)
    first, again, other = (module(GRAPH, x, key=jax.random.key(i))["b"] for i in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_padding_does_not_weigh_in_the_attention_to_relations():
    module = randomised(HAN(WIDTHS, 4, heads=2, semantic_features=3, **SCHEMA, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(module)
    x, sizes = features(WIDTHS), GRAPH.num_nodes
    padded = GRAPH.pad({t: n + 5 for t, n in sizes.items()})
    run = jax.jit(lambda graph, x: nnx.merge(graphdef, state)(graph, x))
    got, expected = run(padded, padded.pad_nodes(x)), run(GRAPH, x)
    for t, n in sizes.items():
        np.testing.assert_allclose(got[t][:n], expected[t], rtol=2e-4, atol=2e-5)


def test_a_type_of_padding_alone_weighs_in_with_numbers():
    x = jnp.ones((4, 3))
    np.testing.assert_allclose(mean_of_rows(x, None), jnp.ones(3))
    np.testing.assert_array_equal(mean_of_rows(x, jnp.zeros(4, bool)), jnp.zeros(3))
    np.testing.assert_array_equal(mean_of_rows(x[:0], None), jnp.zeros(3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RGCN({"a": 3}, 4, **SCHEMA, rngs=nnx.Rngs(0)), "in_features has no 'b'"),
        (lambda: RGCN(WIDTHS, 4, bases=2, **SCHEMA, rngs=nnx.Rngs(0)), "with bases, of all types"),
        (lambda: RGCN(0, 4, **SCHEMA, rngs=nnx.Rngs(0)), "from 1"),
        (lambda: RGCN(3, 4, types="ab", relations=(), rngs=nnx.Rngs(0)), "pass graph.types"),
        (lambda: HGT(3, 4, types=["a"], relations="to", rngs=nnx.Rngs(0)), "pass graph.relations"),
        (lambda: HGT(3, 4, types=["a"], relations=["to"], rngs=nnx.Rngs(0)), "a name alone"),
        (lambda: HGT(3, 4, types=["a"], relations=list(EDGES), rngs=nnx.Rngs(0)), "types lacks"),
        (lambda: HGT(3, 4, heads=3, **SCHEMA, rngs=nnx.Rngs(0)), "3 heads do not divide"),
        (lambda: RGAT(3, 4, attention="both", **SCHEMA, rngs=nnx.Rngs(0)), "'across', 'within'"),
        (lambda: RGAT(3, 4, scores=None, **SCHEMA, rngs=nnx.Rngs(0)), "'multiplicative'"),
        (lambda: HAN(3, 4, dropout=2, **SCHEMA, rngs=nnx.Rngs(0)), "from 0 to 1"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(LayerError, match=message):
        make()
