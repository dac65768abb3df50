"""Models whose neighbours are no edges, trained; drawn splits; pairs of one class."""

from __future__ import annotations

import dataclasses
import importlib
import types
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from neighborhood.naive import movies

from gnnjit import TypedGraph, neighborhood
from gnnjit.data import Dataset, LinkDataset, caveman, open_dataset
from gnnjit.errors import DataError
from gnnjit.training import TrainConfig, TrainError, probe, recommendation, train
from gnnjit.training import pairs as of_pairs
from gnnjit.training.metrics import auc
from gnnjit.training.neighborhoods import metapaths_of, numbered_steps, select
from gnnjit.training.recommendation import RecommendationTask
from gnnjit.training.tasks import drawn_split

BASE = TrainConfig(model="jknet", hidden=8, dropout=0.1, lr=0.02, weight_decay=0.0, epochs=30)
MAGNN = BASE.replace(model="magnn", layers=1, heads=2, epochs=3)
SMALL = caveman(communities=4, size=6, rewired=0.0)


def typed() -> Dataset:
    graph = movies()
    n = graph.num_nodes["m"]
    part = np.arange(n) % 3
    rng = np.random.default_rng(0)
    x = {t: rng.normal(size=(size, 3)).astype(np.float32) for t, size in graph.num_nodes.items()}
    y = (np.arange(n) % 2).astype(np.int32)
    return Dataset("movies", graph, x, y, part == 0, part == 1, part == 2, 2, target="m")


def visits() -> LinkDataset:
    """Users of two tastes."""
    rng = np.random.default_rng(1)
    rows = [(u, 0, 10 + 2 * int(i) + u % 2) for u in range(10) for i in rng.permutation(6)[:5]]
    links = np.array(rows, np.int32)[rng.permutation(len(rows))]
    return LinkDataset("taste", 22, links[:38], links[:0], links[38:], num_users=10)


@pytest.mark.long
def test_jk_net_learns_from_its_rings() -> None:
    """Karate, each seed with a split of its own."""
    data = open_dataset("karate")
    result = train(data, BASE.replace(split="random"), seeds=2)
    for run in result.runs:
        assert run.history[-1].loss < 0.5 * run.history[0].loss
    assert result.runs[0].history[0].accuracy != result.runs[1].history[0].accuracy
    rings = neighborhood.hops(data.graph, 2)
    logits = np.asarray(result.model(rings, jnp.asarray(data.x)))
    right = logits.argmax(1) == data.y
    test = drawn_split(data, 0).test
    assert result.runs[0].best.accuracy["test"] == pytest.approx(right[test].mean())


def test_a_drawn_split_is_of_labelled_vertices() -> None:
    data = open_dataset("karate")
    some = np.arange(34) < 20
    split = drawn_split(dataclasses.replace(data, labelled=some), 3)
    assert [int(np.sum(mask)) for mask in split] == [12, 4, 4]
    assert not np.any(np.stack(split)[:, 20:])
    of_masks = drawn_split(data, 3)
    known = data.train_mask | data.val_mask | data.test_mask
    assert np.array_equal(np.any(np.stack(of_masks), axis=0), known)
    with pytest.raises(DataError, match=r"karate: labelled is .*, expected bool\[34\]"):
        dataclasses.replace(data, labelled=np.ones(3, bool))


