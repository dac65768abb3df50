"""The benchmark of edge networks runs at smoke size, and its networks agree in all forms."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"
NAMES = [
    "gns",
    "graphcast",
    "egnn",
    "forces",
    "forces-directed",
    "painn",
    "mace",
    "gvp",
    "nequip",
    "nnconv",
    "edgeconv",
]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("bench_edge_networks")


@pytest.mark.long
def test_smoke(tmp_path: pathlib.Path) -> None:
    lines = tmp_path / "lines.jsonl"
    script = str(FOLDER / "bench_edge_networks.py")
    command = [sys.executable, script, "--smoke", "--models", "egnn,nnconv", "--json", str(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    forms = ["layer", "plain", "split", "checkpoint"]
    found = [(row["network"], row["form"]) for row in rows]
    assert found == [*(("egnn", f) for f in forms), *(("nnconv", f) for f in [*forms, "pyg"])]
    assert rows[-1]["status"] in ("ok", "skipped")
    assert all(r["error"] < 1e-3 and 0 < r["peak_share"] for r in rows if r["form"] != "pyg")
    assert all(r["least_seconds"] > 0 < r["temp_bytes"] for r in rows if r["form"] != "pyg")
    assert sum(s.startswith(("| egnn ", "| nnconv ")) for s in done.stdout.splitlines()) == 2


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_forms_agree(bench: Any, name: str) -> None:
    network = importlib.import_module("edge_networks.network")
    model = bench.NETWORKS[name]
    i = network.make(12, 40, both_ways=model.both_ways)
    given = network.stack_parameters(model, 4), network.state(model, i, 4), i
    # A checkpoint changes no number of the form that it is of.
    forms = [f for f in model.forms() if f not in ("plain", "checkpoint")]
    plain, *others = [
        [np.asarray(x, np.float32) for x in jax.tree.leaves(jax.jit(step)(*given))]
        for form in ("plain", *forms)
        for step in [jax.value_and_grad(network.stack(model, form), argnums=(0, 1))]
    ]
    assert max(bench.error(found, plain) for found in others) < model.tolerance


def test_all_networks_are_tested(bench: Any) -> None:
    assert list(bench.NETWORKS) == NAMES


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--models", "gcn"], r"--models: unknown .'gcn'."),
        (["--forms", "plain,jraph"], r"--forms: unknown .'jraph'."),
        (["--forms", "layer"], "plain is missing"),
        (["--sizes", "10x20"], "got '10x20'"),
    ],
)
def test_what_there_is_not_is_named(bench: Any, given: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        bench.main(given)


class Answers:
    """A case that gives one array."""

    def __init__(self, value: float):
        self._value = value

    def ask(self, method: str, *args: Any) -> Any:
        return [np.full(4, self._value)] if method == "values" else [1.0]

    def close(self) -> None: ...


def test_wrong_numbers_are_not_timed(bench: Any, monkeypatch: Any, tmp_path: pathlib.Path) -> None:
    setting = bench.Setting(("egnn",), ("layer", "plain"), ((5, 6, 4),), rounds=2)
    cases = {"layer": Answers(2.0), "plain": Answers(1.0)}
    monkeypatch.setattr(bench, "_start", lambda task, *_: (cases[task.form], {}))
    some = list(bench.tasks(setting, "egnn", (5, 6, 4)))
    layer, plain = bench.bench(some, setting, tmp_path)
    assert layer["status"] == "wrong"
    assert layer["error"] == 1.0
    assert "least_seconds" not in layer
    assert (plain["status"], plain["least_seconds"], plain["steps"]) == ("ok", 1.0, 2)


class Ends(Answers):
    """A case whose process the system ends when it is asked for something."""

    def __init__(self, asked: str, failed: type[Exception]):
        super().__init__(1.0)
        self._asked, self._failed = asked, failed

    def ask(self, method: str, *args: Any) -> Any:
        if method == self._asked:
            raise self._failed("the process ended with -9")
        return super().ask(method, *args)


@pytest.mark.parametrize("method", ["values", "run"])
def test_a_process_that_ends_leaves_the_others_alone(
    bench: Any, method: str, monkeypatch: Any, tmp_path: pathlib.Path
) -> None:
    setting = bench.Setting(("egnn",), ("layer", "plain", "split"), ((5, 6, 4),), rounds=2)
    cases = {"layer": Answers(1.0), "plain": Answers(1.0), "split": Ends(method, bench.Failed)}
    monkeypatch.setattr(bench, "_start", lambda task, *_: (cases[task.form], {}))
    some = list(bench.tasks(setting, "egnn", (5, 6, 4)))
    *others, split = bench.bench(some, setting, tmp_path)
    assert [(r["status"], r["error"], r["steps"]) for r in others] == [("ok", 0.0, 2)] * 2
    assert (split["status"], split["reason"]) == ("failed", "the process ended with -9")
    assert "least_seconds" not in split


def test_a_process_that_has_ended_fails_however_often_it_is_asked(bench: Any) -> None:
    child = importlib.import_module("edge_networks.child")
    case = child.Remote(64, {})
    case._process.kill()
    for _ in range(2):
        with pytest.raises(bench.Failed, match="the process ended with -9"):
            case.ask("measure")
    case.close()


def test_values_that_are_not_finite_are_wrong(bench: Any) -> None:
    assert bench.error([np.array([np.nan])], [np.ones(1)]) == np.inf
