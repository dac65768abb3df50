"""Operations between layers, some rows at a time, against the same on whole arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit.errors import StreamError
from gnnjit.streaming.grid.streamed_graph import StreamedGraph
from gnnjit.streaming.stream import stream
from streaming.functions import (
    PerVertex,
    assert_same,
    edges,
    in_memory,
    in_parts,
    on_graph,
    random_edges,
)

N, F = 11, 4
EDGES = random_edges(N, 40)
RNG = np.random.default_rng(0)
X = PerVertex(RNG.normal(size=(N, F)).astype(np.float32))
Y = PerVertex(RNG.integers(0, F, N).astype(np.int32))
W = RNG.normal(size=(F, F)).astype(np.float32)

Function = Callable[..., Any]


@gnnjit.layer
def _turned(v: Any, e: Any, w: Any) -> Any:
    """A matrix on each of two rows of a vertex."""
    return v @ w


CASES: dict[str, Function] = {
    "layernorm": lambda g, x, y, w: (
        (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    ),
    "batchnorm": lambda g, x, y, w: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5),
    "softmax": lambda g, x, y, w: jax.nn.softmax(x @ w),
    "onehot": lambda g, x, y, w: jax.nn.one_hot(y, 4),
    "take_along": lambda g, x, y, w: jnp.take_along_axis(x, y[:, None], 1),
    "topk": lambda g, x, y, w: jax.lax.top_k(x, 2),
    "argmax": lambda g, x, y, w: jnp.argmax(x, -1),
    "emb": lambda g, x, y, w: w[y],
    "embgrad": lambda g, x, y, w: jax.grad(lambda w: (w[y] * x).sum())(w),
    "where": lambda g, x, y, w: jnp.where(x > 0, x, w[0]),
    "clip": lambda g, x, y, w: jnp.clip(x, -0.5, 0.5),
    "concat": lambda g, x, y, w: jnp.concatenate([x, x @ w], 1),
    "heads": lambda g, x, y, w: (x @ w).reshape(-1, 2, 2),
    "heads2": lambda g, x, y, w: (
        (x @ w).reshape(x.shape[0], 2, 2).transpose(0, 2, 1).reshape(x.shape[0], 4)
    ),
    "einsum_per_head": lambda g, x, y, w: jnp.einsum(
        "nhd,hde->nhe", x.reshape(-1, 2, 2), w.reshape(2, 2, 4)
    ),
    "einsum2": lambda g, x, y, w: jnp.einsum("nhd,hd->nh", x.reshape(-1, 2, 2), w[0].reshape(2, 2)),
    "einsum3": lambda g, x, y, w: jnp.einsum("df,nd->nf", w, x),
    "einsum4": lambda g, x, y, w: jnp.einsum("nd,df->fn", x, w).T,
    "einsum5": lambda g, x, y, w: jnp.einsum("nd,nd->n", x, x),
    "einsum6": lambda g, x, y, w: jnp.einsum("nd,ne->nde", x, x),
    "einsum7": lambda g, x, y, w: jnp.einsum("nd,ne->de", x, x),
    "einsum8": lambda g, x, y, w: jnp.einsum(
        "nhd,nhe->hde", x.reshape(-1, 2, 2), x.reshape(-1, 2, 2)
    ),
    "einsum_per_head_gradient": lambda g, x, y, w: jax.grad(
        lambda w: (jnp.einsum("nhd,hde->nhe", x.reshape(-1, 2, 2), w.reshape(2, 2, 4)) ** 2).sum()
    )(w),
    "xent": lambda g, x, y, w: (
        -jnp.take_along_axis(jax.nn.log_softmax(x @ w), y[:, None], 1).mean()
    ),
    "xentgrad": lambda g, x, y, w: jax.grad(
        lambda w, x: -jnp.take_along_axis(jax.nn.log_softmax(x @ w), y[:, None], 1).mean(), (0, 1)
    )(w, x),
    "acc": lambda g, x, y, w: (jnp.argmax(x @ w, -1) == y).mean(),
    "norm": lambda g, x, y, w: x / jnp.linalg.norm(x, axis=-1, keepdims=True),
    "normall": lambda g, x, y, w: jnp.linalg.norm(x),
    "xT": lambda g, x, y, w: (w @ x.T).T,
    "mat_vec": lambda g, x, y, w: x @ w[0],
    "lhsvec": lambda g, x, y, w: x[:, 0] @ x,
    "vmap": lambda g, x, y, w: jax.vmap(lambda r: jnp.sort(r) * w[0])(x),
    "vmapmm": lambda g, x, y, w: jax.vmap(lambda r: jnp.outer(r, w @ r))(x),
    "vmapidx": lambda g, x, y, w: jax.vmap(lambda r, k: r[k])(x, y),
    "vmapidx2": lambda g, x, y, w: jax.grad(lambda x: jax.vmap(lambda r, k: r[k] ** 2)(x, y).sum())(
        x
    ),
    "vmapset": lambda g, x, y, w: jax.vmap(lambda r, k: r.at[k].set(2.0))(x, y),
    "vmapadd": lambda g, x, y, w: jax.vmap(lambda r, k: r.at[k].add(2.0))(x, y),
    "col": lambda g, x, y, w: x[:, 1],
    "cols": lambda g, x, y, w: x[:, ::2],
    "colsel": lambda g, x, y, w: x[:, jnp.array([2, 0])],
    "colset": lambda g, x, y, w: x.at[:, 1].set(0.0),
    "coladd": lambda g, x, y, w: x.at[:, 1].add(1.0),
    "roll": lambda g, x, y, w: jnp.roll(x, 1, axis=1),
    "flip": lambda g, x, y, w: x[:, ::-1],
    "pad": lambda g, x, y, w: jnp.pad(x, ((0, 0), (1, 2))),
    "segmax": lambda g, x, y, w: jax.ops.segment_max(x, y, 4),
    "bincount": lambda g, x, y, w: jnp.bincount(y, length=4),
    "cumsum": lambda g, x, y, w: jnp.cumsum(x, 1),
    "reduceall": lambda g, x, y, w: (
        x.sum(),
        x.max(),
        x.min(),
        x.prod(),
        (x > 0).any(),
        (x > 0).all(),
        y.sum(),
        y.max(),
        y.min(),
    ),
    "std": lambda g, x, y, w: x.std(),
    "logsumexpN": lambda g, x, y, w: jax.nn.logsumexp(x, axis=0),
    "softmaxN": lambda g, x, y, w: jax.nn.softmax(x, axis=0),
    "arange": lambda g, x, y, w: jnp.arange(x.shape[0]) * 2,
    "arangef": lambda g, x, y, w: jnp.arange(x.shape[0], dtype=jnp.float32)[:, None] * x,
    "ones": lambda g, x, y, w: jnp.ones_like(x) + jnp.zeros((x.shape[0], 1)),
    "full": lambda g, x, y, w: jnp.full(x.shape, 3.0) + jnp.eye(4)[0],
    "stack": lambda g, x, y, w: jnp.stack([x, x * 2], 1).max(1),
    "expand": lambda g, x, y, w: (x[:, :, None] * x[:, None]).sum((0, 2)),
    "tile": lambda g, x, y, w: jnp.tile(x, (1, 3)),
    "repeat": lambda g, x, y, w: jnp.repeat(x, 2, axis=1),
    "split": lambda g, x, y, w: sum(jnp.split(x, 2, axis=1)),
    "degree": lambda g, x, y, w: x / jnp.sqrt(jnp.maximum(g.in_degree, 1))[:, None],
    "sortrow": lambda g, x, y, w: jnp.sort(x, axis=1),
    "argsort": lambda g, x, y, w: jnp.argsort(x, axis=1),
    "const": lambda g, x, y, w: (jnp.float32(3), w, x, y, 2.0),
    "stackaxis0": lambda g, x, y, w: jnp.stack([x, x * 2]).max(0),
    "matmul3": lambda g, x, y, w: x[:, None, :] @ w,
    "vectors": lambda g, x, y, w: _turned(g, jnp.stack([x, jnp.tanh(x)], 1), w),
    "vectors_gradient": lambda g, x, y, w: jax.grad(
        lambda x, w: (_turned(g, jnp.stack([x, jnp.tanh(x)], 1), w) ** 2).sum(), (0, 1)
    )(x, w),
    "polyval": lambda g, x, y, w: jnp.polyval(jnp.array([1.0, 2.0, 3.0]), x),
    "median": lambda g, x, y, w: jnp.median(x, axis=1),
    "quantile": lambda g, x, y, w: jnp.quantile(x, 0.3, axis=1),
    "digitize": lambda g, x, y, w: jnp.digitize(x, jnp.array([-1.0, 0.0, 1.0])),
    "searchsorted": lambda g, x, y, w: jnp.searchsorted(jnp.array([-1.0, 0.0, 1.0]), x[:, 0]),
    "cond": lambda g, x, y, w: jax.lax.cond(w[0, 0] > 0, lambda: w * 2, lambda: w) + x.sum(),
    "while": lambda g, x, y, w: jax.lax.fori_loop(0, 3, lambda i, a: a * 2, w) + x.sum(),
    "whilex": lambda g, x, y, w: jax.lax.fori_loop(0, 3, lambda i, a: a * 2 + i, x),
    "scan": lambda g, x, y, w: jax.lax.scan(
        lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3
    )[0],
    "scanxs": lambda g, x, y, w: jax.lax.scan(lambda c, w: (jnp.tanh(c * w), w.sum()), x, w),
    "scangrad": lambda g, x, y, w: jax.grad(
        lambda w: jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0].sum()
    )(w),
    "scanxsgrad": lambda g, x, y, w: jax.grad(
        lambda w: jax.lax.scan(lambda c, w: (jnp.tanh(c * w), None), x, w)[0].sum()
    )(w),
    "condx": lambda g, x, y, w: jax.lax.cond(w[0, 0] > 0, lambda: x * 2, lambda: x),
    "fft": lambda g, x, y, w: jnp.abs(jnp.fft.fft(x, axis=1)),
    "cosine": lambda g, x, y, w: jnp.sum(x * x, axis=1) / (jnp.linalg.norm(x, axis=1) ** 2),
    "cov": lambda g, x, y, w: jnp.cov(x.T),
    "mask": lambda g, x, y, w: (
        jnp.where((y == 2)[:, None], x, 0).sum(0) / jnp.maximum((y == 2).sum(), 1)
    ),
    "convert": lambda g, x, y, w: x.astype(jnp.bfloat16).sum(0),
    "bf16mm": lambda g, x, y, w: jnp.dot(
        x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32
    ),
    "bf16tt": lambda g, x, y, w: jnp.dot(
        x.astype(jnp.bfloat16).T, x.astype(jnp.bfloat16), preferred_element_type=jnp.float32
    ),
    "xlogy": lambda g, x, y, w: (
        jax.scipy.special.xlogy(jnp.abs(x), 2.0) + jax.nn.gelu(x) + jax.nn.softplus(x)
    ),
    "count_nonzero": lambda g, x, y, w: jnp.count_nonzero(x > 0),
    "isnan": lambda g, x, y, w: jnp.nan_to_num(x / 0.0),
    "xor": lambda g, x, y, w: jnp.bitwise_xor.reduce(y),
    "sumint": lambda g, x, y, w: (x > 0).sum(0),
    "argmaxgrad": lambda g, x, y, w: jax.grad(lambda x: x.max())(x),
    "axis0maxgrad": lambda g, x, y, w: jax.grad(lambda x: x.max(0).sum())(x),
    "sortgrad": lambda g, x, y, w: jax.grad(lambda x: (jnp.sort(x, 1) * w[0]).sum())(x),
    "topkgrad": lambda g, x, y, w: jax.grad(lambda x: (jax.lax.top_k(x, 2)[0] * w[0, :2]).sum())(x),
    "cumsumgrad": lambda g, x, y, w: jax.grad(lambda x: (jnp.cumsum(x, 1) ** 2).sum())(x),
    "cummaxgrad": lambda g, x, y, w: jax.grad(lambda x: (jax.lax.cummax(x, 1) ** 2).sum())(x),
    "fold": lambda g, x, y, w: x.T[0],
    "second_derivative": lambda g, x, y, w: jax.hessian(lambda a: ((x @ (w + a)) ** 3).sum())(
        jnp.zeros(())
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_as_on_whole_arrays(name):
    """In blocks of 4, 4 and 3 rows."""
    fn = CASES[name]
    assert_same(in_parts(fn, EDGES, X, Y, W, parts=3), in_memory(fn, EDGES, X, Y, W))


@pytest.mark.parametrize("name", ["batchnorm", "einsum_per_head", "scanxs", "reduceall"])
def test_in_one_block(name):
    fn = CASES[name]
    assert_same(in_parts(fn, EDGES, X, Y, W, parts=1), in_memory(fn, EDGES, X, Y, W))


def test_rows_in_another_order_are_neither_sorted_nor_unique():
    """What holds in the user's order of the vertices does not in the graph's."""
    rank = np.argsort(RNG.permutation(N))

    def fn(g: Any, sections: Any, once: Any, x: Any) -> Any:
        sums = jax.ops.segment_sum(x, sections, 4, indices_are_sorted=True)
        table = jnp.zeros((N + 1, F)).at[once].add(x, unique_indices=True)
        return sums, table[: N // 2], jnp.arange(x.shape[0]) * 2

    args = (PerVertex(np.sort(Y.rows)), PerVertex(np.arange(N, dtype=np.int32)), X)
    graph = EDGES.streamed(order=rank)
    assert_same(in_parts(fn, graph, *args, parts=3), in_memory(fn, EDGES, *args))


@pytest.mark.parametrize("fn", [
    lambda g, x: jnp.log(x).sum(0),
    lambda g, x: (1 / x).max(0),
    lambda g, x: (1 / -x).min(),
    lambda g, x: (x / x).prod(0),
    lambda g, x: jnp.isfinite(1 / x).all(),
    lambda g, x: jnp.isnan(x / x).any(),
    lambda g, x: (1 / x).T @ jnp.log(x),
    lambda g, x: jnp.einsum("nh,nh->h", 1 / x, x),
    lambda g, x: jax.grad(lambda w: (w[jnp.isnan(x[:, 0] / x[:, 0]).astype(int)] / x).sum())(W),
    lambda g, x: jax.grad(lambda w: ((1 / x) @ w).sum())(W),
    lambda g, x: jax.ops.segment_max(1 / x, (x[:, 0] > 1).astype(int), 2),
], ids=range(11))  # fmt: skip
def test_what_padding_computes_counts_for_nothing(fn):
    """It is rows of zeros here, of which these make infinities and NaN."""
    x = PerVertex(np.abs(X.rows) + 0.5)
    assert_same(in_parts(fn, EDGES, x, parts=3), in_memory(fn, EDGES, x))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_vertices_have_does_count(value):
    rows = X.rows.copy()
    rows[N - 1, 2] = value

    def fn(g: Any, x: Any) -> Any:
        return x.sum(0), x.max(0), x.min(), x.T @ x, jnp.isnan(x).any()

    x = PerVertex(rows)
    assert_same(in_parts(fn, EDGES, x, parts=3), in_memory(fn, EDGES, x))


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_reductions_of_integers(dtype):
    def fn(g: Any, x: Any) -> Any:
        found = [jnp.bitwise_and.reduce(x, axis=0), jnp.bitwise_or.reduce(x, axis=0)]
        if x.dtype != jnp.bool_:
            found += [jnp.bitwise_xor.reduce(x, axis=0), x.max(0), x.min(0), x.sum(0), x.prod(0)]
        return found

    x = PerVertex((RNG.integers(0, 100, (N, F)) | 1).astype(dtype))
    assert_same(in_parts(fn, EDGES, x, parts=3), in_memory(fn, EDGES, x))


# -------------------------------------------------------------------------------------- mistakes


@pytest.fixture(scope="module")
def graph() -> StreamedGraph:
    return EDGES.streamed()


KEY = jax.random.key(0)
PER_VERTEX = np.ones((N, F), np.float32)

BY_ROW = (
    "cannot be done some rows at a time: expected operations on each vertex by itself, sums and "
    "maxima over all vertices, and layers. Do it outside of the streamed function, or as a layer"
)
RANDOM = (
    "random_bits(key<fry>[]) -> uint32[vertices, 4] cannot be done some rows at a time: jax.random "
    "draws all rows at once. Use gnnjit.dropout or gnnjit.random_uniform in a layer, which draw by "
    "vertex"
)
SIZES = (
    ", expected that at most one of its sizes follows the number of vertices or edges, and is that "
    "number: keep one row a vertex"
)
DEPENDS = (
    " depends on the number of vertices or edges, expected the same for every graph: pass arrays "
    "of the graph as arguments of the streamed function, and sizes as numbers"
)
ABSENT = (
    "the edges of a streamed graph are not at hand inside the function: use layers, "
    "graph.in_degree and graph.out_degree (a layer that returns what a source has, edge by edge, "
    "looks at them too), or work on the edges before, outside of it"
)

MISTAKES: dict[str, tuple[Function, str]] = {
    "cumsum": (
        lambda g, x: jnp.cumsum(x, 0),
        f"cumsum(float32[vertices, 4]) -> float32[vertices, 4] {BY_ROW}",
    ),
    "reversed": (
        lambda g, x: x[::-1],
        f"rev(float32[vertices, 4]) -> float32[vertices, 4] {BY_ROW}",
    ),
    "sorted": (
        lambda g, x: jnp.sort(x, axis=0),
        f"sort(float32[vertices, 4]) -> float32[vertices, 4] {BY_ROW}",
    ),
    "ten rows": (lambda g, x: x[:10], f"slice(float32[vertices, 4]) -> float32[10, 4] {BY_ROW}"),
    "a row": (lambda g, x: x[0], f"slice(float32[vertices, 4]) -> float32[1, 4] {BY_ROW}"),
    "a row set": (
        lambda g, x: x.at[3].set(0.0),
        f"scatter(float32[vertices, 4], int32[1], float32[4]) -> float32[vertices, 4] {BY_ROW}",
    ),
    "argmax": (
        lambda g, x: jnp.argmax(x[:, 0]),
        f"argmax(float32[vertices]) -> int32[] {BY_ROW}",
    ),
    "all pairs": (
        lambda g, x: (x @ x.T).sum(),
        f"the result of dot_general is float32[vertices, vertices]{SIZES}",
    ),
    "flat": (lambda g, x: x.reshape(-1), f"the result of reshape is float32[44]{SIZES}"),
    "without the first": (lambda g, x: x[1:], f"the result of slice is float32[10, 4]{SIZES}"),
    "normal": (lambda g, x: x + jax.random.normal(KEY, x.shape), RANDOM),
    "bernoulli": (lambda g, x: x * jax.random.bernoulli(KEY, 0.5, x.shape), RANDOM),
    "nnx.Dropout": (lambda g, x: nnx.Dropout(0.5, rngs=nnx.Rngs(0))(x), RANDOM),
    "a closed-over array": (lambda g, x: x * PER_VERTEX, f"an array{DEPENDS}"),
    "a loop over vertices": (
        lambda g, x: sum(i * x for i in range(x.shape[0])),
        f"the code{DEPENDS}",
    ),
    "a condition on N": (
        lambda g, x: x * 2 if x.shape[0] % 2 else jnp.sin(x),
        f"the code{DEPENDS}",
    ),
    "the edges": (lambda g, x: x[g.src], ABSENT),
    "their structure": (lambda g, x: g.in_structure.indptr, ABSENT),
    "a transposed result": (
        lambda g, x: x.T,
        "a result is float32[4, vertices], expected the vertices along its first axis: transpose "
        "it",
    ),
    "a while loop": (
        lambda g, x: jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2, x),
        "while has float32[vertices, 4] among its values, expected no array of vertices or edges "
        "in a loop whose length is not known beforehand: use a loop of fixed length",
    ),
    "a scan of rows": (
        lambda g, x: jax.lax.scan(lambda c, r: (c + r, None), jnp.zeros(4), x)[0],
        "a scan goes over the rows of float32[vertices, 4], expected values that are the same for "
        "all vertices: these have no order here, use a layer",
    ),
    "a long loop": (
        lambda g, x: jax.lax.fori_loop(0, 300, lambda i, c: c * 2, x),
        "a scan of 300 steps over vertices or edges, expected 1 to 256, as many for every graph: "
        "loop outside of the streamed function",
    ),
}


def lines_of(fn: Function) -> list[int]:
    return [line for *_, line in fn.__code__.co_lines() if line]


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told(graph, name):
    fn, message = MISTAKES[name]
    with pytest.raises(StreamError) as error:
        in_parts(fn, graph, X, parts=3)
    found = re.fullmatch(r"test_rowwise\.py:(\d+): (.*)", str(error.value))
    assert found is not None, str(error.value)
    assert found[2] == message
    assert int(found[1]) in lines_of(fn)


def test_boolean_indices_are_refused_by_jax(graph):
    with pytest.raises(jax.errors.NonConcreteBooleanIndexError):
        in_parts(lambda g, x: x[x[:, 0] > 0], graph, X, parts=3)


def refused(message: str) -> Any:
    return pytest.raises(StreamError, match=f"^{re.escape(message)}$")


def test_an_array_of_another_graph(graph):
    (x,) = on_graph(EDGES.streamed(), [X])
    function = stream(lambda g, x: x, memory_budget="1GiB", parts=1)
    with refused(
        f"{x!r} belongs to another graph than the one that came with it: put the rows into this "
        "graph"
    ):
        function(graph, x)


@pytest.mark.parametrize("count", [0, 2])
def test_one_graph_it_has_to_be(count):
    function = stream(lambda *args: args, memory_budget="1GiB", parts=1)
    with refused(
        f"a streamed function got {count} streamed graphs among its arguments, expected one: make "
        "it with StreamedGraph.from_edges"
    ):
        function(*[edges([0], [1], 2).streamed() for _ in range(count)])


def test_an_argument_that_is_no_array(graph):
    function = stream(lambda g, name: g.in_degree, memory_budget="1GiB", parts=1)
    with refused(
        "an argument of a streamed function is a str, expected arrays, numbers, a StreamedGraph "
        "and its arrays: bind anything else with functools.partial"
    ):
        function(graph, "relu")
