"""Docstrings as they stand in the code, made reStructuredText for Sphinx.

The code writes them in a plain style: single backticks around code, indented examples, lists with
dashes, and the sections `Args:`, `Attributes:`, `Returns:` and `Raises:`, which Sphinx's napoleon
reads after this. Everything else is text, whatever reStructuredText would see in it.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from typing import Any

from sphinx.util.inspect import stringify_signature

from .api import documentation, pages, type_aliases

SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Examples?|Notes?):$")
ITEM = re.compile(r"(-|\d+\.) ")
CODE = re.compile(r"(`+)(.+?)\1", flags=re.DOTALL)
ALIAS = re.compile(r"TypeAliasForwardRef\('([\w.]+)'\)")
"""What Sphinx makes of a name of `type_aliases` in a union."""
EMPHASIS = re.compile(r"(?<![\w*])\*(\w[^*\n]*?\w|\w)\*(?![\w*])")


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring in place."""
    text = documentation(obj, name) if what == "data" else "\n".join(lines)
    if what in ("property", "attribute"):  # napoleon takes what is before a colon for the type
        text = text.replace(": ", ", ", 1)
    lines[:] = [*rest(text, of=name).splitlines(), ""]


class _Named:
    """A default that is shown by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def name_defaults(app: Any, obj: Any, bound: bool) -> None:
    """Defaults that are functions, or the environment, are shown by name: not where they lie in
    memory, and not what this machine's environment holds."""
    if not inspect.isfunction(obj):
        return
    full = inspect.signature(obj)
    shown = [
        p.replace(default=_Named("os.environ" if p.default is os.environ else p.default.__name__))
        if p.default is os.environ or inspect.isfunction(p.default)
        else p
        for p in full.parameters.values()
    ]
    if any(isinstance(p.default, _Named) for p in shown):
        obj.__signature__ = full.replace(parameters=shown)


def signature(
    app: Any, what: str, name: str, obj: Any, options: Any, sig: Any, returns: Any
) -> Any:
    """How modules of Flax are made, which their metaclass hides; and types by their names."""
    if what != "class" or not name.startswith("gnnjit.nn."):
        return tuple(text and ALIAS.sub(r"\1", text) for text in (sig, returns))
    full = inspect.signature(obj.__init__)
    drop = {"self", "parent", "name"}  # linen's own
    kept = [p for p in full.parameters.values() if p.name not in drop]
    shown = full.replace(parameters=kept, return_annotation=full.empty)
    return stringify_signature(shown, unqualified_typehints=True), None


def rest(text: str, of: str = "") -> str:
    """reStructuredText of a docstring; `of` is whose it is, which is not linked to itself."""
    out: list[str] = []
    section = False
    for block in _blocks(text):
        first = block[0]
        if SECTION.match(first):
            section = True
            out += [first, *_section(block[1:], of), ""]
        elif first.startswith(" ") and section:
            out += [*_section(block, of), ""]
        elif first.startswith(" ") or _is_aligned(block):
            out += [
                "::",
                "",
                *textwrap.indent(textwrap.dedent("\n".join(block)), "    ").splitlines(),
                "",
            ]
        else:
            section = False
            out += [*_paragraphs(block, of), ""]
    return "\n".join(out)


def _blocks(text: str) -> list[list[str]]:
    """What blank lines separate; examples with blank lines in them come as several."""
    return [b.splitlines() for b in re.split(r"\n\s*\n", textwrap.dedent(text).strip("\n")) if b]


def _is_aligned(block: list[str]) -> bool:
    """A table or a program: columns are aligned by blanks."""
    return len(block) > 1 and sum(bool(re.search(r"\S {2,}\S", line)) for line in block) > 1


def _paragraphs(block: list[str], of: str) -> list[str]:
    """A paragraph, or a list, or a list that follows a paragraph."""
    groups: list[list[str]] = [[]]
    for line in block:
        if ITEM.match(line) and groups[-1]:
            groups.append([])
        groups[-1].append(line)
    out: list[str] = []
    for group in groups:
        item = ITEM.match(group[0])
        lines = inline("\n".join(group), of).splitlines()
        if item:  # what follows is indented with its text
            width = " " * len(item[0])
            lines = [lines[0], *(width + line.strip() for line in lines[1:])]
        out += ([""] if item and out else []) + lines
    return out


def _section(block: list[str], of: str) -> list[str]:
    """Entries `name: text`; the stars of `*args` are napoleon's."""
    lines = inline("\n".join(block), of).splitlines()
    return [re.sub(r"^(\s+)((?:\\\*)+)(?=\w+:)", lambda m: m[1] + m[2].replace("\\", ""), line)
            for line in lines]  # fmt: skip


def inline(text: str, of: str = "") -> str:
    """Code spans, emphasis, and text in which nothing else is markup."""
    spans: list[str] = []

    def keep(markup: str) -> str:
        spans.append(markup)
        return f"\0{len(spans) - 1}\0"

    text = CODE.sub(lambda m: keep(_code(" ".join(m[2].split()), of)), text)
    text = EMPHASIS.sub(lambda m: keep(f"*{m[1]}*"), text)
    text = text.replace("\\", "\\\\").replace("*", "\\*").replace("|", "\\|").replace("`", "\\`")
    text = re.sub(r"_(?!\w)", r"\\_", text)
    # Markup ends where its word ends: what is written against it is set off.
    text = re.sub(r"(?<=\w)(?=\0\d+\0)|(?<=\0)(?=\w)(?!\d+\0)", r"\\ ", text)
    return re.sub(r"\0(\d+)\0", lambda m: spans[int(m[1])], text)


def _code(code: str, of: str) -> str:
    """A link to the page of a public name, and plain code otherwise."""
    name = code.removesuffix("()")
    full = type_aliases().get(name, name)
    if full in pages() and full != of:
        return f":py:obj:`{code} <{full}>`"
    return f"``{code}``"
