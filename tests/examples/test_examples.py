"""Each example runs at smoke size, and says what it is made of in plain numbers."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit.data import SensorDataset

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("shared_compilation")]

REPO = pathlib.Path(__file__).parents[2]
DATA = pathlib.Path(os.environ.get("GNNJIT_DATA_DIR") or REPO.parent / "shared" / "data")
EXAMPLES = {
    "particles": ("lagrange-lj3d", "h5py", "kinetic energy:"),
    "molecules": ("molecules", "rdkit", "test RMSE"),
    "forces": ("molecules", "rdkit", "a constant"),
    "weather": ("meshes", "scipy", "RMSE of u after"),
    "recommend": ("lastfm-rec", "scipy", "most popular"),
    "traffic": ("metr-la", "scipy", "without its graph"),
}
examples = pytest.mark.parametrize("name", EXAMPLES)


def loaded(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, REPO / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_is_here() -> None:
    assert {p.stem for p in (REPO / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.long
@examples
def test_smoke(name: str, tmp_path: pathlib.Path) -> None:
    folder, library, said = EXAMPLES[name]
    pytest.importorskip(library)
    if not (DATA / folder).is_dir():
        pytest.skip(f"the folder {folder} of datasets is not here")
    picture = tmp_path / "picture.png"
    script, data = str(REPO / "examples" / f"{name}.py"), str(DATA)
    command = [sys.executable, script, "--smoke", "--data-dir", data, "--picture", str(picture)]
    environment = os.environ | {"MPLBACKEND": "Agg", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert "nan" not in done.stdout
    if importlib.util.find_spec("matplotlib") is not None:
        assert done.stdout.endswith(f"picture: {picture}\n")
        assert picture.read_bytes().startswith(b"\x89PNG")


@examples
def test_without_matplotlib_a_line_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = loaded(name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    nothing = [None] * (module.picture.__code__.co_argcount - 1)
    module.picture("picture.png", *nothing)
    assert capsys.readouterr().out == (
        "no picture: matplotlib is not installed (pip install matplotlib)\n"
    )


def test_a_continuous_filter_is_that_of_section_3() -> None:
    module = loaded("forces")
    step = module.Interaction(4, nnx.Rngs(0))
    place = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    src, dst = np.array([1, 2, 0, 2]), np.array([0, 0, 1, 1])
    graph, h = gnnjit.Graph.from_edges(src, dst, 3), np.eye(3, 4, dtype=np.float32)
    apart = np.linalg.norm(place[dst] - place[src], axis=1)
    gathered = np.zeros((3, 4))
    for u, v, r in zip(src, dst, apart, strict=True):
        width = module.CUTOFF / module.GAUSSIANS
        told = np.exp(-(((r - np.linspace(0, module.CUTOFF, module.GAUSSIANS)) / width) ** 2))
        filters = step.second(module.ssp(step.first(told))) * np.cos(np.pi / 2 * r / 5) ** 2
        gathered[v] += np.asarray(filters * step.of_neighbour(h[u]))
    expected = h + np.asarray(step.out(module.ssp(step.hidden(gathered))))
    found = step(graph, {"h": h, "place": place})
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_traffic_walks_are_those_of_equation_2() -> None:
    module = loaded("traffic")
    weight = np.array([[0, 2, 0], [1, 0, 3], [0, 0, 0]], np.float32)
    src, dst = np.nonzero(weight)
    data = SensorDataset(
        "some", src.astype(np.int32), dst.astype(np.int32), weight[src, dst],
        np.array(["a", "b", "c"]), np.zeros((3, 2)),
    )  # fmt: skip
    x, own = np.arange(6.0).reshape(3, 2).astype(np.float32), weight + np.eye(3, dtype=np.float32)
    along, against = (module.hop(graph, x, edges=share) for graph, share in module.walks(data))
    np.testing.assert_allclose(along, own / own.sum(axis=1, keepdims=True) @ x, rtol=1e-6)
    np.testing.assert_allclose(against, own.T / own.sum(axis=0)[:, None] @ x, rtol=1e-6)


def test_recommendations_are_measured_among_what_was_not_seen() -> None:
    module = loaded("recommend")
    scores = np.tile(-np.arange(30.0), (3, 1))
    seen, wanted = np.zeros((2, 3, 30), bool)
    seen[0, 0] = wanted[0, 1] = wanted[1, 25] = wanted[1, 1] = (
        True  # 0 hides; 25 is no longer first
    )
    recall, ndcg = module.measured(scores, seen, wanted)
    second = 1 / np.log2(3)  # user 1 finds one of two, in the second place
    assert recall == pytest.approx((1 + 0.5) / 2)
    assert ndcg == pytest.approx((1 + second / (1 + second)) / 2)


def test_patches_of_a_mesh_cover_it_and_meet() -> None:
    module = loaded("weather")
    src, dst = np.concatenate(
        [[np.arange(9), np.arange(1, 10)], [np.arange(1, 10), np.arange(9)]], 1
    )
    patch = module.grow(src, dst, 10, 3, 0)
    assert set(patch) == {0, 1, 2}
    assert (np.diff(patch) != 0).sum() == 2  # each is a part of the line
    assert module.meet(src, dst, patch).shape == (2, 4)
