"""The kernel of all edges against NumPy: sums over the whole graph, values on the edges."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas import INTERPRET, numeric

from pallas_kernels import edges
from pallas_kernels.rows import TileConfig
from pallas_kernels.traversal import DOT, TileOperand, TileOutput, TileProgram

F32 = np.dtype(np.float32)
pytestmark = numeric
N, F, G = 7, 3, 20


@pytest.fixture(autouse=True)
def exact_products():
    """A GPU would round the factors to 10 bits."""
    with jax.default_matmul_precision("highest"):
        yield


def body(tiles):
    near, far, w, scale = tiles
    product = near * far * scale
    return enumerate([product, product, product, _wide(near), w[:, None] * far])


def _wide(x):
    """Two vectors whose outer product is summed, padded as a matrix product needs it."""
    at = jnp.arange(DOT)[None, :, None] == jnp.arange(x.shape[1])[None, None, :]
    left = jnp.sum(jnp.where(at & (jnp.arange(DOT) < F)[None, :, None], x[:, None, :], 0), axis=2)
    right = jnp.ones((x.shape[0], 32), x.dtype)
    return left, jnp.where(jnp.arange(32) < G, right, 0)


TRAVERSAL = TileProgram(
    body,
    (
        TileOperand("row", (F,), F32),
        TileOperand("neighbor", (F,), F32),
        TileOperand("edge", (), F32),
        TileOperand("shared", (F,), F32),
    ),
    (
        TileOutput("sum", (F,), F32),
        TileOutput("max", (F,), F32),
        TileOutput("min", (F,), F32),
        TileOutput("outer_sum", (F, G), F32),
        TileOutput(None, (F,), F32),
    ),
)


@pytest.mark.parametrize("programs", [1, 3, 512])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [1, 50])
def test_sums_over_the_graph(count, masked, programs, monkeypatch):
    monkeypatch.setattr(edges, "MAX_PROGRAMS", programs)
    rng = np.random.default_rng(0)
    row, neighbor = rng.integers(0, N, (2, count)).astype(np.int32)
    mask = rng.random(count) < 0.5 if masked else None
    x = rng.normal(size=(N, F)).astype(F32)
    w, scale = rng.normal(size=count).astype(F32), rng.normal(size=F).astype(F32)
    have = jax.jit(
        lambda *arrays: edges.run(
            TRAVERSAL, row, neighbor, mask, arrays, TileConfig(lanes=16), interpret=INTERPRET
        )
    )(x, x, w, scale)
    keep = np.ones(count, bool) if mask is None else mask
    product = (x[row] * x[neighbor] * scale)[keep]
    on_edges = np.where(keep[:, None], w[:, None] * x[neighbor], 0)
    some = bool(keep.any())
    want = [
        product.sum(0),
        product.max(0) if some else np.zeros(F),
        product.min(0) if some else np.zeros(F),
        np.outer(x[row][keep].sum(0), np.ones(G)),
        on_edges,
    ]
    for a, b in zip(have, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_without_edges():
    none = np.zeros(0, np.int32)
    arrays = [np.ones((N, F), F32)] * 2 + [np.ones(0, F32), np.ones(F, F32)]
    out = edges.run(TRAVERSAL, none, none, None, arrays, TileConfig(), interpret=INTERPRET)
    assert [o.shape for o in out] == [(F,), (F,), (F,), (F, G), (0, F)]
    assert not any(np.asarray(o).any() for o in out)