@pytest.mark.long
def test_magnn_and_its_support_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    data = typed()
    asked = []

    def scores(embedding: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        asked.append((embedding, labels))
        return {"macro-F1, SVM 20/80": 0.25 * len(asked)}

    module = importlib.import_module("gnnjit.training.train")
    monkeypatch.setattr(module, "can_probe", lambda: True)
    monkeypatch.setattr(module, "svm_scores", scores)
    result = train(data, MAGNN, seeds=2)
    found = result.scores["macro-F1, SVM 20/80"]
    assert (list(found), found["test"].mean, result.notes) == (["test"], 0.375, [])
    hdgs = {t: neighborhood.metapaths(data.graph, p) for t, p in metapaths_of(data, 1).items()}
    rows = np.asarray(result.model.embed(hdgs, data.x))
    np.testing.assert_allclose(asked[0][0], rows[data.test_mask], rtol=1e-4, atol=1e-6)
    assert np.array_equal(asked[0][1], data.y[data.test_mask])
    monkeypatch.setattr(module, "can_probe", lambda: False)
    assert module._probed(None, [], []) == {}


def test_support_vectors_are_fitted_to_each_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what stands in for scikit-learn: a split in order, and a classifier that says 0."""

    class Zero:
        def __init__(self, dual: bool) -> None:
            assert not dual

        def fit(self, x, y):
            return self

        def predict(self, x):
            return np.zeros(len(x))

    def split(x, y, train_size, random_state):
        cut = round(train_size * len(x))
        return x[:cut], x[cut:], y[:cut], y[cut:]

    stands_in = {
        "sklearn.metrics": {"f1_score": lambda y, said, average: (y == said).mean()},
        "sklearn.model_selection": {"train_test_split": split},
        "sklearn.svm": {"LinearSVC": Zero},
    }
    real = importlib.import_module
    monkeypatch.setattr(
        probe.importlib,
        "import_module",
        lambda n: types.SimpleNamespace(**stands_in[n]) if n in stands_in else real(n),
    )
    labels = np.array([0] * 5 + [1] * 5)
    found = probe.svm_scores(np.zeros((10, 2)), labels)
    assert found == {
        "macro-F1, SVM 20/80": pytest.approx(3 / 8),
        "macro-F1, SVM 40/60": pytest.approx(1 / 6),
        "macro-F1, SVM 60/40": 0.0,
        "macro-F1, SVM 80/20": 0.0,
    }


def test_metapaths_of_each_layer() -> None:
    data = typed()
    of_types = metapaths_of(data, 2)
    names = {
        t: ["".join([*(key[0] for key in path), path[-1][2]]) for path in paths]
        for t, paths in of_types.items()
    }
    assert names == {"m": ["mdm", "mam"], "d": ["dmd", "dmamd"], "a": ["ama", "amdma"]}
    assert metapaths_of(data, 1) == {"m": of_types["m"]}
    there, back = numbered_steps(data, of_types["m"])[0]
    assert there == -back
    assert numbered_steps(data, of_types["a"])[1][1:3] == [there, back]
    other, again = numbered_steps(data, of_types["m"])[1]
    assert (other, abs(other) == abs(there)) == (-again, False)


def test_no_way_there_and_back() -> None:
    graph = TypedGraph.from_edges({("a", "to", "b"): ([0], [0])}, {"a": 1, "b": 1})
    x = {t: np.zeros((1, 1), np.float32) for t in ("a", "b")}
    mask = np.ones(1, bool)
    data = Dataset("one", graph, x, np.zeros(1, np.int32), mask, ~mask, ~mask, 1, target="b")
    with pytest.raises(TrainError, match="one: magnn got no metapath from b to another type and"):
        train(data, MAGNN)


@pytest.mark.long
def test_pinsage_recommends() -> None:
    data = visits()
    config = BASE.replace(
        model="pinsage", layers=1, lr=0.05, decay="batch", weight_decay=1e-4, batch_size=38
    )
    result = train(data, config.replace(evaluate_every=30))
    history = result.runs[0].history
    assert history[-1].loss < 0.8 * history[0].loss
    walks = select(data, config, lambda done, total: None)
    assert walks is not None
    same = neighborhood.random_walks(data.graph(), seed=0)
    np.testing.assert_array_equal(walks.levels[0].src, same.levels[0].src)
    assert result.model(walks).shape == (22, 8)


@pytest.mark.long
def test_pgnn_tells_pairs_of_one_community() -> None:
    config = BASE.replace(model="pgnn", dropout=0.0, epochs=40, evaluate_every=10)
    result = train(SMALL, config)
    assert result.metric == "AUC"
    assert result.accuracy["test"].mean > 0.8


def test_pairs_against_loops() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-1, 2, (24, 3)).astype(np.float32)
    task = of_pairs.PairTask(SMALL, BASE, None)
    (batch,) = task.train_batches(0, 1)
    (again,), (other,) = task.train_batches(0, 1), task.train_batches(0, 2)
    assert np.array_equal(batch.apart[0], again.apart[0])
    assert not np.array_equal(batch.apart[0], other.apart[0])
    total, count = batch.loss(lambda graph, x, key: jnp.asarray(rows), None)
    want = 0.0
    for pairs, sign in ((batch.together[0], 1), (batch.apart[0], -1)):
        for u, v in np.asarray(pairs).tolist():
            assert (SMALL.y[u] == SMALL.y[v]) == (sign > 0)
            want += np.log1p(np.exp(-sign * rows[u] @ rows[v]))
    assert (float(total), float(count)) == (pytest.approx(want, rel=1e-5), 2 * len(SMALL.train))


def test_area_under_the_curve() -> None:
    rng = np.random.default_rng(1)
    true, false = (rng.integers(0, 4, n).astype(np.float32) for n in (9, 7))
    want = np.mean([(a > b) + 0.5 * (a == b) for a in true for b in false])
    assert float(auc(jnp.asarray(true), jnp.asarray(false))) == pytest.approx(want)
    nothing = jnp.full(9, jnp.nan)
    assert float(auc(nothing, jnp.asarray(false))) == 0


def test_walks_are_drawn_anew_by_the_epoch() -> None:
    config = BASE.replace(model="pinsage", select_every=2)
    task = RecommendationTask(visits(), config, select(visits(), config, lambda done, total: None))

    def level(seed: int, epoch: int) -> Any:
        return next(task.train_batches(seed, epoch)).graph.levels[0]

    first, second, third, other = level(0, 1), level(0, 2), level(0, 3), level(1, 1)
    assert np.array_equal(first.src, second.src)
    assert not np.array_equal(first.src, third.src)
    assert not np.array_equal(first.src, other.src)
    assert first.num_edges == third.num_edges == 22 * 10
    assert np.array_equal(level(0, 1).src, first.src)
    (whole,) = task.eval_batches()
    same = neighborhood.random_walks(visits().graph(), seed=0)
    assert np.array_equal(whole.graph.levels[0].src, same.levels[0].src)


def test_anchor_sets_are_drawn_anew() -> None:
    config = BASE.replace(model="pgnn", select_every=1)
    task = of_pairs.PairTask(SMALL, config, select(SMALL, config, lambda done, total: None))
    one, two = (next(task.train_batches(0, epoch)).graph for epoch in (1, 2))
    assert not np.array_equal(one.levels[0].src, two.levels[0].src)
    assert one.levels[0].num_edges == two.levels[0].num_edges == one.num_roots * one.num_types


def test_a_softmax_ranks_above_the_items_that_a_batch_shares(monkeypatch: Any) -> None:
    monkeypatch.setattr(recommendation, "SHARED", 5)
    config = BASE.replace(model="pinsage", loss="softmax", weight_decay=0.0, batch_size=30)
    *_, batch = RecommendationTask(visits(), config).train_batches(0, 1)  # of 8, and padding
    rows = np.random.default_rng(4).normal(size=(22, 4)).astype(np.float32)
    total, count = batch.loss(_Fixed(rows), None)
    want = 0.0
    for user, item in zip(batch.users[:8], batch.items[:8], strict=True):
        scores = rows[[item, *batch.others[:5]]] @ rows[user]
        want += np.log(np.exp(scores).sum()) - scores[0]
    assert (float(total), float(count)) == (pytest.approx(want, rel=1e-5), 8)


class _Fixed:
    """A model that gives the same rows, whatever the graph."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows, self.embedding = jnp.asarray(rows), {...: jnp.asarray(rows)}

    def __call__(self, graph: Any, key: Any = None) -> Any:
        return self._rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"select_every": 2}, "select_every is 2, expected 0: jknet draws no neighbours at random"),
        ({"loss": "softmax"}, "the loss is 'softmax', expected 'pairs': .* has no items to rank"),
    ],
)
def test_what_is_for_other_models(change, message) -> None:
    with pytest.raises(TrainError, match=message):
        train(open_dataset("karate"), BASE.replace(**change))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_budget": "1GiB"}, "jknet selects neighbours of the whole graph, in memory, on "),
        ({"devices": 2}, "one device, and several devices does not go with it: leave it out"),
    ],
)
def test_what_selected_neighbours_do_not_go_with(options, message) -> None:
    with pytest.raises(TrainError, match=message):
        train(open_dataset("karate"), BASE, **options)


def test_what_drawn_splits_do_not_go_with() -> None:
    config = BASE.replace(model="gcn", split="random")
    message = "the split is 'random', which is drawn for a graph in memory on one device, and a mem"
    with pytest.raises(TrainError, match=message):
        train(open_dataset("karate"), config, memory_budget="1GiB")
    message = "the split is 'random', expected 'given': taste has no classes of the vertices of one"
    with pytest.raises(TrainError, match=message):
        train(visits(), config.replace(model="pinsage"))
    message = "best_by is 'loss', expected 'accuracy': taste has no labels of the vertices of one"
    with pytest.raises(TrainError, match=message):
        train(visits(), config.replace(model="pinsage", split="given", best_by="loss"))
    with pytest.raises(TrainError, match="split is 'half', expected given or random"):
        TrainConfig(split="half")
