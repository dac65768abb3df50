"""What a pass changed, from the printed programs before and after it."""

from __future__ import annotations

import difflib
import re

_NAME = re.compile(r"(?<![\w.])(?!(?:f|i)(?:8|16|32|64)\b)[abcdfghijkmnpqrstwxyz]\d*(?![\w.(=])")
"""A value that has a letter for a name. Those of both programs are named anew, so the names say
nothing about which value is which. `f32` and its like are types."""


def changes(before: str, after: str) -> str:
    """Lines of `before` that are gone, with `-`, and new ones of `after`, with `+`; how many lines
    stay as they are between them. Lines that differ in the names of values alone count as equal."""
    one, two = before.splitlines(), after.splitlines()
    plain = [[" ".join(_NAME.sub("_", line).split()) for line in lines] for lines in (one, two)]
    out: list[str] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, *plain, autojunk=False).get_opcodes():
        if kind == "equal":
            out.append(f"  ({j - i} {'lines' if j - i > 1 else 'line'} as before)")
            continue
        out += [f"- {line.removeprefix('  ')}" for line in one[i:j]]
        out += [f"+ {line.removeprefix('  ')}" for line in two[k:m]]
    return "\n".join(out)
