"""Recommendation and link prediction: what is ranked, what is drawn, and that it is learned."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.data import EdgeList, LinkDataset, SensorDataset
from gnnjit.training import Sampling, TrainConfig, TrainError, train
from gnnjit.training import link_prediction as links
from gnnjit.training import recommendation as rec
from gnnjit.training.config import resolve
from gnnjit.training.models import usual_model
from gnnjit.training.path_prediction import PathTask

OF_TASK = {
    "link": TrainConfig(
        model="rgcn", layers=1, hidden=10, dropout=0.0, lr=0.05, weight_decay=0.01, decay="batch",
        epochs=6, steps_per_epoch=5, batch_size=60, negatives=4, clip=1.0, evaluate_every=3,
    ),
    "recommendation": TrainConfig(
        model="lightgcn", hidden=8, lr=0.02, weight_decay=1e-4, decay="batch", epochs=6,
        batch_size=64, evaluate_every=3,
    ),
}  # fmt: skip


class _Model:
    """Gives the same rows for every graph."""

    def __init__(self, rows: np.ndarray, **parameters: dict) -> None:
        self.rows = jnp.asarray(rows)
        for name, value in parameters.items():
            setattr(self, name, value)

    def __call__(self, *args, **keywords) -> jax.Array:
        return self.rows


def triples(rows: list[tuple[int, int, int]]) -> np.ndarray:
    return np.array(rows, np.int32).reshape(-1, 3)


@pytest.fixture(scope="module")
def facts() -> LinkDataset:
    """Relation 0 leads to the next of 12 entities, relation 1 to the one after it."""
    rows = [(v, r, (v + r + 1) % 12) for v in range(12) for r in range(2)]
    rows += [(v, 2, 11 - v) for v in range(12)]
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    return LinkDataset("ring", 12, triples(rows[:28]), triples(rows[28:32]), triples(rows[32:]), 3)


@pytest.fixture(scope="module")
def visits() -> LinkDataset:
    """Users of two tastes, who take items of theirs; item 20 + i is vertex 10 + i."""
    rng = np.random.default_rng(1)
    rows = [(u, 0, 10 + 2 * int(i) + u % 2) for u in range(10) for i in rng.permutation(6)[:5]]
    order = rng.permutation(len(rows))
    rows = [rows[i] for i in order]
    return LinkDataset("taste", 22, triples(rows[:38]), triples([]), triples(rows[38:]), 1, 10)


def plain_mean_of_ranks(data: LinkDataset, rows: np.ndarray, w: np.ndarray, filtered: bool):
    known = {tuple(int(n) for n in f) for f in np.concatenate([data.train, data.val, data.test])}
    total = []
    for head, relation, tail in data.test.tolist():
        for of_tail in (True, False):
            target = tail if of_tail else head
            fixed = head if of_tail else tail
            scores = (rows[fixed] * w[relation]) @ rows.T
            higher = 0.0
            for e in range(data.num_nodes):
                fact = (head, relation, e) if of_tail else (e, relation, tail)
                if e != target and not (filtered and fact in known):
                    higher += 1.0 * (scores[e] > scores[target]) or 0.5 * (
                        scores[e] == scores[target]
                    )
            total.append(1 / (1 + higher))
    return np.mean(total)


def test_reciprocal_ranks(facts: LinkDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of 5 queries, against loops; small whole numbers, so that scores tie."""
    rng = np.random.default_rng(2)
    rows, w = (rng.integers(-1, 2, (n, 3)).astype(np.float32) for n in (12, 3))
    monkeypatch.setattr(links, "_QUERIES", 5)
    (whole,) = links.LinkTask(facts, OF_TASK["link"]).eval_batches()
    assert whole.queries.shape[:2] == (4, 5)
    sums = whole.sums(_Model(rows, relation={...: jnp.asarray(w)}))
    assert np.asarray(sums.count).tolist() == [0, 8, 8]
    assert 0 < np.asarray(sums.more["AUC"])[2] / 8 < 1
    for name, filtered in (("MRR", True), ("MRR raw", False)):
        mean = np.asarray(sums.more[name])[2] / 8
        assert mean == pytest.approx(plain_mean_of_ranks(facts, rows, w, filtered), rel=1e-5)


