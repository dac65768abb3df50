"""`gnnjit explain`."""

import pytest

from gnnjit.cli import main


def test_explain_prints_passes_buffers_and_kernels(capsys):
    assert main(["explain", "karate", "--model", "gat", "--no-backward"]) == 0
    text = capsys.readouterr().out
    for title in ("as written", "after fuse-scatter-apply-gather", "buffers", "kernels"):
        assert f"--- {title}" in text
    assert "Graph(34 vertices, 156 edges)" in text


def test_explain_lists_the_gradient(capsys):
    assert main(["explain", "--model", "gcn"]) == 0
    assert "backward: " in capsys.readouterr().out


@pytest.mark.parametrize("model", ["nothing"])
def test_unknown_model_exits_with_2(model, capsys):
    assert main(["explain", "--model", model]) == 2
    assert "invalid choice" in capsys.readouterr().err
