"""How well a linear classifier tells the classes of vertices from their embeddings: the protocol of
papers that compare embeddings.

Fu et al., "MAGNN" (2020), section 5.3: the model is trained on its few labels; the embeddings of
the test vertices are then split at random, a linear SVM is fitted to the one part and judged on the
other, ten times each for 20, 40, 60 and 80 %.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np

SHARES = (20, 40, 60, 80)
"""Percent of the test vertices that the classifier is fitted to."""

_SEEDS = tuple(182318 + i for i in range(10))
"""Of the splits of the authors' code."""

MISSING = (
    "magnn is judged by a linear SVM of its embeddings too (Fu et al. 2020, section 5.3), and "
    "scikit-learn is not installed: pip install 'gnnjit[svm]' for these scores"
)
"""What is said where they cannot be computed."""


def can_probe() -> bool:
    """Whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None


def svm_scores(embedding: Any, labels: Any) -> dict[str, float]:
    """The macro-F1 by name, of linear SVMs as MAGNN's authors fit them.

    Args:
        embedding: float[L, F], of the test vertices.
        labels: int[L], their classes.
    """
    metrics, selection, svm = (
        importlib.import_module(f"sklearn.{name}") for name in ("metrics", "model_selection", "svm")
    )
    x, y = np.asarray(embedding, np.float64), np.asarray(labels)
    found = {}
    for share in SHARES:
        scores = []
        for seed in _SEEDS:
            x_fit, x_rest, y_fit, y_rest = selection.train_test_split(
                x, y, train_size=share / 100, random_state=seed
            )
            said = svm.LinearSVC(dual=False).fit(x_fit, y_fit).predict(x_rest)
            scores.append(metrics.f1_score(y_rest, said, average="macro"))
        found[f"macro-F1, SVM {share}/{100 - share}"] = float(np.mean(scores))
    return found
