"""Links of sampled parts: what a batch holds, what it computes, and that it is learned."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit.data import LinkDataset
from gnnjit.nn.recipes import LinkPredictor
from gnnjit.training import CheckpointError, Sampling, TrainConfig, TrainError, train
from gnnjit.training.link_prediction import both_ways
from gnnjit.training.sampled import usual_sampling
from gnnjit.training.sampled_links import SampledLinkTask

CONFIG = TrainConfig(
    model="rgcn", layers=1, hidden=10, dropout=0.0, lr=0.05, weight_decay=0.01, decay="batch",
    epochs=6, steps_per_epoch=5, negatives=4, clip=1.0, evaluate_every=3,
)  # fmt: skip
KINDS = {
    "vertex": {"vertices": 20, "weights": "uniform"},
    "edge": {"edges": 12},
    "walk": {"walks": 8, "length": 2},
    "frontier": {"frontier": 4, "vertices": 18},
}


@pytest.fixture(scope="module")
def facts() -> LinkDataset:
    """Relation r leads to the (r + 1)-th next of 30 entities."""
    rows = np.array([(v, r, (v + r + 1) % 30) for v in range(30) for r in range(4)], np.int32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    return LinkDataset("ring", 30, rows[:100], rows[100:110], rows[110:], 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_holds_the_facts_of_a_part(kind: str, facts: LinkDataset) -> None:
    """All facts between its entities, each once; its graph is half of them, both ways."""
    task = SampledLinkTask(facts, CONFIG, Sampling(kind, options=KINDS[kind]))
    known = {tuple(fact) for fact in facts.train.tolist()}
    shapes = set()
    for batch in task.train_batches(3, 1):
        part = batch.vertices[: batch.entities]
        assert len(set(part.tolist())) == batch.entities
        np.testing.assert_array_equal(batch.vertices[batch.entities :], 30)
        local = batch.facts[batch.real]
        whole = np.stack([part[local[:, 0]], local[:, 1], part[local[:, 2]]], axis=1)
        inside = {f for f in known if f[0] in part and f[2] in part}
        found = {tuple(f) for f in whole.tolist()}
        assert found <= inside
        assert len(whole) == len(found) == min(len(inside), batch.real.size)
        graph, mask = batch.graph, np.asarray(batch.graph.mask)
        assert mask.sum() == 2 * max(1, len(whole) // 2)
        assert graph.relations is not None
        relation = np.asarray(graph.relations.number)
        for u, v, r in zip(graph.src[mask], graph.dst[mask], relation[mask], strict=True):
            a, b = int(part[u]), int(part[v])
            assert ((a, r, b) if r < 4 else (b, r - 4, a)) in inside
        assert (batch.false < batch.entities).all()
        shapes.add(str(jax.tree.map(jnp.shape, batch)))
    assert len(shapes) == 1
    again, other = (next(task.train_batches(3, epoch)) for epoch in (1, 2))
    first = next(task.train_batches(3, 1))
    np.testing.assert_array_equal(first.facts, again.facts)
    assert not np.array_equal(first.vertices, other.vertices)


def test_uniform_vertices_take_each_fact_equally_often(facts: LinkDataset) -> None:
    options = {"vertices": 15, "weights": "uniform"}
    task = SampledLinkTask(
        facts, CONFIG.replace(steps_per_epoch=400), Sampling("vertex", options=options)
    )
    taken = np.zeros((30, 4, 30), int)
    for batch in task.train_batches(0, 1):
        head, relation, tail = batch.facts[batch.real].T
        np.add.at(taken, (batch.vertices[head], relation, batch.vertices[tail]), 1)
    counts = taken[tuple(facts.train.T)]
    assert taken.sum() == counts.sum()
    assert counts.min() > 0.5 * counts.mean()
    assert counts.max() < 1.6 * counts.mean()


def test_a_part_of_all_entities_is_the_whole_graph(facts: LinkDataset) -> None:
    """The rows of a permuted, padded graph are those of the graph; padding changes no loss."""
    model = LinkPredictor("rgcn", 30, 4, hidden=10, layers=2, rngs=nnx.Rngs(0))
    order = np.random.default_rng(1).permutation(30)
    place = np.argsort(order).astype(np.int32)
    moved = np.stack(
        [place[facts.train[:, 0]], facts.train[:, 1], place[facts.train[:, 2]]], axis=1
    )
    padded = np.concatenate([moved, np.zeros((3, 3), np.int32)])
    vertices = jnp.append(order, jnp.array([30, 30]))
    rows = model(both_ways(facts, padded, 32, count=100), vertices)
    np.testing.assert_allclose(rows[:30], model(both_ways(facts, facts.train))[order], atol=1e-5)


def test_padding_does_not_count(facts: LinkDataset) -> None:
    task = SampledLinkTask(facts, CONFIG, Sampling("vertex", options=KINDS["vertex"]))
    batch = next(b for b in task.train_batches(0, 1) if not b.real.all())
    rows = np.random.default_rng(2).normal(size=(len(batch.vertices), 10)).astype(np.float32)
    w = np.random.default_rng(3).normal(size=(4, 10)).astype(np.float32)

    class Model:
        relation = {...: jnp.asarray(w)}  # noqa: RUF012

        def __call__(self, *args, **keywords) -> jax.Array:
            return jnp.asarray(rows)

    total, count = batch.loss(Model(), None)
    want, pairs = 0.0, 0
    for group, real, false, of_tail in zip(
        batch.facts, batch.real, batch.false, batch.of_tail, strict=True
    ):
        for (h, r, t), at_tail in zip(group[real], of_tail[real], strict=True):
            scores = [(rows[h if at_tail else t] * w[r] * rows[v]).sum() for v in false]
            want += np.log1p(np.exp(-(rows[h] * w[r] * rows[t]).sum()))
            want += np.log1p(np.exp(scores)).sum()
            pairs += 1 + len(false)
    want += pairs * 0.01 * ((rows[: batch.entities] ** 2).mean() + (w**2).mean())
    assert (float(total), float(count)) == (pytest.approx(want, rel=1e-4), pairs)


def test_training(facts: LinkDataset, tmp_path) -> None:
    """It learns, says how it sampled, and is continued only with the same sampling."""
    sampling = Sampling("vertex", options=KINDS["vertex"])
    folder = tmp_path / "run"
    result = train(facts, CONFIG, sampling=sampling, checkpoint=folder)
    history = result.runs[0].history
    assert history[-1].loss < history[0].loss
    figures = result.performance["sampling"]
    assert (figures["sampler"], figures["options"]) == ("vertex", KINDS["vertex"])
    with pytest.raises(CheckpointError, match="sampling"):
        train(facts, CONFIG, checkpoint=folder, resume=True)


def test_a_batch_has_at_most_as_many_facts_as_are_asked_for(facts: LinkDataset) -> None:
    sampling = Sampling("vertex", options={"vertices": 100})
    task = SampledLinkTask(facts, CONFIG.replace(batch_size=40), sampling)
    assert task.shape == (32, 40)
    assert all(b.real.all() and b.real.size == 40 for b in task.train_batches(0, 1))


def test_the_recipe_samples() -> None:
    found = usual_sampling("fb15k-237", "rgcn")
    assert found is not None
    assert found.sampler == "vertex"
    assert usual_sampling("cora", "gcn") is usual_sampling("no such", "rgcn") is None


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (
            Sampling("neighbor"),
            "ring is trained on the facts of a part of the graph, and the sampler neighbor draws "
            "neighbours or clusters of seeds: take one of frontier, walk, vertex, edge",
        ),
        (
            Sampling("vertex", normalize=True),
            "normalize weighs the losses of vertices, and ring is trained on facts: leave it out",
        ),
    ],
)
def test_what_parts_are_not_drawn_by(facts: LinkDataset, sampling: Sampling, message: str) -> None:
    with pytest.raises(TrainError, match=f"^{re.escape(message)}$"):
        train(facts, CONFIG, sampling=sampling)
