"""The weights that gnnjit ships, made anew."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gnnjit
from gnnjit.calibration import points, ship_weights
from gnnjit.cost import calibrate as calibration
from gnnjit.cost.calibrate import Point, Prepared
from gnnjit.cost.kinds import KINDS
from gnnjit.cost.model import Work


def test_new_features_cost_nothing() -> None:
    found = ship_weights.completed({"matmul": {"flops": 2.0, "forgotten": 1.0}})
    assert {kind: tuple(row) for kind, row in found.items()} == KINDS
    assert found["matmul"] == {**dict.fromkeys(KINDS["matmul"], 0.0), "flops": 2.0}


def test_what_was_not_measured_keeps_its_weight(monkeypatch) -> None:
    work = Work.of("call", calls=1)
    only = Point("a call", lambda: Prepared([work], lambda: [lambda: None]))
    monkeypatch.setattr(points, "calibration_points", lambda *_, **__: [only])
    monkeypatch.setattr(calibration.timing, "readings", lambda *_, **__: np.ones((1, 1)))
    monkeypatch.setattr(calibration.timing, "compared", lambda _: [2.0])
    monkeypatch.setattr(gnnjit, "keep_memory", lambda: True)
    monkeypatch.setattr(ship_weights, "seconds_of_new_byte", lambda: 0.5)
    shipped = json.loads((ship_weights.COST / "weights.json").read_text())["cpu"]
    found = ship_weights.fit(1, 1, shipped)
    assert found["call"]["calls"] == pytest.approx(2, rel=0.01)
    assert found["chunks"] == shipped["chunks"]
    assert found["memory"]["fresh"] == 0.5
