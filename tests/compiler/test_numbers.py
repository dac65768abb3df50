"""Numbers at the ends of their range, as docs/numbers.md says, however a layer runs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sharding.graphs import mesh
from streaming.functions import PerVertex, edges, in_parts

import gnnjit
import gnnjit.nn
from gnnjit.graph.degree_buckets import build_buckets
from gnnjit.lower.choose import prefer
from gnnjit.passes.pipeline import Choices
from gnnjit.planner.search import force

PAGE = (Path(__file__).parents[2] / "docs" / "numbers.md").read_text()
ON_ONE = ("reference", "cpu", "csr", "bucketed", "segment", "pallas")
LOWERINGS = (*ON_ONE, "sharded", "streamed")


@contextlib.contextmanager
def running(lowering: str) -> Iterator[None]:
    with gnnjit.reference() if lowering == "reference" else prefer(lowering):
        yield


def graph_of(src: Any, dst: Any, num_nodes: int, lowering: str) -> gnnjit.Graph:
    graph = gnnjit.Graph.from_edges(np.asarray(src), np.asarray(dst), num_nodes=num_nodes)
    if lowering != "bucketed":
        return graph

    def add(structure: Any) -> Any:
        return dataclasses.replace(structure, buckets=build_buckets(np.asarray(structure.indptr)))

    structures = (add(graph.in_structure), add(graph.out_structure))
    return dataclasses.replace(graph, in_structure=structures[0], out_structure=structures[1])


def run(fn: Callable[..., Any], src: Any, dst: Any, x: jax.Array, lowering: str) -> Any:
    """`fn(graph, x)` on one of the lowerings; `x: [N, ...]`."""
    if lowering == "streamed":
        return in_parts(fn, edges(src, dst, len(x)), PerVertex(np.asarray(x)), parts=2)
    graph = graph_of(src, dst, len(x), lowering)
    if lowering == "sharded":
        sharded = gnnjit.shard(graph, mesh(2), exchange="halo")
        return sharded.get(jax.jit(fn)(sharded, sharded.put(x)))
    with running(lowering):
        return jax.jit(lambda g, x: fn(g, x))(graph, x)


# ----------------------------------------------------------------------------- what is not finite


def tables(first: str) -> dict[str, dict[str, str]]:
    """The rows of the tables whose first column is so named: by word and column, each cell."""
    found: dict[str, dict[str, str]] = {}
    for head, rows in re.findall(rf"^\| {first} \|(.*)\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M):
        columns = [cell.strip() for cell in head.strip("|").split("|")]
        for row in rows.splitlines():
            word, *cells = [cell.strip(" `") for cell in row.strip("|").split("|")]
            found.setdefault(word, {}).update(zip(columns, cells, strict=True))
    return found


def numbers(cell: str) -> list[float]:
    return [] if cell == "no edges" else [float(x) for x in cell.split(",")]


VALUES, GRADIENTS = tables("word"), tables("gradient of")
WORDS = [word for word in GRADIENTS if word != "softmax"]
COLUMNS = [*VALUES["sum"], *VALUES["softmax"]]
COLUMNS = [c for c in dict.fromkeys(COLUMNS) if "," in c or c == "no edges"]
SLOTS = [v for column in COLUMNS for v in numbers(column)]
DST = [k for k, column in enumerate(COLUMNS) for _ in numbers(column)]


FIRST = np.array([k == 0 or DST[k] != DST[k - 1] for k in range(len(SLOTS))], np.float32)


@gnnjit.layer
def every_word(v: Any, e: Any) -> Any:
    """A feature for each word, so that one gradient has those of all."""
    return jnp.stack([getattr(gnnjit, word)(e.src[k]) for k, word in enumerate(WORDS)])


@gnnjit.layer
def weights(v: Any, e: Any) -> Any:
    return gnnjit.softmax(e.src)


def words(graph: Any, x: Any) -> Any:
    value, back = jax.vjp(lambda x: every_word(graph, x), x)
    return value, back(jnp.ones_like(value))[0]


def words_and_weights(graph: Any, x: Any) -> Any:
    value, back = jax.vjp(lambda x: weights(graph, x), x[:, 0])
    return *words(graph, x), value, back(jnp.asarray(FIRST))[0]


def pairs_of(found: Any) -> dict[str, list[float]]:
    """What the edges of each column have."""
    return {
        c: [float(x) for x, k in zip(found, DST, strict=True) if COLUMNS[k] == c] for c in COLUMNS
    }


def holds(table: dict[str, str], found: dict[str, list[float]], word: str) -> None:
    for column, cell in table.items():
        if column in COLUMNS:
            np.testing.assert_allclose(
                found[column], numbers(cell), rtol=1e-6, err_msg=f"{word} {column}"
            )


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_tables_of_what_is_not_finite(lowering: str) -> None:
    x = jnp.asarray(np.repeat(np.asarray(SLOTS, np.float32)[:, None], len(WORDS), 1))
    fn = words_and_weights if lowering in ON_ONE else words
    value, gradient, *of_softmax = map(np.asarray, run(fn, np.arange(len(x)), DST, x, lowering))
    for k, word in enumerate(WORDS):
        holds(VALUES[word], {c: [value[i, k]] for i, c in enumerate(COLUMNS)}, word)
        holds(GRADIENTS[word], pairs_of(gradient[:, k]), word)
    if of_softmax:
        holds(VALUES["softmax"], pairs_of(of_softmax[0]), "softmax")
        holds(GRADIENTS["softmax"], pairs_of(of_softmax[1]), "softmax")


# ------------------------------------------------------------------------------------------ ranges

SIZE = 700
KEY = jax.random.key(3)


MESSAGES: dict[str, Callable[..., Any]] = {
    "itself": lambda v, e, p: e.src,
    "minus own": lambda v, e, p: e.src - v / 2,
    "matrix": lambda v, e, p: e.src @ p["w"],
    "bias": lambda v, e, p: e.src @ p["w"] + p["b"],
    "both ends": lambda v, e, p: jnp.concatenate([e.src, v]) @ p["w2"],
}
fixed = jax.lax.stop_gradient
"""The derivative by a factor of the vertex is a sum of features, which is no number here."""

WEIGHTS: dict[str, Callable[..., Any]] = {
    "softmax": lambda v, e, p: gnnjit.softmax(e.src[0] * p["small"]),
    "each feature's softmax": lambda v, e, p: gnnjit.softmax(e.src * p["small"]),
    "dropped softmax": lambda v, e, p: gnnjit.dropout(gnnjit.softmax(0 * e.src[0]), 0.5, KEY),
    "over the degree": lambda v, e, p: 1 / gnnjit.degree().astype(v.dtype),
    "number of the vertex": lambda v, e, p: fixed(v[0] * p["small"] / 512),
    "gate of the vertex": lambda v, e, p: fixed(jax.nn.sigmoid(v * p["small"] - 7)),
}
AFTER: dict[str, Callable[..., Any]] = {
    "nothing": lambda y, p: y,
    "matrix": lambda y, p: y @ p["w"],
    "own scale": lambda y, p: y / 2,
}


def parameters(dtype: Any, size: float) -> Any:
    rng = np.random.default_rng(0)
    return {
        "small": jnp.asarray(1 / size, dtype),
        "w": jnp.asarray(rng.uniform(0.1, 0.3, (4, 4)), dtype),
        "w2": jnp.asarray(rng.uniform(0.05, 0.15, (8, 4)), dtype),
        "b": jnp.asarray(rng.uniform(0, size / 4, 4), dtype),
    }


def layer_of(message: str, weight: str, after: str) -> Any:
    @gnnjit.layer
    def layer(v: Any, e: Any, p: Any) -> Any:
        term = WEIGHTS[weight](v, e, p) * MESSAGES[message](v, e, p)
        return AFTER[after](gnnjit.sum(term), p)

    return layer


def value_and_grads(layer: Any, graph: Any, x: Any, p: Any) -> Any:
    """The value, and the gradients of features and matrix."""

    def of(x: Any, w: Any) -> Any:
        return layer(graph, x, {**p, "w": w})

    y, back = jax.vjp(of, x, p["w"])
    return y, back(jnp.ones_like(y))


SRC, INTO = np.arange(SIZE), np.where(np.arange(SIZE) < 5, 1, 0)
ENDS = {"float16": 100.0, "bfloat16": 1e37, "float32": 1e37}
PLANS = {
    "its own plan": None,
    "sums first": Choices(orders=("aggregate-first",) * 4),
    "matrix first": Choices(orders=("combine-first",) * 4),
    "split": Choices(split=True),
}


@pytest.mark.long
@settings(max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    st.sampled_from(list(MESSAGES)),
    st.sampled_from(list(WEIGHTS)),
    st.sampled_from(list(AFTER)),
    st.sampled_from(list(ENDS)),
    st.sampled_from(list(PLANS)),
    st.sampled_from(["cpu", "segment", "pallas"]),
)
def test_rewrites_keep_the_range(
    message: str, weight: str, after: str, dtype: str, plan: str, lowering: str
) -> None:
    """Optimised, in inference and in training, against float64, where every value that the program
    as it is written computes fits its dtype."""
    size, graph = ENDS[dtype], graph_of(SRC, INTO, SIZE, lowering)
    x = np.random.default_rng(1).uniform(0.5, 1, (SIZE, 4)) * size
    narrow, p = jnp.asarray(x, dtype), parameters(dtype, size)
    with jax.enable_x64(True), gnnjit.reference():
        wide = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (narrow, p))
        oracle = jax.jit(value_and_grads, static_argnums=0)
        want = oracle(layer_of(message, weight, after), graph, *wide)
        want = jax.tree.map(np.asarray, want)
    choices = PLANS[plan]
    layer = layer_of(message, weight, after)
    with running(lowering), force(choices) if choices else contextlib.nullcontext():
        alone = jax.jit(layer)(graph, narrow, p)
        have = jax.jit(value_and_grads, static_argnums=0)(layer, graph, narrow, p)
    rtol = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4}[dtype]
    for a, b in ((alone, want[0]), *zip(*map(jax.tree.leaves, (have, want)), strict=True)):
        a = np.asarray(a, np.float64)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max() + 1e-30)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_more_edges_than_half_precision_counts(lowering: str) -> None:
    n = 66_001
    x = jnp.full((n, 1), 3, jnp.float16)

    layer = gnnjit.layer(
        lambda v, e: (
            gnnjit.sum(gnnjit.softmax(e.src) * e.src),
            gnnjit.logsumexp(e.src),
            gnnjit.mean(e.src),
        )
    )
    found = run(layer, np.arange(n), np.zeros(n, int), x, lowering)
    want = 3, 3 + np.log(n), 3
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32)[0, 0], b, rtol=2e-2)


@pytest.mark.parametrize("lowering", ["sharded", "streamed"])
def test_parts_of_a_sum_may_be_larger_than_the_sum(lowering: str) -> None:
    n = 64
    x = jnp.concatenate(
        [jnp.full((n // 2, 1), 6e4, "float16"), jnp.full((n // 2, 1), -6e4, "float16")]
    )
    src, dst = np.tile(np.arange(n), 2), np.repeat([0, n - 1], n)
    found = run(gnnjit.layer(lambda v, e: gnnjit.sum(e.src)), src, dst, x, lowering)
    np.testing.assert_array_equal(np.asarray(found)[[0, n - 1]], 0)


def test_graph_convolution_of_a_hub_in_float16() -> None:
    from flax import nnx

    n = 70_000
    graph = graph_of(np.arange(n), np.zeros(n, int), n, "cpu")
    layer = gnnjit.nn.GCN(1, 1, rngs=nnx.Rngs(0))
    layer.linear.kernel[...] = jnp.ones((1, 1))
    layer = jax.tree.map(lambda a: a.astype(jnp.float16), layer)
    found = layer(graph, jnp.ones((n, 1), jnp.float16))
    want = (n - 1) / np.sqrt(n + 1) + 2 / (n + 1)
    np.testing.assert_allclose(np.asarray(found, np.float32)[0, 0], want, rtol=5e-3)


# ----------------------------------------------------------------------------------------- spreads


@pytest.mark.parametrize("lowering", ["cpu", "segment", "pallas"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_spread_of_rounding_is_none(dtype: str, lowering: str) -> None:
    """One edge, many of equal values, and a large offset, of values that are computed twice."""
    n, width = 4000, 100
    dst = np.concatenate([[0], np.ones(n - 3, int), [2, 2]])
    w = np.random.default_rng(0).normal(size=(8, width)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=8) * np.ones((n, 1))
    x[-2:] = 1e6
    graph = graph_of(np.arange(n), dst, n, lowering)

    @gnnjit.layer
    def layer(v: Any, e: Any, p: Any) -> Any:
        h = jax.nn.leaky_relu((e.src + v) @ p)
        return gnnjit.mean(h) + gnnjit.std(h), gnnjit.std(h)

    x = x.astype(np.float32)
    x[:3] = x[3]  # sources of one value each, whatever v adds
    args = jnp.asarray(x, dtype), jnp.asarray(w, dtype)

    def both(x: Any, p: Any) -> Any:
        (total, spread), back = jax.vjp(lambda x: layer(graph, x, p), x)
        return spread, back((jnp.zeros_like(total), jnp.ones_like(spread)))[0]

    with running(lowering):
        spread, gradient = jax.jit(both)(*args)
    np.testing.assert_array_equal(np.asarray(spread, np.float32)[:3], 0)
    np.testing.assert_array_equal(np.asarray(gradient, np.float32), 0)


def test_a_true_spread_is_kept() -> None:
    x = jnp.asarray([[1000.0], [1000.01], [5.0], [5.0]])
    layer = gnnjit.layer(lambda v, e: (gnnjit.std(e.src), gnnjit.var(e.src)))
    graph = graph_of([0, 1, 2, 3], [0, 0, 1, 1], 4, "cpu")
    spread, variance = layer(graph, x)
    step = float(x[1, 0] - x[0, 0]) / 2
    np.testing.assert_allclose(np.asarray(spread)[:2, 0], [step, 0], rtol=1e-3)
    np.testing.assert_allclose(np.asarray(variance)[:2, 0], [step**2, 0], rtol=1e-3)
    gradient = jax.grad(lambda x: layer(graph, x)[0].sum())(x)
    np.testing.assert_allclose(gradient[:, 0], [-0.5, 0.5, 0, 0], rtol=1e-3)


# ------------------------------------------------------------------------------------------ scores


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_softmax_of_huge_scores(lowering: str) -> None:
    """Each row's weights sum to 1: those of the largest scores, however they are rounded."""
    rng = np.random.default_rng(4)
    n, scale = 40, np.float32(7.3e11)
    src, dst = rng.integers(0, n, (2, 300))
    x = jnp.asarray(rng.normal(size=(n, 3)), jnp.float32)

    @gnnjit.layer
    def layer(v: Any, e: Any) -> Any:
        score = jnp.sum(e.src * v) * scale
        return gnnjit.sum(gnnjit.softmax(score) * 2.0), gnnjit.sum(gnnjit.softmax(score) * e.src)

    total, _ = run(lambda g, x: layer(g, x), src, dst, x, lowering)
    want = np.where(np.bincount(dst, minlength=n) > 0, 2, 0)
    np.testing.assert_allclose(total, want, rtol=1e-6)


