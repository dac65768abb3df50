"""Scores against the plainest loops that compute them."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.training import metrics


def plain_f1(both: float, said: float, true: float) -> float:
    return 2 * both / (said + true) if said + true else 0.0


@pytest.mark.parametrize("several", [False, True])
def test_f1(several: bool) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, 4)).astype(np.float32)
    logits[:, 3] = -9  # a class that is never said, and not true either below
    if several:
        labels = rng.random((40, 4)) < 0.3
        labels[:, 3] = False
        said, true = logits > 0, labels
    else:
        labels = rng.integers(0, 3, 40).astype(np.int32)
        said, true = np.eye(4)[logits.argmax(1)] > 0, np.eye(4)[labels] > 0
    split = rng.integers(0, 3, 40)
    found = metrics.class_counts(jnp.asarray(logits), jnp.asarray(labels), jnp.eye(3)[split])
    for i in range(3):
        s, t = said[split == i], true[split == i]
        counts = [(float((s & t)[:, c].sum()), s[:, c].sum(), t[:, c].sum()) for c in range(4)]
        parts = found["both"], found["said"], found["true"]
        assert metrics.macro_f1(*parts)[i] == pytest.approx(np.mean([plain_f1(*c) for c in counts]))
        assert metrics.micro_f1(*parts)[i] == pytest.approx(plain_f1(*np.sum(counts, axis=0)))


def test_known_counts_say_the_most_likely_labels() -> None:
    logits = jnp.array([[0.1, -1.0, 3.0], [-3.0, -2.0, -1.0], [1.0, 2.0, 3.0]])
    labels = jnp.array([[True, False, True], [True, False, False], [False] * 3])
    found = metrics.class_counts(logits, labels, jnp.ones((3, 1)))
    np.testing.assert_array_equal(found["known said"][:, 0], [1, 0, 2])
    np.testing.assert_array_equal(found["known both"][:, 0], [1, 0, 1])


def plain_rank(scores: np.ndarray, target: int, left_out: set[int]) -> float:
    others = [s for i, s in enumerate(scores) if i != target and i not in left_out]
    higher = sum(s > scores[target] for s in others)
    return 1 + higher + sum(s == scores[target] for s in others) / 2


def test_ranks_with_ties_and_known_answers() -> None:
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 4, (6, 9)).astype(np.float32)  # many ties
    scores[5] = 0.0  # all alike: the middle
    target = rng.integers(0, 9, 6)
    known = [set(rng.choice(9, n, replace=False)) for n in (0, 1, 3, 8, 9, 2)]
    pairs = [(q, e) for q, some in enumerate(known) for e in some] + [(6, 0), (6, 3)]  # padding
    query, entity = (jnp.array(column) for column in zip(*pairs, strict=True))
    found = metrics.ranks(jnp.asarray(scores), jnp.asarray(target), query, entity)
    for q in range(6):
        assert found.raw[q] == plain_rank(scores[q], target[q], set())
        assert found.filtered[q] == plain_rank(scores[q], target[q], known[q])
    assert found.raw[5] == 5
    np.testing.assert_array_equal(metrics.hits_at(found.raw, 3), np.asarray(found.raw) <= 3)


def test_a_model_of_nan_is_no_good_one() -> None:
    none = jnp.zeros(0, jnp.int32)
    scores = jnp.array([[jnp.nan, 1.0, jnp.nan], [jnp.nan, 1.0, 2.0], [jnp.nan] * 3])
    found = metrics.ranks(scores, jnp.array([0, 1, 2]), none, none)
    np.testing.assert_array_equal(found.raw, [2.5, 2.0, 2.0])


def plain_ndcg(hits: list[bool], count: int) -> float:
    k = len(hits)
    ideal = sum(1 / math.log2(i + 2) for i in range(min(k, count)))
    return sum(1 / math.log2(i + 2) for i, hit in enumerate(hits) if hit) / ideal if ideal else 0.0


def test_recall_and_ndcg() -> None:
    rng = np.random.default_rng(2)
    hit = rng.random((8, 5)) < 0.4
    count = np.maximum(hit.sum(axis=1) + rng.integers(0, 9, 8), 1)
    hit[0], count[0] = False, 0  # nothing to be found
    recall, ndcg = metrics.recall_at(hit, count), metrics.ndcg_at(hit, count)
    for q in range(8):
        assert recall[q] == pytest.approx(hit[q].sum() / max(count[q], 1))
        assert ndcg[q] == pytest.approx(plain_ndcg(list(hit[q]), count[q]), rel=1e-6)


def test_errors_of_numbers() -> None:
    said, true = jnp.array([[1.0], [4.0], [0.0]]), jnp.array([[2.0], [2.0], [0.0]])
    weights = jnp.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = metrics.squares(said, true, weights)
    count = weights.sum(axis=0)
    np.testing.assert_allclose(metrics.rmse(found["squared"], count), [math.sqrt(2.5), 0, 0])
    np.testing.assert_allclose(metrics.mae(found["absolute"], count), [1.5, 0, 0])


def test_hits_among_drawn_answers_are_their_chance() -> None:
    """The sum of a binomial distribution: at most 1 of 4 that are drawn is better."""
    share = np.array([0, 0.25, 1], np.float32)
    found = np.asarray(metrics.hits_among(jnp.asarray(share), k=2, drawn=4))
    expected = [sum(math.comb(4, i) * p**i * (1 - p) ** (4 - i) for i in (0, 1)) for p in share]
    np.testing.assert_allclose(found, expected, atol=1e-6)
