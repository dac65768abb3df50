"""Tiles are chosen by time, once, and kept on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pallas import with_tasks

import gnnjit
from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.pallas import kernel, launch, timing_inputs, tune
from gnnjit.lower.pallas.tune import candidates, static_config
from gnnjit.system import autotuning
from pallas_kernels.rows import TileConfig
from pallas_kernels.traversal import TileProgram

X = Value((5,), np.dtype(np.float32), Space.SRC, "x")
BODY = Program((X,), (), (X,), "body")
SUM = (Reduce("sum", Space.DST),)
KERNEL = tune.TunedKernel("long", BODY, SUM, (100, 100, 1000))
(PART,) = kernel.parts(BODY, SUM, Space.DST)
T = launch.tile_program(PART, Space.DST, {})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gnnjit" / "tiles.json"


class Clock:
    """The fewer lanes the faster; counts what it was asked."""

    def __init__(self, *broken: int):
        self.asked: list[TileConfig] = []
        self.broken = broken

    def __call__(self, t: TileProgram) -> tune.Timer:
        return self.time

    def time(self, config: TileConfig) -> float:
        self.asked.append(config)
        if config.lanes in self.broken:
            raise RuntimeError("out of shared memory")
        return config.lanes + config.warps / 100


def test_the_fastest_is_kept_and_never_timed_again(cache):
    clock = Clock()
    with gnnjit.autotuning():
        best = tune.choose(KERNEL, T, clock)
    assert best == min(candidates(KERNEL, T), key=lambda c: (c.lanes, c.warps))
    assert len(clock.asked) == len(candidates(KERNEL, T)) > 1
    again = Clock()
    for on in (True, False):
        with gnnjit.autotuning(on):
            assert tune.choose(KERNEL, T, again) == best
    assert again.asked == []
    (where,) = json.loads(cache.read_text())["tiles"]
    assert where.startswith(tune.device())


def test_a_candidate_that_fails_is_left_out():
    broken = min(c.lanes for c in candidates(KERNEL, T))
    with gnnjit.autotuning():
        assert tune.choose(KERNEL, T, Clock(broken)).lanes > broken


def test_where_all_fail_the_static_choice_stays_and_nothing_is_kept(cache):
    with gnnjit.autotuning():
        assert tune.choose(
            KERNEL, T, Clock(*(c.lanes for c in candidates(KERNEL, T)))
        ) == static_config(KERNEL, T)
    assert not cache.exists()


def test_without_tuning_or_without_a_device(cache):
    clock = Clock()
    assert tune.choose(KERNEL, T, clock) == static_config(KERNEL, T)
    with gnnjit.autotuning():
        assert tune.choose(KERNEL, T, None) == static_config(KERNEL, T)
    assert clock.asked == []
    assert not cache.exists()


def test_the_flag_of_the_environment(monkeypatch):
    monkeypatch.setattr("gnnjit.config.AUTOTUNE", True)
    assert autotuning.is_on()
    with gnnjit.autotuning(False):
        assert not autotuning.is_on()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": 7, "tiles": {}}',
        '{"format": 1, "tiles": {"a": {"lanes": 3, "warps": 4, "stages": 2}}}',
        '{"format": 1, "tiles": {"a": {"lanes": "16", "warps": 4, "stages": 2}}}',
        '{"format": 1, "tiles": {"a": {"width": 4}}}',
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_and_replaced(text, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text(text)
    with pytest.warns(UserWarning, match=r"tiles\.json: not a table of gnnjit's tiles"):
        assert tune.choose(KERNEL, T, Clock()) == static_config(KERNEL, T)
    with gnnjit.autotuning():
        best = tune.choose(KERNEL, T, Clock())
    assert list(json.loads(cache.read_text())["tiles"].values()) == [
        {"lanes": best.lanes, "warps": best.warps, "stages": best.stages}
    ]


def test_a_directory_that_cannot_be_written(cache):
    cache.parent.parent.joinpath("gnnjit").write_text("a file")
    with gnnjit.autotuning(), pytest.warns(UserWarning, match="cannot be written"):
        assert tune.choose(KERNEL, T, Clock()) != static_config(KERNEL, T)


def test_the_key_is_that_of_the_program_and_the_size():
    other = Value((5,), np.dtype(np.float32), Space.SRC, "x")
    same = tune.TunedKernel("long", Program((other,), (), (other,), "body"), SUM, (101, 99, 900))
    larger = tune.TunedKernel("long", BODY, SUM, (100, 100, 9000))
    most = tune.TunedKernel("long", BODY, (Reduce("max", Space.DST),), (100, 100, 1000))
    assert same.key() == KERNEL.key()
    assert len({KERNEL.key(), larger.key(), most.key()}) == 3


def test_candidates_are_powers_of_two_that_fit():
    for c in candidates(KERNEL, T):
        assert c.lanes & (c.lanes - 1) == 0
        assert c.lanes * 8 <= 8192
    assert candidates(KERNEL, T)[0] == static_config(KERNEL, T)


@pytest.mark.parametrize("tasks", [False, True])
def test_the_timers_run_the_kernels(tasks):
    """Interpreted: what is timed is nonsense here, that it runs is not."""
    graph = gnnjit.Graph.from_edges([0, 1, 1, 2, 0, 0], [0, 0, 0, 0, 1, 2], 3)
    structure = graph.in_structure
    if tasks:
        structure = with_tasks(graph, 1, 2).in_structure
    x = np.ones((3, 5), np.float32)
    plan = launch.plan_of(structure)
    config = TileConfig(lanes=4)
    assert timing_inputs.rows_timer(plan, 3, 6, [x], interpret=True)(T)(config) > 0
    into_all = (Reduce("sum", Space.SHARED),)
    (part,) = kernel.parts(BODY, into_all, Space.DST)
    t = launch.tile_program(part, Space.DST, {})
    assert timing_inputs.edges_timer(3, 3, 6, [x], interpret=True)(t)(config) > 0
