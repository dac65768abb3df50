"""The README: its code runs when pasted, its commands and names are the real ones."""

from __future__ import annotations

import code
import re
import tomllib
from pathlib import Path

import pytest

import gnnjit

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
NOT_SAID_IN_A_LAYER = {
    "Bipartite",
    "Graph",
    "TypedGraph",
    "autotuning",
    "check",
    "explain",
    "layer",
    "keep_memory",
    "memory_budget",
    "portable",
    "rebalance",
    "reference",
    "shard",
    "stream",
}


class Console(code.InteractiveConsole):
    """The interactive interpreter, but an error is an error."""

    def showtraceback(self) -> None:
        raise

    def showsyntaxerror(self, *args: object, **keywords: object) -> None:
        raise


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def paste(console: Console, block: str) -> None:
    """Line by line, as a terminal gets it: a blank line ends an indented block."""
    waiting = False
    for line in [*block.splitlines(), ""]:
        waiting = console.push(line)
    assert not waiting, f"the block is not complete:\n{block}"


def test_code_runs_when_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console({"__name__": "__main__"})
    for block in blocks("python"):
        paste(console, block)
    shown = capsys.readouterr().out
    assert "after place-in-smallest-space" in shown
    assert "optimised against interpreted" in shown
    assert console.locals["y"].shape == (1000, 16)
    assert [x.shape for x in console.locals["gradient"]] == [(32, 16), (2, 16)]


def test_it_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 130


def test_the_first_example_is_as_short_as_promised() -> None:
    assert len([line for line in blocks("python")[0].splitlines() if line]) <= 10


def test_the_two_commands() -> None:
    shell = blocks("sh")
    assert shell[:2] == ["pip install . && gnnjit train\n", "pip install '.[test]' && pytest\n"]


def test_vocabulary_is_complete() -> None:
    said = set(re.findall(r"`(?:gnnjit\.)?(\w+)`", README))
    assert set(gnnjit.__all__) - NOT_SAID_IN_A_LAYER <= said


def test_modules_are_named() -> None:
    import gnnjit.nn

    for name in gnnjit.nn.__all__:
        assert re.search(rf"\b{name}\b", README), f"{name} is missing from the README"


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    assert "jax>=0.10.2" in project["dependencies"]
