"""Learning from points, one at a time, is fitting all of them at once."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from gnnjit.cost.kinds import NAMES
from gnnjit.cost.learner import Learner, fitted
from gnnjit.cost.model import CostModel, Work
from gnnjit.errors import CostError

K = len(NAMES)
PRIOR = CostModel(np.linspace(1e-6, 2e-6, K))
SEEDS = st.integers(0, 2**32 - 1)


def known(rng: np.random.Generator) -> CostModel:
    """Weights over four decades about the prior's, some of them 0."""
    return CostModel(10.0 ** rng.uniform(-8, -4, K) * (rng.random(K) < 0.8))


def points(rng: np.random.Generator, model: CostModel, noise: float) -> list[tuple[Work, float]]:
    """Work in which no feature always comes with the same others, and which takes time."""
    weights = np.where(model.weights > 0, model.weights, PRIOR.weights)
    units = 10.0 ** rng.uniform(0, 1, K) / weights  # a feature's share of the time is not lost
    features = units * rng.uniform(0, 1, (6 * K, K)) * (rng.random((6 * K, K)) < 0.3)
    features[:K] += np.diag(units)
    works = [Work(row) for row in features]
    times = [model.seconds(w) * float(np.exp(noise * rng.standard_normal())) for w in works]
    return [(w, t) for w, t in zip(works, times, strict=True) if t > 0]


def learn(found: list[tuple[Work, float]], learner: Learner | None = None) -> Learner:
    learner = learner or Learner(PRIOR)
    for work, seconds in found:
        learner.observe(work, seconds)
    return learner


def rms(model: CostModel, found: list[tuple[Work, float]]) -> float:
    return float(np.sqrt(np.mean([(model.seconds(w) / t - 1) ** 2 for w, t in found])))


def batch(found: list[tuple[Work, float]]) -> CostModel:
    """The model that fits all points at once; columns are scaled to equal size for the solver."""
    rows = np.array([w.vector / t for w, t in found])
    size = np.linalg.norm(rows, axis=0)
    size[size == 0] = 1
    return CostModel(nnls(rows / size, np.ones(len(rows)))[0] / size)


@given(SEEDS)
def test_known_weights_are_recovered(seed):
    rng = np.random.default_rng(seed)
    model = known(rng)
    found = points(rng, model, noise=0)
    learned = learn(found).model()
    assert rms(learned, found) < 1e-6
    tolerance = 1e-6 * PRIOR.weights.max()
    np.testing.assert_allclose(learned.weights, model.weights, rtol=1e-4, atol=tolerance)


@given(SEEDS)
def test_recursive_is_batch(seed):
    rng = np.random.default_rng(seed)
    found = points(rng, known(rng), noise=0.3)
    recursive, whole = learn(found).model(), batch(found)
    assert rms(recursive, found) == pytest.approx(rms(whole, found), rel=1e-5)
    times = [(recursive.seconds(w), whole.seconds(w)) for w, _ in found]
    np.testing.assert_allclose(*np.array(times).T, rtol=1e-3)


@given(SEEDS, st.floats(0, 2), st.integers(1, 3 * K))
def test_weights_are_never_negative(seed, noise, count):
    rng = np.random.default_rng(seed)
    learned = learn(points(rng, known(rng), noise)[:count]).model()
    assert (learned.weights >= 0).all()
    assert np.isfinite(learned.weights).all()


@given(SEEDS)
def test_the_order_of_points_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    found = points(rng, known(rng), noise=0.3)
    one, two = learn(found).model(), learn(found[::-1]).model()
    times = [(one.seconds(w), two.seconds(w)) for w, _ in found]
    np.testing.assert_allclose(*np.array(times).T, rtol=1e-5)


@given(SEEDS, st.sets(st.integers(0, K - 1), min_size=1))
def test_features_never_seen_keep_the_prior(seed, unseen):
    rng = np.random.default_rng(seed)
    keep = ~np.isin(np.arange(K), list(unseen))
    found = [(Work(w.vector * keep), t) for w, t in points(rng, known(rng), noise=0.3)]
    learned = learn([(w, t) for w, t in found if w]).model()
    assert (learned.weights[~keep] == PRIOR.weights[~keep]).all()


def test_what_points_cannot_tell_apart_stays_near_the_prior():
    """Two features in a fixed proportion: any split of the time fits."""
    work = Work(np.eye(K)[0] + np.eye(K)[1])
    found = [(work * n, 3 * n * PRIOR.seconds(work)) for n in (1, 2, 4)]
    weights = learn(found).model().weights
    assert weights[0] - PRIOR.weights[0] == pytest.approx(weights[1] - PRIOR.weights[1], rel=1e-3)
    assert weights[0] + weights[1] == pytest.approx(3 * PRIOR.seconds(work))


def test_without_points_the_model_is_the_prior():
    assert Learner(PRIOR).model() == PRIOR
    weights = Learner.from_prior(PRIOR, 2.0).model().weights
    np.testing.assert_allclose(weights, PRIOR.weights, rtol=1e-9)


