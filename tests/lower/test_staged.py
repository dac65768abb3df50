"""Edge networks in two stages, on a CPU: XLA over the edges, the kernel of rows interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.lower import choose
from gnnjit.lower.xla import staged

F, N, E = 32, 12, 70
RNG = np.random.default_rng(0)
SRC, DST = RNG.integers(0, N, E), RNG.integers(0, N - 2, E)  # two vertices without edges
W = jnp.asarray(RNG.normal(size=(2, F, F)) / 6, jnp.float32)
X = jnp.asarray(RNG.normal(size=(N, F)), jnp.float32)
DATA = jnp.asarray(RNG.normal(size=(E, F)), jnp.float32)


def _message(v: Any, e: Any, w: Any) -> Any:
    return jnp.tanh(e.data @ w[0] + e.src - v) @ w[1]


@gnnjit.layer
def network(v: Any, e: Any, w: Any) -> Any:
    """Sums into rows, and values that stay on the edges."""
    message = _message(v, e, w)
    return v + gnnjit.sum(message), e.data + message


@gnnjit.layer
def attention(v: Any, e: Any, w: Any) -> Any:
    """A softmax whose scores are products on the edges."""
    message = _message(v, e, w)
    return gnnjit.sum(gnnjit.softmax(jnp.sum(message)) * message) + gnnjit.max(message)


@gnnjit.layer
def twice(v: Any, e: Any, w: Any) -> Any:
    """The gradient of `w[0]` is the sum of two outer products of an edge."""
    return gnnjit.sum(jnp.tanh(jnp.tanh(e.data @ w[0] + e.src) @ w[0] + v))


@gnnjit.layer
def tensor_product(v: Any, e: Any, w: Any) -> Any:
    """No matrix, but wide values that are cut: 256 numbers of an edge."""
    parts = jnp.split(jnp.tanh(jnp.outer(e.data[:16], e.src[:16]).reshape(256)), 4)
    return gnnjit.sum(parts[0] * parts[1] + parts[2] * parts[3]) * w[0, 0, 0] + v[0]


LAYERS = [network, attention, twice, tensor_product]


def both(layer: Any, graph: gnnjit.Graph, data: Any, kernel: str) -> tuple[Any, set[str]]:
    """Outputs and gradients of a sum over them, and the lowerings that ran."""
    ran: set[str] = set()

    def spy(*args: Any, choose: Callable[..., choose.Choice] = choose.choose) -> choose.Choice:
        found = choose(*args)
        ran.add(found.kernel)
        return found

    def loss(w: Any, x: Any, data: Any) -> tuple[Any, Any]:
        out = layer(graph, x, w, edges=data)
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(out)), out

    with pytest.MonkeyPatch.context() as patch, choose.prefer(kernel):
        patch.setattr(choose, "choose", spy)
        run = jax.jit(lambda *args: jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*args))
        return run(W, X[: graph.num_nodes], data), ran


@pytest.mark.long
@pytest.mark.parametrize(("chunk", "padded"), [(1 << 30, False), (13 * 256, True)])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_values_and_gradients(layer, chunk, padded, monkeypatch):
    """All edges at once, and in chunks whose number does not divide them."""
    monkeypatch.setattr(staged, "CHUNK_SCALARS_STAGED", chunk)
    graph, data = gnnjit.Graph.from_edges(SRC, DST, num_nodes=N), DATA
    if padded:
        graph = graph.pad(num_nodes=N, num_edges=E + 9)
        data = jnp.pad(DATA, ((0, 9), (0, 0)), constant_values=7.0)
    want, _ = both(layer, graph, data, "segment")
    have, ran = both(layer, graph, data, "staged")
    assert "staged" in ran
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.abs(b).max() + 1))


def test_no_edges():
    none = np.zeros(0, int)
    have, ran = both(network, gnnjit.Graph.from_edges(none, none, num_nodes=N), DATA[:0], "staged")
    assert "staged" in ran
    (_, (rows, edges)), (of_w, _, _) = have
    np.testing.assert_array_equal(rows, X)
    assert edges.shape == (0, F)
    assert not np.asarray(of_w).any()


def test_an_array_beyond_the_limit_is_not_written():
    graph = gnnjit.Graph.from_edges(SRC, DST, num_nodes=N)
    requests = []

    def keep(op: Any, *args: Any, choose: Any = choose.choose) -> Any:
        requests.append(op)
        return choose(op, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "choose", keep)
        jax.jit(lambda x, data: network(graph, x, W, edges=data)).lower(X, DATA)
    op = next(op for op in requests if staged.is_meant(op.body) and any(op.reductions))
    fits, small = (choose.requested(op, graph, "cuda", limit) for limit in (E * F, E * F - 1))
    assert staged.why_not(fits) == []
    assert staged.why_not(small) == [f"rows would read {E * F} scalars of {E} edges from an array"]
