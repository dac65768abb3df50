"""`gnnjit explain`."""

import json

import pytest

from gnnjit.cli.main import main
from gnnjit.lower.choose import KERNELS


def test_explain_prints_passes_buffers_and_kernels(capsys):
    assert main(["explain", "karate", "--model", "gat", "--no-backward"]) == 0
    text = capsys.readouterr().out
    for title in ("as written", "after fuse-scatter-apply-gather", "buffers", "kernels"):
        assert f"--- {title}" in text
    assert "Graph(34 vertices, 156 edges)" in text


def test_explain_lists_the_gradient(capsys):
    assert main(["explain", "--model", "gcn"]) == 0
    assert "backward: " in capsys.readouterr().out


def test_plans_for_inference_and_training(capsys):
    assert main(["explain", "--model", "gcn", "--wrt", "params"]) == 0
    text = capsys.readouterr().out
    assert "--- plan for inference" in text
    assert "--- plan for training, gradients of the parameters" in text
    assert "measured" not in text


def test_measured_plans(capsys):
    assert main(["explain", "--model", "gcn", "--measure", "--no-backward"]) == 0
    text = capsys.readouterr().out
    assert "predicted  measured  choices" in text
    assert "plan for training" not in text


def test_learning_is_stored(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["explain", "--model", "gcn", "--measure", "--learn", "--no-backward"]) == 0
    assert "plan for inference" in capsys.readouterr().out
    assert [f.suffix for f in (tmp_path / "gnnjit" / "cost-model").iterdir()] == [".json"]


def test_learning_without_measuring_exits_with_2(capsys):
    assert main(["explain", "--model", "gcn", "--learn"]) == 2
    assert "give both" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["nothing"])
def test_unknown_model_exits_with_2(model, capsys):
    assert main(["explain", "--model", model]) == 2
    assert "invalid choice" in capsys.readouterr().err


def test_json(capsys, tmp_path):
    target = tmp_path / "explained.json"
    options = ("--model", "sage", "--no-backward", "--json")
    assert main(["explain", "karate", *options, str(target)]) == 0
    assert "--- buffers" in capsys.readouterr().out
    (layer,) = json.loads(target.read_text())["layers"]
    assert layer["kernels"][0]["kernel"] in KERNELS
    assert main(["explain", "karate", *options, "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["layers"][0]["name"] == layer["name"]
    assert "--- buffers" in err


def test_heads_of_a_model_that_has_none(capsys):
    assert main(["explain", "karate", "--model", "gcn", "--heads", "2"]) == 2
    message = "gnnjit: error: --heads: gcn has no attention heads: leave it out\n"
    assert capsys.readouterr().err == message
