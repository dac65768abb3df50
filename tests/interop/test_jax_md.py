"""Neighbour lists in the forms that jax-md gives them."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import GraphError
from gnnjit.geometry import radius
from gnnjit.interop.jax_md import from_neighbor_list

X = np.random.default_rng(0).uniform(size=(12, 3)).astype(np.float32)
PAIRS = np.stack([np.asarray(a) for a in (radius(X, 0.4).src, radius(X, 0.4).dst)])


def neighbors(kind):
    """As jax-md fills them: 12, the number of particles, where there is no neighbour."""
    if kind == "Dense":
        idx = np.full((12, 9), 12, np.int32)
        for v in range(12):
            own = PAIRS[0, PAIRS[1] == v]
            idx[v, : len(own)] = own
    else:
        own = PAIRS if kind == "Sparse" else PAIRS[:, PAIRS[0] < PAIRS[1]]
        idx = np.concatenate([own, np.full((2, 5), 12)], axis=1).astype(np.int32)
    named = types.SimpleNamespace(name=kind)
    return types.SimpleNamespace(idx=idx, reference_position=X, format=named)


@gnnjit.layer
def total(v, e):
    return gnnjit.sum(e.src * v)


@pytest.mark.parametrize("kind", ["Dense", "Sparse", "OrderedSparse"])
def test_the_pairs_and_gradients_of_a_list(kind):
    given = neighbors(kind)
    graph = from_neighbor_list(given)
    keep = np.asarray(graph.mask)
    found = sorted(zip(*np.stack([graph.src, graph.dst])[:, keep].tolist(), strict=True))
    assert found == sorted(zip(*PAIRS.tolist(), strict=True))

    def energy(x, idx):
        made = types.SimpleNamespace(idx=idx, reference_position=X, format=given.format)
        return jnp.square(total(from_neighbor_list(made), x)).sum()

    plain = jax.grad(lambda x: jnp.square(jnp.zeros_like(x).at[PAIRS[1]].add(
        x[PAIRS[0]] * x[PAIRS[1]])).sum())(X)  # fmt: skip
    np.testing.assert_allclose(jax.jit(jax.grad(energy))(X, given.idx), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["Dense", "Sparse", "OrderedSparse"])
def test_lists_of_jax_md_itself(kind):
    md = pytest.importorskip("jax_md", reason="needs jax-md")
    apart, _ = md.space.periodic(1.0)
    form = getattr(md.partition, kind)
    found = md.partition.neighbor_list(apart, 1.0, 0.3, 0.0, format=form).allocate(jnp.asarray(X))
    graph = from_neighbor_list(found)
    keep, expected = np.asarray(graph.mask), radius(X, 0.3, box=1.0)
    pairs = sorted(zip(*np.stack([graph.src, graph.dst])[:, keep].tolist(), strict=True))
    assert pairs == sorted(zip(*np.stack([expected.src, expected.dst]).tolist(), strict=True))


def test_what_is_no_list_is_refused():
    with pytest.raises(GraphError, match="got a ndarray without idx, expected a jax-md Neighbor"):
        from_neighbor_list(np.zeros((3, 3)))
