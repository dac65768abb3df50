"""What the benchmarks share: passes over what is measured, and lines of what was found."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("common.measure")


def test_what_is_open_is_read_in_further_passes(
    measure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def readings(runs: list[str], arrays: Any, *, fill: float, turns: tuple[int, int]) -> Any:
        asked.append((runs[0], fill))
        assert turns == (5, measure.MOST_TURNS)
        return np.ones((5, len(runs)))

    monkeypatch.setattr("gnnjit.system.timing.readings", readings)
    groups = [["clear", "other"], ["open", "other"], ["late", "other"]]
    known = iter([True, False, False, True, False, True, True, False, True])
    passes: list[int] = []

    def tells(found: list[np.ndarray]) -> bool:
        passes.append(len(found))
        return next(known)

    times = measure.in_passes(groups, 5, 2, None, 0.2, tells, 3)
    first = [("clear", 0.2), ("open", 0.2), ("late", 0.2)]
    later = [("open", measure.LONGER), ("late", measure.LONGER)]
    assert asked == [*first, *first, *later, later[0], later[0]]
    assert passes == [2, 2, 2, 2, 3, 3, 2, 4, 3]
    assert times == [[1.0, 1.0]] * 3


def test_all_readings_of_a_group_count(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 2.0, 4.0])
    monkeypatch.setattr(
        "gnnjit.system.timing.readings",
        lambda *_, **__: np.array([[1.0, next(seconds)]]),
    )
    ((one, other),) = measure.in_passes([["a", "b"]], 1, 3, further=0)
    assert other / one == pytest.approx(2.0)


def test_lines_are_added(measure: Any, tmp_path: pathlib.Path) -> None:
    measure.append(None, {"a": 1})
    measure.append(tmp_path / "found", {"a": 1}, {"b": None})
    measure.append(tmp_path / "found", {"c": [2.5]})
    lines = (tmp_path / "found").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"a": 1}, {"b": None}, {"c": [2.5]}]
