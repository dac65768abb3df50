"""Scores beside the one that epochs are compared by, from the sums of an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnjit.training.metrics import Sums, macro_f1, mae, micro_f1, rmse
from gnnjit.training.tasks import SPLITS


def scores_of(sums: Sums) -> dict[str, dict[str, float | None]]:
    """By name and split; None for a split without labels."""
    more = dict(sums.more)
    found: dict[str, Any] = {}
    if "both" in more:
        true = more.pop("true")
        for known, note in (("", ""), ("known ", " of known counts")):
            if f"{known}both" in more:
                both, said = more.pop(f"{known}both"), more.pop(f"{known}said")
                found[f"micro-F1{note}"] = micro_f1(both, said, true)
                found[f"macro-F1{note}"] = macro_f1(both, said, true)
    if "squared" in more:
        found["RMSE"] = rmse(more.pop("squared"), sums.count)
        found["MAE"] = mae(more.pop("absolute"), sums.count)
    found |= {name: total / np.maximum(sums.count, 1) for name, total in more.items()}
    return {name: _by_split(values, sums.count) for name, values in found.items()}


def _by_split(values: Any, count: Any) -> dict[str, float | None]:
    return {s: float(values[i]) if count[i] else None for i, s in enumerate(SPLITS)}