def plain_top(data: LinkDataset, rows: np.ndarray) -> tuple[float, float]:
    seen, wanted = ({u: set() for u in range(10)} for _ in range(2))
    for into, part in ((seen, data.train), (wanted, data.test)):
        for u, _, item in part.tolist():
            into[u].add(item)
    recalls, ndcgs = [], []
    for user, items in wanted.items():
        if not items:
            continue
        scores = {i: rows[user] @ rows[i] for i in range(10, 22) if i not in seen[user]}
        first = sorted(scores, key=lambda i: -scores[i])[: rec.TOP]
        hits = [i in items for i in first]
        recalls.append(sum(hits) / len(items))
        ideal = sum(1 / math.log2(k + 2) for k in range(min(rec.TOP, len(items))))
        ndcgs.append(sum(h / math.log2(k + 2) for k, h in enumerate(hits)) / ideal)
    return float(np.mean(recalls)), float(np.mean(ndcgs))


def test_recommended_items(visits: LinkDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rec, "TOP", 3)
    monkeypatch.setattr(rec, "_USERS", 4)
    rows = np.random.default_rng(3).normal(size=(22, 4)).astype(np.float32)
    (whole,) = rec.RecommendationTask(visits, OF_TASK["recommendation"]).eval_batches()
    assert whole.users.shape[1] == 4
    sums = whole.sums(_Model(rows))
    found = [float(np.asarray(s)[2] / np.asarray(sums.count)[2]) for s in sums.more.values()]
    assert found == pytest.approx(plain_top(visits, rows), rel=1e-5)


def test_pairs_are_of_items_that_were_taken_and_not(visits: LinkDataset) -> None:
    task = rec.RecommendationTask(visits, OF_TASK["recommendation"])
    taken = {(u, i) for u, _, i in visits.train.tolist()}
    (batch,) = task.train_batches(0, 1)
    real = batch.real > 0
    assert real.sum() == 38
    for user, item, other in zip(batch.users[real], batch.items[real], batch.others[real]):  # noqa: B905
        assert (user, item) in taken
        assert (user, other) not in taken
        assert other >= 10
    again, different = next(task.train_batches(0, 1)), next(task.train_batches(0, 2))
    np.testing.assert_array_equal(batch.others, again.others)
    assert not np.array_equal(batch.users, different.users)


def test_ranking_loss_is_that_of_loops(visits: LinkDataset) -> None:
    (batch,) = rec.RecommendationTask(visits, OF_TASK["recommendation"]).train_batches(0, 1)
    own = np.random.default_rng(4).normal(size=(22, 4)).astype(np.float32)
    rows = 2 * own
    model = _Model(rows, embedding={...: jnp.asarray(own)})
    total, count = batch.loss(model, None)
    want = 0.0
    for user, item, other in zip(batch.users[:38], batch.items[:38], batch.others[:38]):  # noqa: B905
        want += np.log1p(np.exp(rows[user] @ rows[other] - rows[user] @ rows[item]))
        want += 1e-4 / 2 * sum((own[v] ** 2).sum() for v in (user, item, other))
    assert (float(total), float(count)) == (pytest.approx(want, rel=1e-5), 38)


def test_a_batch_of_facts(facts: LinkDataset) -> None:
    """Its graph is half of its facts, both ways; its loss is that of loops."""
    batch = next(links.LinkTask(facts, OF_TASK["link"]).train_batches(0, 1))
    known = {tuple(f) for f in facts.train.tolist()}
    chosen = {tuple(f) for f in np.asarray(batch.facts).reshape(-1, 3).tolist()}
    assert chosen <= known
    assert len(chosen) == 28
    src, dst, relation = (
        np.asarray(a) for a in (batch.graph.src, batch.graph.dst, batch.graph.relations.number)
    )
    assert len(src) == 28
    for u, v, r in zip(src.tolist(), dst.tolist(), relation.tolist(), strict=True):
        assert ((u, r, v) if r < 3 else (v, r - 3, u)) in chosen
    rng = np.random.default_rng(5)
    rows, w = (rng.normal(size=(n, 3)).astype(np.float32) for n in (12, 3))
    model = _Model(rows, relation={...: jnp.asarray(w)})
    total, count = batch.loss(model, None)
    want, pairs = 0.0, 0
    for group, false, of_tail in zip(batch.facts, batch.false, batch.of_tail, strict=True):
        for (h, r, t), at_tail in zip(group, of_tail, strict=True):
            want += np.log1p(np.exp(-(rows[h] * w[r] * rows[t]).sum()))
            for other in false:
                score = rows[h if at_tail else t] * w[r] * rows[other]
                want += np.log1p(np.exp(score.sum()))
            pairs += 1 + len(false)
    want += pairs * 0.01 * ((rows**2).mean() + (w**2).mean())
    assert (float(total), float(count)) == (pytest.approx(want, rel=1e-4), pairs)


