"""The benchmark of compile times runs at smoke size."""

from __future__ import annotations

import importlib
import json
import pathlib

import jax
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
    assert bench.main(["--smoke", "--layers", "edgeconv,gcn", "--json", str(lines)]) == 0
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [r["form"] for r in records] == [*bench.FORMS] * 2
    assert all(r["smoke"] and r["seconds"] > 0 for r in records)
    found = capsys.readouterr().out.splitlines()
    assert [s.split(" ")[1] for s in found if s.startswith("| ")][1:] == ["---", "edgeconv", "gcn"]


def test_unknown_layers_are_named(folder) -> None:
    bench = importlib.import_module("bench_compile")
    with pytest.raises(SystemExit, match=r"--layers: unknown .'gcm'."):
        bench.main(["--layers", "gcm"])


NAMES = ["appnp", "cheb", "commnet", "ggnn", "gine", "graphnet", "lightgcn", "ngcf"]


@pytest.mark.parametrize("name", NAMES)
def test_modules_and_plain_jax_give_the_same(folder, name: str) -> None:
    modules = importlib.import_module("layers.modules")
    workloads = importlib.import_module("common.workloads")
    work = workloads.make(workloads.Sizes(20, 60, 8))

    def found(form: str) -> list[np.ndarray]:
        step, given = modules.step(name, form, work)
        return [np.asarray(x) for x in jax.tree.leaves(jax.jit(step)(*given))]

    for own, plain in zip(found("layer"), found("plain"), strict=True):
        np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-5)


def test_all_modules_are_tested(folder) -> None:
    bench = importlib.import_module("bench_compile")
    modules = importlib.import_module("layers.modules")
    assert [*bench.MODULES] == [*modules.MODULES] == NAMES
