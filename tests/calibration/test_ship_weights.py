"""The weights that gnnjit ships, made anew."""

from __future__ import annotations

from gnnjit.calibration.ship_weights import with_shipped
from gnnjit.cost.kinds import KINDS
from gnnjit.cost.model import Work


def table(value: float) -> dict[str, dict[str, float]]:
    return {kind: dict.fromkeys(features, value) for kind, features in KINDS.items()}


def test_what_was_not_measured_keeps_its_weight() -> None:
    works = [Work.of("chunks", count=3), Work.of("matmul", flops=1e9, count=0)]
    wanted = table(1.0)
    wanted["chunks"]["count"] = wanted["matmul"]["flops"] = 2.0
    assert with_shipped(table(2.0), works, table(1.0)) == wanted


def test_a_new_feature_that_was_not_measured_costs_nothing() -> None:
    found = with_shipped(table(2.0), [Work.of("matmul", flops=1)], {})
    assert found["matmul"]["flops"] == 2.0
    assert found["chunks"] == dict.fromkeys(KINDS["chunks"], 0.0)
