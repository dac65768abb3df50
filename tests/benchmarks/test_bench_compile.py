"""The benchmark of compile times runs at smoke size, and its networks agree in all forms."""

from __future__ import annotations

import importlib
import json
import pathlib

import numpy as np
import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.long
def test_smoke(folder, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    bench = importlib.import_module("bench_compile")
    lines = tmp_path / "compile.jsonl"
    assert bench.main(["--smoke", "--networks", "edgeconv", "--json", str(lines)]) == 0
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [r["form"] for r in records] == list(bench.FORMS)
    assert all(r["smoke"] and r["compile_cpu_seconds"] > 0 < r["step_seconds"] for r in records)
    assert sum(s.startswith("| edgeconv ") for s in capsys.readouterr().out.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["egnn", "gns", "schnet"])
def test_forms_agree(folder, name: str) -> None:
    networks = importlib.import_module("edge_networks.single")
    model, inputs = networks.MODELS[name], networks.make(12, 40, 5)
    p = networks.parameters(model.shapes(5))
    own, *others = [f(p, inputs) for f in (model.layer, model.plain, model.split)]
    np.testing.assert_allclose(others, own, rtol=1e-4)


def test_unknown_networks_are_named(folder) -> None:
    bench = importlib.import_module("bench_compile")
    with pytest.raises(SystemExit, match=r"unknown .'gcm'."):
        bench.main(["--networks", "gcm"])


def test_wrong_numbers_end_it(folder) -> None:
    bench = importlib.import_module("bench_compile")
    sizes = bench.Sizes("egnn", 4, 5, 6)
    with pytest.raises(SystemExit, match="WRONG: gnnjit"):
        bench._compare(sizes, {"gnnjit": [np.ones(3)], "plain": [np.zeros(3) + 2]})
