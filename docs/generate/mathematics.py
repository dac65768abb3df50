"""Formulas as MathML, which browsers draw themselves: no script is loaded for them."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def inline(translator: Any, node: Any) -> None:
    """A formula in a line."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def display(translator: Any, node: Any) -> None:
    """A formula by itself; one that is wide scrolls."""
    formula = tex2mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode
