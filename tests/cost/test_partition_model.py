"""The model of a shard's step: what it learns, what it carries over, what is kept."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.cost.partition_model import FEATURES, PRIOR, START, PartitionModel, load, path, save
from gnnjit.cost.store import Key
from gnnjit.errors import CostError
from gnnjit.partition.partition import balanced, equal_edges, equal_vertices, imbalance
from gnnjit.partition.vertex_features import VERTEX_FEATURES, vertex_features
from gnnjit.system.cache import digest

pytestmark = pytest.mark.once

KEY = Key("a processor", "cpu", "float32", 2, "0.10.2", "0.10.2", "0.1.0")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gnnjit" / "partition-model"


def skewed(seed: int, n: int = 300, e: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, n, e), (n * rng.random(e) ** 3).astype(int)


def taught(weights: list[float], constant: float, seed: int = 0) -> PartitionModel:
    model = PartitionModel()
    for row in np.random.default_rng(seed).integers(1, 1000, (20, 5)):
        model.observe(row, float(row @ weights) + constant)
    return model


def test_the_features_of_the_graph():
    assert FEATURES == VERTEX_FEATURES


def test_before_anything_is_learned():
    model = PartitionModel()
    assert model.points == 0
    assert model.weights.tolist() == list(PRIOR)
    assert model.constant == START
    assert model.predict([1, 2, 3, 4, 5]) == pytest.approx(START + 2e-7 + 2 * 2e-9 + 5 * 5e-9)
    assert (model.vertex_cost(np.eye(5)) == PRIOR).all()


@given(st.lists(st.integers(0, 9), min_size=5, max_size=5), st.integers(0, 100), st.integers(0, 9))
def test_exact_weights_are_found(weights, constant, seed):
    if not any(weights):
        weights = [1, *weights[1:]]
    model = taught([1e-8 * w for w in weights], 1e-6 * constant, seed)
    assert model.points == 20
    features = np.arange(5.0) * 100
    expected = 1e-8 * float(features @ weights) + 1e-6 * constant
    assert model.predict(features) == pytest.approx(expected, rel=1e-3, abs=1e-9)
    assert (model.weights >= 0).all()


def test_a_model_learned_on_one_graph_balances_another():
    """What only vertices cost and what only edges cost make neither equal cut even."""
    true = np.array([3e-6, 1e-6, 0, 0, 0])
    n, model = 300, PartitionModel()
    src, dst = skewed(0)
    features = vertex_features(src, dst, n, 16)
    degree = np.bincount(dst, minlength=n)
    for cut in (equal_vertices(n, 4), equal_edges(degree, 4)):
        for total in cut.totals(features):
            model.observe(total, float(total @ true) + 1e-5)
    src, dst = skewed(1)
    features = vertex_features(src, dst, n, 16)
    degree = np.bincount(dst, minlength=n)
    learned = balanced(model.vertex_cost(features), 4)
    real = features @ true
    assert imbalance(real, learned) < 1.05
    assert imbalance(real, equal_vertices(n, 4)) > 1.3
    assert imbalance(real, equal_edges(degree, 4)) > 1.1


def test_old_points_can_be_forgotten():
    model = PartitionModel(forgetting=0.5)
    for seconds in [1.0] * 5 + [3.0] * 20:
        model.observe([1, 0, 0, 0, 0], seconds)
    assert model.predict([1, 0, 0, 0, 0]) == pytest.approx(3, rel=1e-3)


def test_a_point_of_no_weight_teaches_nothing():
    model = taught([1e-6, 0, 0, 0, 0], 0)
    before = model.weights
    model.observe([1, 1, 1, 1, 1], 1e3, weight=0)
    assert model.weights == pytest.approx(before)


def test_weights_are_a_copy():
    model = PartitionModel()
    model.weights[:] = 7
    assert model.weights.tolist() == list(PRIOR)


def test_json_goes_on_learning():
    model = taught([1e-6, 2e-8, 0, 0, 1e-8], 1e-4)
    again = PartitionModel.from_json(json.loads(json.dumps(model.to_json())))
    assert again.points == model.points
    for m in (model, again):
        m.observe([5, 4, 3, 2, 1], 1e-3)
    assert (again.weights == model.weights).all()
    assert again.constant == model.constant


def test_what_is_stored_is_loaded(cache):
    model = taught([1e-6, 2e-8, 0, 0, 1e-8], 1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(KEY, "gcn 64") is None
        file = save(KEY, "gcn 64", model)
        found = load(KEY, "gcn 64")
        assert load(KEY, "gat 64") is None
    assert file == path(KEY, "gcn 64")
    assert [p.name for p in cache.iterdir()] == [file.name]
    assert found is not None
    assert found.to_json() == model.to_json()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 0}, "it has the format 0, expected 1"),
        ({"name": "gat 64"}, "it is for name 'gat 64', expected 'gcn 64'"),
        ({"key": None}, "it does not say what it is for"),
        ({"model": None}, "the partition model is damaged (TypeError: "),
    ],
)
def test_files_that_are_not_ours(change, why):
    file = save(KEY, "gcn 64", PartitionModel())
    data = {**json.loads(file.read_text()), **change}
    del data["checksum"]
    file.write_text(json.dumps({**data, "checksum": digest(data)}))
    head = f"{file}: not a partition model of 'gcn 64' for this device ({why}"
    with pytest.warns(UserWarning, match=f"^{re.escape(head)}"):
        assert load(KEY, "gcn 64") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON, JSONDecodeError: "),
        ('{"format": NaN}', "it holds NaN, expected finite numbers"),
        ('{"format": 1}', "its checksum is wrong: it is damaged, or was edited"),
    ],
)
def test_damaged_files(text, why):
    file = save(KEY, "gcn 64", PartitionModel())
    file.write_text(text)
    head = f"{file}: not a partition model of 'gcn 64' for this device ({why}"
    with pytest.warns(UserWarning, match=f"^{re.escape(head)}"):
        assert load(KEY, "gcn 64") is None


def test_no_place_to_store(cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    message = (
        f"{cache}: the partition model cannot be stored there (File exists); set XDG_CACHE_HOME to "
        "a directory that can be written"
    )
    with pytest.raises(CostError, match=f"^{re.escape(message)}$"):
        save(KEY, "gcn 64", PartitionModel())


ORDER = "vertex, neighbors, runs, neighbor accesses, activation accesses"


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (
            lambda m: m.observe([1, 2], 1.0),
            f"features has shape (2,), expected (5,): pass {ORDER} of the whole shard",
        ),
        (
            lambda m: m.observe([1, 2, -3, 4, 5], 1.0),
            "features[2] is -3.0, expected a finite number >= 0",
        ),
        (lambda m: m.observe([1] * 5, 0.0), "a step took 0.0 s, expected a finite number > 0"),
        (
            lambda m: m.observe([1] * 5, 1.0, weight=-1),
            "a point counts for -1, expected a finite number >= 0",
        ),
        (
            lambda m: m.vertex_cost(np.ones((3, 4))),
            f"features has shape (3, 4), expected (num_nodes, 5): pass {ORDER} of each vertex",
        ),
        (
            lambda m: PartitionModel(forgetting=0),
            "forgetting is 0, expected more than 0 and at most 1",
        ),
        (
            lambda m: PartitionModel([1, 1, 1, 1, np.inf]),
            "prior[4] is inf, expected a finite number >= 0",
        ),
        (
            lambda m: PartitionModel(constant=-1),
            "constant[0] is -1.0, expected a finite number >= 0",
        ),
        (
            lambda m: PartitionModel.from_json({**m.to_json(), "features": ["vertex"]}),
            f"the partition model is of the features vertex, expected {ORDER}: learn it anew",
        ),
        (
            lambda m: PartitionModel.from_json({**m.to_json(), "gram": [[1]]}),
            "the partition model is damaged (expected finite numbers >= 0 of shape (6, 6)): learn "
            "it anew",
        ),
        (
            lambda m: PartitionModel.from_json({}),
            "the partition model is damaged (KeyError: 'features'): learn it anew",
        ),
    ],
)
def test_messages(do, message):
    with pytest.raises(CostError, match=f"^{re.escape(message)}$"):
        do(PartitionModel())