# ---------------------------------------------------------------------------------------- integers


@pytest.mark.parametrize("lowering", ["reference", "cpu", "segment", "bucketed", "pallas"])
@pytest.mark.parametrize("dtype", ["int8", "bool"])
def test_integers(dtype: str, lowering: str) -> None:
    x = jnp.asarray([[100], [100], [1], [0]]).astype(dtype)
    found = run(integer_words, [0, 1, 3], [0, 0, 1], x, lowering)
    a = np.asarray(x[:2, 0])
    for word, outs in found.items():
        assert outs.dtype == VALUES[word][dtype], word
        if word in ("sum", "max", "min", "mean"):
            np.testing.assert_array_equal(outs[:3, 0], [getattr(jnp, word)(a), 0, 0], word)
            assert outs.dtype == getattr(jnp, word)(a).dtype


@pytest.mark.parametrize("lowering", ["reference", "cpu", "segment", "bucketed"])
def test_integers_of_64_bits(lowering: str) -> None:
    """Sums and means that 32 bits, and float32, do not hold; the dtypes of `jax.numpy`."""
    with jax.enable_x64(True):
        x = jnp.asarray([[2**40 + 1], [2**40 + 2], [7], [0]], jnp.int64)
        found = run(integer_words, [0, 1, 3], [0, 0, 1], x, lowering)
        for word in ("sum", "max", "min", "mean", "var", "std"):
            want = getattr(jnp, word)(x[:2, 0])
            np.testing.assert_array_equal(found[word][:3, 0], [want, 0, 0], word)
            assert found[word].dtype == want.dtype, word
        assert found["logsumexp"].dtype == found["softmax"].dtype == np.float64


@gnnjit.layer
def integer_words(v: Any, e: Any) -> Any:
    words = ("sum", "max", "min", "mean", "var", "std", "logsumexp")
    found = {word: getattr(gnnjit, word)(e.src) for word in words}
    return found | {"softmax": gnnjit.sum(gnnjit.softmax(e.src))}
