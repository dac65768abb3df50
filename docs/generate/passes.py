"""A page for each pass: its docstring, and a real layer before and after it."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import gnnjit
from gnnjit.ir.parse import parse
from gnnjit.ir.program import Program
from gnnjit.ir.show import show
from gnnjit.ir.space import Space
from gnnjit.passes.pipeline import Choices, Pass, layer_passes, lowering_passes, run

from . import write_folder
from .layers import CASES, Case

BOTH = frozenset((Space.SRC, Space.DST))
CHOICES = (
    Choices(),
    Choices(products=True),
    Choices(orders=("aggregate-first",)),
    Choices(orders=("combine-first",)),
    Choices(stored=(0,)),
    Choices(on_edges=BOTH),
)
EVERY = Choices(("aggregate-first",), (), True, (0,), False, BOTH)
"""With a choice for each pass that is there only where a plan wants it."""

WHEN = {
    "layer": "for every layer",
    "choice": "where the plan of a call says so",
    "kernel": "for a traversal that is about to become code",
}


@dataclasses.dataclass(frozen=True)
class Example:
    """What a pass did to a layer."""

    source: str
    before: str
    after: str


def write(docs: Path) -> None:
    """`docs/compiler/passes/`: an index in the order of the pipeline, and a page for each pass."""
    steps = in_order()
    pages = {f"{name}.md": _page(name, step, example(name)) for name, step in steps.items()}
    write_folder(docs / "compiler/passes", {"index.md": _index(steps)} | pages)


def in_order() -> dict[str, Pass]:
    """Every pass by name, where it runs first."""
    steps: dict[str, Pass] = {}
    kernel = lowering_passes(online=True, scale_on_edges=True, keep=BOTH, store_shared=True)
    for step in (*layer_passes(False, EVERY), *kernel):
        steps.setdefault(step.name, step)
    return steps


def when(name: str) -> str:
    """A key of `WHEN`."""
    if name in {step.name for step in layer_passes(False)}:
        return "layer"
    return "choice" if name in {step.name for step in layer_passes(False, EVERY)} else "kernel"


def example(name: str) -> Example:
    """The first change that the pass makes to its layer."""
    case = CASES.get(name)
    if case is None:
        raise ValueError(f"docs/generate/layers.py has no layer for the pass {name}: add one")
    for step, before, after in _changes(parse(case.gradient or _written(case))):
        if step == name:
            return Example(textwrap.dedent(inspect.getsource(case.layer)), before, after)
    raise ValueError(f"docs/generate/layers.py: {name} does not change its layer: choose another")


def _written(case: Case) -> str:
    """The program of a layer, on a graph of four edges, as text."""
    graph = gnnjit.Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], num_nodes=3)
    vertices = case.vertices if isinstance(case.vertices, dict) else {"": case.vertices}
    x = {name: jnp.ones((3, *shape)) for name, shape in vertices.items()}
    if isinstance(case.edges, str):
        edges = jnp.ones(4, case.edges)
    else:
        edges = None if case.edges is None else jnp.ones((4, *case.edges))
    args = (graph, x.get("", x), *map(jnp.ones, case.params))
    return case.layer.explain(*args, edges=edges, backward=False).written


def _changes(written: Program) -> Iterator[tuple[str, str, str]]:
    """What each pass changes: in a layer under each choice, and in a traversal that is about to
    become code."""
    pipelines = [layer_passes(False, choices) for choices in CHOICES]
    pipelines += [
        lowering_passes(online=on, scale_on_edges=True, store_shared=True) for on in (True, False)
    ]
    for steps in pipelines:
        seen: list[tuple[str, str, str]] = []

        def observe(step: Pass, before: Program, after: Program, seen: Any = seen) -> None:
            if after is not before and after != before:
                seen.append((step.name, _text(before), _text(after)))

        try:
            run(written, steps, [observe])
        except (IndexError, ValueError):  # a choice that this layer does not leave
            continue
        yield from seen


def _text(program: Program) -> str:
    return show(program, locations=False)


def _index(steps: dict[str, Pass]) -> str:
    rows = [f"| [{n}]({n}.md) | {_summary(s)} | {WHEN[when(n)]} |" for n, s in steps.items()]
    table = "\n".join(["| pass | what it does | runs |", "|---|---|---|", *rows])
    listed = "\n".join(steps)
    return (
        "# The passes, in order\n\nEach rewrites a program into one that means the same. They are "
        "listed where they run first; several run again later.\n\n"
        f"{table}\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
    )


def _page(name: str, step: Pass, example: Example) -> str:
    _, *paragraphs = _doc(step).split("\n\n")
    parts = [f"# {name}", _sentence(_summary(step)), *map(_paragraph, paragraphs)]
    parts += ["## On a layer", f"```python\n{example.source.strip()}\n```"]
    parts += ["Before:", _program(example.before), "After:", _program(example.after)]
    parts += [f"This pass runs {WHEN[when(name)]}."]
    return "\n\n".join(parts) + "\n"


def _doc(step: Pass) -> str:
    """The docstring of the file, which holds one pass."""
    return inspect.cleandoc(sys.modules[type(step).__module__].__doc__ or "")


def _summary(step: Pass) -> str:
    """The docstring's first sentence, without the name before it."""
    first = " ".join(_doc(step).split("\n\n")[0].split())
    return re.sub(r"^`[a-z-]+`: ", "", first).rstrip(".")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _paragraph(text: str) -> str:
    """Programs are aligned by blanks, or begin with a label; all else is Markdown."""
    if text.startswith("    ") or re.search(r"\S {2,}\S", text):
        return _program(textwrap.dedent(text))
    return text.replace("*", "\\*") if "`" not in text else text


def _program(text: str) -> str:
    return f"```text\n{text}\n```"