@pytest.mark.parametrize(("task", "metric"), [("link", "MRR"), ("recommendation", "recall@20")])
def test_training(
    task: str, metric: str, facts: LinkDataset, visits: LinkDataset, tmp_path
) -> None:
    """It learns; every third epoch and the last are evaluated; it continues where it was."""
    data, config = {"link": facts, "recommendation": visits}[task], OF_TASK[task]
    if task == "recommendation":  # 12 items: the first 20 are all of them
        config = config.replace(epochs=4)
    result = train(data, config, checkpoint=tmp_path / "run", checkpoint_every=2)
    history = result.runs[0].history
    assert history[-1].loss < history[0].loss
    evaluated = [record.epoch for record in history if record.evaluated]
    assert evaluated == [n for n in range(1, config.epochs + 1) if n % 3 == 0 or n == config.epochs]
    assert result.metric == metric
    assert result.accuracy["test"].mean == pytest.approx(result.scores[metric]["test"].mean)
    assert result.to_dict()["scores"][metric]["test"]["std"] == 0
    if task == "link":
        return
    longer = train(data, config.replace(epochs=6), checkpoint=tmp_path / "run", resume=True)
    whole = train(data, config.replace(epochs=6))
    same = jax.tree.map(np.array_equal, longer.runs[0].params, whole.runs[0].params)
    assert all(jax.tree.leaves(same))


@pytest.mark.long
def test_ngcf_learns(visits: LinkDataset) -> None:
    config = OF_TASK["recommendation"].replace(model="ngcf", layers=1, dropout=0.1)
    history = train(visits, config).runs[0].history
    assert history[-1].loss < history[0].loss


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_budget": "1GiB"}, "a memory budget is for classes"),
        ({"devices": 2}, "several devices is for classes"),
        ({"compare": True}, "a comparison with plain segment operations is for classes"),
    ],
)
def test_what_links_are_not_trained_with(visits: LinkDataset, options, message) -> None:
    with pytest.raises(TrainError, match=f"^taste is trained in memory, .* {message}"):
        train(visits, OF_TASK["recommendation"], **options)


@pytest.mark.parametrize(
    ("task", "given", "message"),
    [
        ("link", {"model": "gcn"}, "gcn is no model for any, expected one of rgcn"),
        ("typed", {"model": "hen"}, "unknown model 'hen', expected one of han, hgt, rgcn, magnn"),
        ("link", {"heads": 2}, "heads: rgcn has no attention heads, which others have"),
        ("recommendation", {"steps_per_epoch": 2}, "an epoch has as many pairs"),
        ("typed", {"batch_size": 2}, "for datasets of many graphs"),
        ("link", {"negatives": 0}, "negatives is 0, expected at least 1"),
        ("link", {"clip": -1.0}, "clip is -1.0, expected at least 0"),
        ("link", {"evaluate_every": 0}, "evaluate_every is 0, expected at least 1"),
    ],
)
def test_mistakes(task: str, given: dict, message: str) -> None:
    with pytest.raises(TrainError, match=message):
        resolve("any", task, given)


