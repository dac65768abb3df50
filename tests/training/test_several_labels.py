"""Vertices with several labels: the loss, the micro-F1, and who refuses them."""

from __future__ import annotations

import numpy as np
import pytest

from gnnjit import Graph
from gnnjit.data import Dataset
from gnnjit.data.stored.write import store_dataset
from gnnjit.errors import DataError
from gnnjit.store import HostStore
from gnnjit.training import TrainConfig, train
from gnnjit.training.metrics import cross_entropy


def make(n: int = 60, classes: int = 3) -> Dataset:
    """Labels that follow from the features."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, n, (2, 4 * n))
    x = rng.normal(size=(n, 8)).astype(np.float32)
    part = np.arange(n) % 3
    masks = [part == i for i in range(3)]
    return Dataset("several", Graph.from_edges(src, dst, n), x, x[:, :classes] > 0, *masks, classes)


def test_loss_is_the_mean_over_the_classes() -> None:
    logits = np.array([[0.3, -2.0], [5.0, 0.0]], np.float32)
    labels = np.array([[True, False], [False, True]])
    p = 1 / (1 + np.exp(-logits))
    want = -np.where(labels, np.log(p), np.log(1 - p)).mean(axis=1)
    np.testing.assert_allclose(cross_entropy(logits, labels), want, rtol=1e-5)


def test_training_reports_the_micro_f1() -> None:
    data = make()
    config = TrainConfig(model="sage", hidden=16, dropout=0.0, lr=0.05, epochs=60)
    result = train(data, config)
    assert result.metric == "micro-F1"
    assert result.to_dict()["metric"] == "micro-F1"
    said = np.asarray(result.model(data.graph, data.x)) > 0
    for split in ("train", "test"):
        mask = getattr(data, f"{split}_mask")
        true, positive = data.y[mask], said[mask]
        f1 = 2 * (true & positive).sum() / (true.sum() + positive.sum())
        assert result.accuracy[split].mean == pytest.approx(f1, abs=1e-6)
    assert result.accuracy["train"].mean > 0.9


def test_labels_must_fit() -> None:
    data = make()
    with pytest.raises(DataError, match=r"y is bool\[60, 3\], expected bool\[60, 4\]"):
        Dataset("d", data.graph, data.x, data.y, data.train_mask, data.val_mask, data.test_mask, 4)


def test_a_store_holds_one_label_a_vertex() -> None:
    with HostStore() as store, pytest.raises(DataError, match="several labels, expected one"):
        store_dataset(make(), store)
