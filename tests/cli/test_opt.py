"""`gnnjit opt`: passes over a program in text."""

from __future__ import annotations

import io
import json
import textwrap

import pytest

from gnnjit.cli import main, opt
from gnnjit.ir.parse import parse

GCN = """\
layer gcn(e.src: f32[src, 4], w: f32[4, 3])
  a: f32[edge, 3] = e.src[u] @ w
  b: f32[dst, 3] = sum over (u -> v) of a
  return b
"""
PLACED = """\
layer gcn(e.src: f32[src, 4], w: f32[4, 3])
  a: f32[src, 3] = e.src @ w
  b: f32[dst, 3] = sum over (u -> v) of a[u]
  return b
"""
FUSED = """\
layer gcn(e.src: f32[src, 4], w: f32[4, 3])
  a: f32[src, 3] = e.src @ w
  for each edge (u -> v) of a[u]
    b: f32[dst, 3] = sum over (u -> v) of a[u]
  return b
"""
PLACE = "place-in-smallest-space"


@pytest.fixture
def optimised(capsys, monkeypatch, tmp_path):
    """Runs the command on a text; (exit code, standard output, standard error)."""

    def run(text, *options, stdin=False):
        file = tmp_path / "layer.txt"
        file.write_text(text)
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        code = main.main(["opt", "-" if stdin else str(file), *options])
        out, err = capsys.readouterr()
        return code, out, err.replace(str(file), "layer.txt")

    return run


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], FUSED),
        (["--passes", "all"], FUSED),
        (["--passes", PLACE], PLACED),
        (["--passes", f"{PLACE},fuse-scatter-apply-gather"], FUSED),
        (["--passes", "drop-dead"], GCN),
    ],
)
def test_the_program_after_the_passes(optimised, options, expected):
    assert optimised(GCN, *options) == (0, expected, "")


def test_standard_input(optimised):
    assert optimised(GCN, "--passes", PLACE, stdin=True) == (0, PLACED, "")


def test_what_is_printed_can_be_read_again(optimised):
    _, once, _ = optimised(GCN)
    assert optimised(once) == (0, FUSED, "")


def test_each_pass_that_changed_it(optimised):
    steps = f"--- after {PLACE}\n{PLACED}\n--- after fuse-scatter-apply-gather\n{FUSED}"
    assert optimised(GCN, "--each") == (0, steps, "")
    assert optimised(GCN, "--each", "--passes", "drop-dead") == (0, GCN, "")


def test_json(optimised):
    code, out, err = optimised(GCN, "--passes", PLACE, "--json", "-")
    assert (code, err) == (0, PLACED)
    placed = PLACED.rstrip()
    assert json.loads(out) == {"program": placed, "steps": [{"pass": PLACE, "program": placed}]}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "sink-vertex-work",
            PLACED,
            """
            layer gcn(e.src: f32[src, 4], w: f32[4, 3])
              a: f32[edge, 3] = e.src[u] @ w
              b: f32[dst, 3] = sum over (u -> v) of a
              return b
            """,
        ),
        (
            "store-edge-values",
            """
            layer mlp(e.data: f32[edge, 4], w: f32[4, 3])
              a: f32[edge, 3] = e.data @ w
              b: f32[edge, 3] = tanh(a)
              c: f32[dst, 3] = sum over (u -> v) of b
              return c
            """,
            """
            layer mlp(e.data: f32[edge, 4], w: f32[4, 3])
              a: f32[edge, 3] = e.data @ w
              b: f32[edge, 3] = kept(a)
              c: f32[edge, 3] = tanh(b)
              d: f32[dst, 3] = sum over (u -> v) of c
              return d
            """,
        ),
    ],
)
def test_a_pass_with_choices_takes_them_all(optimised, name, before, after):
    code, out, _ = optimised(textwrap.dedent(before).lstrip(), "--passes", name)
    assert (code, parse(out)) == (0, parse(textwrap.dedent(after)))


def test_a_matrix_moves_to_the_other_side_of_its_sum(optimised):
    _, out, _ = optimised(PLACED, "--passes", "reorder-aggregate-combine")
    assert out.index("sum over") < out.index("@ w")


@pytest.mark.parametrize("name", sorted(opt.passes_by_name()))
def test_every_pass_has_its_name(optimised, name):
    assert optimised(PLACED, "--passes", name)[0] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GCN.replace("@ w", "@ z"), "layer.txt: line 2: z is not defined"),
        ("", "layer.txt: line 1: no text; a program starts with `layer name(inputs)`"),
        (
            GCN.replace("edge, 3", "edge, 5"),
            "layer.txt: gcn: output 0 is f32[edge, 5], but dot_general gives f32[edge, 3] in: "
            "a: f32[edge, 5] = e.src[u] @ w",
        ),
    ],
)
def test_a_text_that_is_no_program(optimised, text, message):
    assert optimised(text) == (2, "", f"gnnjit: error: {message}\n")


def test_an_unknown_pass(optimised):
    code, out, err = optimised(GCN, "--passes", "drop-dead,drop-ded")
    assert (code, out) == (2, "")
    assert err.startswith("gnnjit: error: --passes: got 'drop-ded', expected all or some of ")
    assert err.endswith("; did you mean 'drop-dead'?\n")


def test_no_such_file(capsys, tmp_path):
    assert main.main(["opt", str(tmp_path / "none.txt")]) == 2
    assert capsys.readouterr().err == (
        f"gnnjit: error: {tmp_path / 'none.txt'} cannot be read (No such file or directory): name "
        "a file that holds a program, or - for standard input\n"
    )


def test_it_is_listed(capsys):
    assert main.main(["--help"]) == 0
    assert opt.SUMMARY in " ".join(capsys.readouterr().out.split())