def test_strength_counts_as_points():
    """Three points at twice the prior's time count beside `strength` points of the prior."""
    work, seconds = Work(np.eye(K)[0]), 2 * PRIOR.weights[0]
    learner = learn([(work, seconds)] * 3, Learner.from_prior(PRIOR, 5.0))
    p = PRIOR.weights[0]
    expected = (3 / (2 * p) + 5 / p) / (3 / (2 * p) ** 2 + 5 / p**2)
    assert learner.model().weights[0] == pytest.approx(expected)


def test_a_prior_of_zero_counts_for_nothing():
    learner = Learner.from_prior(CostModel(np.zeros(K)), 5.0)
    learner.observe(Work(np.eye(K)[0]), 2.0)
    assert learner.model().weights[0] == pytest.approx(2.0)


def test_weight_counts_as_points():
    work = Work(np.eye(K)[0])
    thrice = learn([(work, 1e-3)] * 3 + [(work, 2e-3)]).model()
    learner = Learner(PRIOR)
    learner.observe(work, 1e-3, weight=3)
    learner.observe(work, 2e-3)
    np.testing.assert_allclose(learner.model().weights, thrice.weights)


def test_forgetting_follows_a_change():
    work = Work(np.eye(K)[0])
    found = [(work, 1e-3)] * 50 + [(work, 4e-3)] * 50
    assert learn(found, Learner(PRIOR, 0.5)).model().weights[0] == pytest.approx(4e-3)
    assert learn(found).model().weights[0] < 2e-3


def test_learning_goes_on_after_a_restart():
    rng = np.random.default_rng(0)
    found = points(rng, known(rng), noise=0.3)
    first = learn(found[:20], Learner(PRIOR, 0.9))
    again = Learner.from_json(json.loads(json.dumps(first.to_json())))
    assert again.points == 20
    assert learn(found[20:], again).model() == learn(found[20:], first).model()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gram": [[1.0]]}, f"the learner is damaged (expected finite numbers >= 0 of shape ({K}"),
        ({"moment": [-1.0] * K}, "the learner is damaged (expected finite numbers >= 0 of shape"),
        ({"moment": "abc"}, "the learner is damaged (ValueError: "),
        ({"points": None}, "the learner is damaged (TypeError: "),
        ({"forgetting": 0.0}, "forgetting is 0.0, expected more than 0 and at most 1"),
        ({"prior": {}}, "is missing"),
    ],
)
def test_damaged_learners(change, message):
    with pytest.raises(CostError, match=re.escape(message)):
        Learner.from_json({**Learner(PRIOR).to_json(), **change})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Work(np.ones(K)), 0.0), "a run took 0.0 s, expected a finite number > 0"),
        ((Work(np.ones(K)), float("nan")), "a run took nan s, expected a finite number > 0"),
        ((Work(np.ones(K)), 1.0, -1.0), "a point counts for -1.0, expected a finite number >= 0"),
        ((Work(), 1.0), "a run took 1 s without any work: there is nothing to learn"),
    ],
)
def test_wrong_points(arguments, message):
    with pytest.raises(CostError, match=re.escape(message)):
        Learner(PRIOR).observe(*arguments)


def test_wrong_strength():
    with pytest.raises(CostError, match="strength is -1, expected a finite number >= 0"):
        Learner.from_prior(PRIOR, -1)


def mean_error(model: CostModel, found: list[tuple[Work, float]]) -> float:
    return float(np.mean([abs(model.seconds(w) / t - 1) for w, t in found]))


@settings(max_examples=8)
@given(SEEDS)
def test_the_mean_error_of_reweighted_points_is_no_larger(seed):
    rng = np.random.default_rng(seed)
    found = points(rng, known(rng), noise=0.2)
    learner = fitted(found, PRIOR)
    assert learner.points == len(found)
    assert mean_error(learner.model(), found) <= mean_error(learn(found).model(), found) + 1e-9


def test_a_few_bad_points_do_not_move_the_weights():
    """One in six took three times as long, as on a machine that others use too."""
    rng = np.random.default_rng(0)
    model = known(rng)
    found = points(rng, model, noise=0)
    disturbed = [(w, t * (3 if i % 6 == 0 else 1)) for i, (w, t) in enumerate(found)]
    assert rms(learn(disturbed).model(), found) > 0.05
    assert rms(fitted(disturbed, PRIOR).model(), found) < 0.005


def test_few_points_are_fitted_by_least_squares():
    rng = np.random.default_rng(0)
    found = points(rng, known(rng), noise=0.3)
    few, enough = found[: 3 * K - 1], found[: 3 * K]
    assert (fitted(few, PRIOR).model().weights == learn(few).model().weights).all()
    assert (fitted(enough, PRIOR).model().weights != learn(enough).model().weights).any()
    assert (fitted([], PRIOR).model().weights == PRIOR.weights).all()
