"""Scores of links by paths, against loops over paths on plain arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit.data import LinkDataset
from gnnjit.errors import LayerError
from gnnjit.nn.recipes import PathPredictor
from gnnjit.training.link_prediction import both_ways

HEAD, TAIL = np.array([0, 0, 1, 2, 3, 4, 1]), np.array([1, 2, 3, 3, 4, 5, 4])
EMPTY = np.zeros((0, 3), np.int32)


def known():
    links = np.stack([HEAD, np.zeros_like(HEAD), TAIL], axis=1).astype(np.int32)
    return both_ways(LinkDataset("some", 7, links, EMPTY, EMPTY), links)


def plain(model, left_out, vertex, of_tail):
    """By powers of the adjacency matrix."""
    kept = np.setdiff1d(np.arange(len(HEAD)), left_out)
    directed = np.zeros((7, 7))
    directed[HEAD[kept], TAIL[kept]] = 1
    as_tail, as_head = directed.sum(0), directed.sum(1)
    degree = np.maximum(as_tail + as_head, 1)
    seen = np.log(np.stack([1 + as_tail, 1 + as_head, degree], axis=1)) / 3
    learned = np.asarray(model.outer(jnp.tanh(model.inner(jnp.asarray(seen)))))
    way, n = int(of_tail), 2 * model.hops
    power, level = np.asarray(model.power[...])[way], np.asarray(model.level[...])[way]
    weight = np.exp(learned[:, way * n : (way + 1) * n] + level) * degree[:, None] ** power
    reached, both = np.eye(7)[vertex], directed + directed.T
    total = weight[:, model.hops].copy()
    for k in range(model.hops):
        reached = both @ (weight[:, k] * reached)
        if k > 0:
            total += weight[:, model.hops + k] * reached
    return np.log(total)


def test_scores_are_those_of_paths():
    model = PathPredictor(3, hidden=4, rngs=nnx.Rngs(0))
    kept = np.ones(14, np.float32)
    kept[[2, 9]] = 0  # the link from 1 to 3, both ways
    vertex, of_tail = jnp.array([1, 4]), jnp.array([True, False])
    found = jax.jit(lambda kept: model(known(), vertex, of_tail, kept=kept))(kept)
    expected = [plain(model, [2], 1, True), plain(model, [2], 4, False)]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-4)


def test_it_begins_as_resource_allocation():
    model = PathPredictor(2, rngs=nnx.Rngs(0))
    scores = np.exp(np.asarray(model(known(), jnp.array([0]), jnp.array([True]))))[0]
    degree = np.bincount(np.concatenate([HEAD, TAIL]))
    assert scores[3] / scores[4] == pytest.approx(
        (1 / degree[1] + 1 / degree[2]) / (1 / degree[1]), rel=0.2
    )
    assert scores[3] > 50 * scores[5]  # which no path of two edges leads to


def test_errors():
    with pytest.raises(LayerError, match="PathPredictor: hops is 1, expected a whole number"):
        PathPredictor(1, rngs=nnx.Rngs(0))
