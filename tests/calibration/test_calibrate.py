"""`gnnjit calibrate`: what it measures, prints and stores."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from gnnjit.calibration.points import PRODUCTS, calibration_points
from gnnjit.cli import calibrate as command
from gnnjit.cli import main
from gnnjit.cli.calibrate import readable
from gnnjit.cost import calibrate as calibration
from gnnjit.cost.calibrate import QUICK, THOROUGH, USUAL, Effort, Point, Prepared, calibrate
from gnnjit.cost.current import current, forget
from gnnjit.cost.defaults import default_model
from gnnjit.cost.kinds import KINDS
from gnnjit.cost.model import Work
from gnnjit.cost.store import Key
from gnnjit.errors import CostError

KIND, FEATURE = next((k, f[0]) for k, f in KINDS.items())
OTHER = next(k for k in KINDS if k != KIND)


def tiny(*arguments, **keywords) -> list[Point]:
    """Sleeps, so that what is measured is nearly known."""

    def point(n: int) -> Point:
        work = Work.of(KIND, **{FEATURE: n})
        return Point(f"sleep {n}", lambda: Prepared([work], lambda: [lambda: time.sleep(1e-3 * n)]))

    return [point(1), point(3)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield tmp_path / "gnnjit" / "cost-model"
    forget()


@pytest.fixture
def gnnjit(capsys, monkeypatch):
    """Runs the command on the tiny grid; (exit code, standard output, standard error)."""
    monkeypatch.setattr(command, "calibration_points", tiny)

    def run(*arguments: str):
        code = main.main(["calibrate", *arguments])
        return code, *capsys.readouterr()

    return run


def test_help(gnnjit):
    code, out, _ = gnnjit("--help")
    assert code == 0
    for option in ("--quick", "--thorough", "--json FILE", "--dry-run", "--seed N"):
        assert option in out


def test_a_calibration_is_stored_and_used(gnnjit):
    code, out, err = gnnjit()
    file = Key.here().path()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"stored in {file}"
    assert "calibrate" not in out.splitlines()[0], "a bar, though this is no terminal"
    assert current().source.startswith("calibrated: ")
    assert current().source.split(", ")[-2] == "2 points"
    assert current().seconds(Work.of(KIND, **{FEATURE: 1})) >= 0.5e-3


def test_json_on_standard_output(gnnjit):
    code, out, err = gnnjit("--json", "-", "--quick", "--seed", "3")
    assert code == 0
    found = json.loads(out)
    assert (found["seed"], found["quick"], found["thorough"]) == (3, True, False)
    assert found["file"] == str(Key.here().path())
    assert found["key"]["platform"] == jax.default_backend()
    assert [p["name"] for p in found["points"]] == ["sleep 1", "sleep 3"]
    for p in found["points"]:
        assert p["error"] == pytest.approx(abs(p["predicted"] / p["seconds"] - 1))
    assert found["error"] == pytest.approx(np.mean([p["error"] for p in found["points"]]))
    assert list(found["kinds"]) == list(KINDS)
    assert found["kinds"][KIND]["points"] == 2
    shipped = default_model(jax.default_backend()).to_json()
    assert found["kinds"][OTHER] == {"points": 0, "error": None, "weights": shipped[OTHER]}
    assert "mean error" in err
    assert f"stored in {Key.here().path()}" in err


def test_dry_run_stores_nothing(gnnjit, cache):
    code, out, _ = gnnjit("--dry-run")
    assert code == 0
    assert out.splitlines()[-1] == "not stored (--dry-run)"
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_known_before_measuring(gnnjit, cache, monkeypatch):
    monkeypatch.setattr(command, "calibrate", None)
    cache.parent.write_text("a file in the way")
    code, out, err = gnnjit()
    assert (code, out) == (2, "")
    assert err == (
        f"gnnjit: error: {cache}: the cost model cannot be stored there (Not a directory); set "
        "XDG_CACHE_HOME to a directory that can be written, or pass --dry-run to store nothing\n"
    )


def test_a_cache_that_cannot_be_written_is_no_matter_in_a_dry_run(gnnjit, cache):
    cache.parent.write_text("a file in the way")
    assert gnnjit("--dry-run")[0] == 0


def test_points_are_measured_in_order():
    done: list[str] = []
    report = calibrate(tiny(), repeats=2, progress=done.append)
    assert done == [p.name for p in report.points] == ["sleep 1", "sleep 3"]
    assert report.of_kind(KIND) == (2, report.error)
    assert report.of_kind(OTHER) == (0, 0.0)
    assert report.learner.points == 2


def test_what_calibrate_refuses():
    with pytest.raises(CostError, match="there are no points to calibrate with"):
        calibrate([])
    with pytest.raises(CostError, match="repeats is 0, expected at least 1"):
        calibrate(tiny(), repeats=0)


def test_passes_are_apart_in_time():
    """All points in a pass, each with both of its functions, then all in the next: their arrays
    are made anew, their functions are not."""
    order: list[str] = []
    compiled: list[str] = []

    def point(name: str) -> Point:
        works = [Work.of(KIND, **{FEATURE: n}) for n in (1, 2)]

        def compile_() -> list:
            compiled.append(name)
            return [lambda x: order.append(name) for _ in works]

        def prepare() -> Prepared:
            order.append(f"{name} made")
            return Prepared(works, compile_, [np.zeros(3)])

        return Point(name, prepare)

    effort = Effort(0, 0, passes=3, fill=0.0)
    report = calibrate(
        [point("a"), point("b")], effort, repeats=1, progress=lambda x: order.append(f"{x} done")
    )
    assert [p.name for p in report.points] == ["a", "a", "b", "b"]
    assert compiled == ["a", "b"]
    steps = [x for x, before in zip(order, [None, *order], strict=False) if x != before]
    assert steps == ["a made", "a", "a done", "b made", "b", "b done"] * 3


def test_the_fastest_pass_counts(monkeypatch):
    slow = iter([1.0, 3.0])

    def readings(runs, arrays, *, fill, turns):
        assert (fill, turns) == (0.1, (5, 500))
        return np.full((5, 1), next(slow))

    monkeypatch.setattr(calibration.timing, "readings", readings)
    effort = Effort(0, 0, passes=2, fill=0.1)
    report = calibrate(tiny()[:1], effort)
    assert [p.seconds for p in report.points] == pytest.approx([1.0])


def test_the_grid_runs_and_is_the_same_each_time():
    points, quick = calibration_points(USUAL, seed=1), calibration_points(QUICK, seed=1)
    names = [p.name for p in points]
    assert len(names) > len(quick)
    assert [p.name for p in quick] == names[: len(quick)]
    assert names != [p.name for p in calibration_points(seed=2)]
    products = 2 * len(PRODUCTS)
    some = slice(products - 3, products + 2)
    for point, again in zip(quick[some], points[some], strict=True):
        one, other = point.prepare(), again.prepare()
        assert one.works
        assert one.works == other.works
        for x, y in zip(*(jax.tree.leaves(once(p)) for p in (one, other)), strict=True):
            np.testing.assert_array_equal(x, y)


def once(prepared: Prepared):
    (run,) = prepared.compiled()
    return run(*prepared.arrays)


def test_a_thorough_calibration_has_more_and_larger_points():
    usual, thorough = calibration_points(USUAL), calibration_points(THOROUGH)
    assert len(thorough) > 2 * len(usual)
    assert len({p.name for p in thorough}) == len(thorough)
    assert max(map(most_numbers, thorough)) > 3 * max(map(most_numbers, usual))
    effort = dataclasses.replace(QUICK, every=True)
    counts = [len(p.prepare().works) for p in calibration_points(effort)]
    assert sum(counts) > len(counts), "no layer had a choice"


def most_numbers(point: Point) -> int:
    """Vertices times the larger width, as the name of a layer says; 0 of a product."""
    found = re.search(r"(\d+) vertices, \d+ edges, (\d+) -> (\d+)", point.name)
    return int(found[1]) * max(int(found[2]), int(found[3])) if found else 0


def test_quick_and_thorough_exclude_each_other(gnnjit):
    code, _, err = gnnjit("--quick", "--thorough")
    assert code == 2
    assert "--thorough: not allowed with argument --quick" in err


@pytest.mark.long
@pytest.mark.once
def test_the_grid_measures_every_kind():
    found = {kind for p in calibration_points() for work in p.prepare().works for kind in work}
    missing = set(KINDS) - found - {"memory"}
    assert not missing, "arrays of a calibration are too small for that, or no layer does it"


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (0.0, "free"),
        (2.0, "2 s"),
        (4e-6, "4 us"),
        (2.5e-3, "2.5 ms"),
        (5e-9, "5 ns"),
        (2.5e-11, "40 G/s"),
        (2.5e-15, "400 T/s"),
    ],
)
def test_readable_weights(weight, text):
    assert readable(weight) == text