def test_no_vertex_is_an_answer_to_itself() -> None:
    """In a graph of one relation without self loops; with one, it is a candidate like others."""
    w, rows = {...: jnp.ones((1, 2))}, np.array([[9, 0], [1, 0], [0, 0]], np.float32)
    pairs = [triples([(0, 0, 1)]), triples([]), triples([(0, 0, 2)])]
    for loops, expected in (([], 1.0), ([(1, 0, 1)], 0.75)):
        data = LinkDataset("three", 3, np.concatenate([pairs[0], triples(loops)]), *pairs[1:])
        (whole,) = links.LinkTask(data, OF_TASK["link"]).eval_batches()
        sums = whole.sums(_Model(rows, relation=w))
        # Asked for 2 from 0: 0 scores most, and 1 is known. From 2 all score alike.
        of_head = 1 / (1 + (1 if not loops else 2) / 2)
        of_tail = expected if not loops else 1 / 2
        mean = np.asarray(sums.more["MRR"])[2] / 2
        assert mean == pytest.approx((of_head + of_tail) / 2)


def test_an_edge_list_is_trained_on_its_links() -> None:
    src = np.arange(40, dtype=np.int32)
    ring = EdgeList("ring", src, (src + 1) % 40, 40)
    result = train(ring, OF_TASK["link"].replace(epochs=3))
    assert (result.metric, result.dataset["edges"]) == ("MRR", 2 * (40 - 2 * 4))


def near_in_a_ring() -> LinkDataset:
    v = np.arange(40)
    rows = [triples(np.stack([v, 0 * v, (v + step) % 40], 1).tolist()) for step in (1, 2, 3)]
    rows = np.concatenate(rows)[np.random.default_rng(3).permutation(120)]
    return LinkDataset("ring", 40, rows[:100], rows[100:110], rows[110:])


def test_a_batch_of_links_that_are_left_out() -> None:
    data = near_in_a_ring()
    config = resolve("any", "link", {"model": "paths", "batch_size": 6, "steps_per_epoch": 1})
    (batch,) = PathTask(data, config).train_batches(0, 1)
    left_out = np.flatnonzero(batch.kept[:100] == 0)
    both = np.stack([batch.vertex, batch.answer], axis=1)
    asked = set(map(tuple, np.where(batch.of_tail[:, None], both, both[:, ::-1]).tolist()))
    assert asked == {tuple(row) for row in data.train[left_out][:, [0, 2]].tolist()}
    assert np.flatnonzero(batch.kept[100:] == 0).tolist() == left_out.tolist()
    known = set(map(tuple, batch.known[batch.known[:, 0] < 6].tolist()))
    expected = set()
    for i, (v, a, tail) in enumerate(zip(batch.vertex, batch.answer, batch.of_tail, strict=True)):
        own, other = (0, 2) if tail else (2, 0)
        found = data.train[data.train[:, own] == v][:, other]
        expected |= {(i, int(u)) for u in (*found, v) if u != a}
    assert known == expected


def test_links_of_one_relation_are_predicted_by_paths(facts: LinkDataset) -> None:
    data = near_in_a_ring()
    assert (usual_model(data), usual_model(facts)) == ({"model": "paths"}, {})
    few = {"model": "paths", "epochs": 2, "steps_per_epoch": 10, "batch_size": 8}
    result = train(data, resolve("ring", "link", few))
    assert result.scores["AUC"]["test"].mean > 0.9
    assert result.scores["MRR"]["test"].mean > 0.3  # by chance: about 0.12
    with pytest.raises(TrainError) as error:
        train(facts, OF_TASK["link"].replace(model="paths", layers=2))
    assert str(error.value) == (
        "ring has 3 relations, and paths is for graphs of one: choose rgcn (--model rgcn)"
    )


def test_sensors_are_not_trained_on() -> None:
    empty, weight = np.zeros(0, np.int32), np.zeros(0, np.float32)
    sensors = SensorDataset("road", empty, empty, weight, np.array(["a"]), np.zeros((1, 2)))
    with pytest.raises(TrainError) as error:
        train(sensors)
    assert str(error.value) == (
        "road is a series of measurements on a graph, which no model here is trained on: take "
        "dataset.graph() and dataset.windows(part) for one of your own"
    )


def test_paths_are_of_the_whole_graph() -> None:
    few = resolve("ring", "link", {"model": "paths", "epochs": 1, "steps_per_epoch": 1})
    message = "ring is trained on the paths of the whole graph, .*: leave the sampler out"
    with pytest.raises(TrainError, match=message):
        train(near_in_a_ring(), few, sampling=Sampling("vertex", options={"vertices": 15}))
