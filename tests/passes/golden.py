"""Programs before and after a pass, as text; and programs before and after, as numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from ir.layers import GRAPH, operands

from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.parse import parse
from gnnjit.ir.program import Program
from gnnjit.ir.show import show
from gnnjit.ir.verify import verify
from gnnjit.passes.pipeline import Pass

EMPTY = Incidence(jnp.zeros(0, jnp.int32), jnp.zeros(0, jnp.int32), 4, 5)
PADDED = Incidence(
    jnp.array([0, 0, 1, 2, 1, 0, 0]), jnp.array([0, 0, 1, 3, 3, 0, 0]), 4, 5,
    jnp.array([True] * 5 + [False] * 2),
)  # fmt: skip
INCIDENCES = {"graph": GRAPH, "no edges": EMPTY, "padding": PADDED}


def program(text: str) -> Program:
    found = parse(textwrap.dedent(text))
    verify(found)
    return found


def fires(step: Pass, before: str, after: str) -> None:
    """`step` turns `before` into `after` (names aside), and both compute the same."""
    old = program(before)
    new = step(old)
    verify(new)
    assert new == program(after), show(new, locations=False)
    same(old, new)


def refuses(step: Pass, text: str) -> None:
    old = program(text)
    new = step(old)
    assert new == old
    assert show(new) == show(old)


def same(
    old: Program, new: Program, rtol: float = 1e-5, on: Sequence[str] = tuple(INCIDENCES)
) -> None:
    """Equal numbers on graphs with isolated vertices, duplicates, padding, and without edges."""
    for incidence in (INCIDENCES[name] for name in on):
        args = operands(old, incidence)
        for a, b in zip(outputs(old, incidence, args), outputs(new, incidence, args), strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-5)


def outputs(prog: Program, incidence: Incidence, args: Any) -> list[Any]:
    """One row per element; rows of padding edges are nobody's business."""
    found = []
    for x, atom in zip(interpret(prog, incidence, args), prog.outputs, strict=True):
        if atom.space.value in ("edge", "src"):
            x = incidence.valid(incidence.spread(x, atom.space), 0)
        elif atom.space.value == "shared":
            x = jnp.broadcast_to(x, (1, *jnp.shape(x)))
        found.append(x)
    return found
