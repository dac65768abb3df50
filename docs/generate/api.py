"""The API reference: a page for each public name, and a table of them for each part."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
import sys
from pathlib import Path
from typing import Any

from gnnjit.graph.relational import Relational

from . import write_file, write_folder
from .names import SECTIONS, Section, qualified

INDEX = """# API reference

Every public name has a page with its signature, the shapes of what it takes and gives, and what it
raises. Shapes are written `dtype[axis, ...]`: N vertices, E edges, F features, G graphs, C classes.
Seconds are seconds and memory is bytes. Everything else in the package may change without notice.

```{toctree}
:maxdepth: 1

%s
```
"""


def write(docs: Path) -> None:
    """`docs/api/`: the index, a page for each section, and below it one for each name."""
    (docs / "api").mkdir(exist_ok=True)
    write_file(docs / "api/index.md", INDEX % "\n".join(f"{s.page}" for s in SECTIONS))
    for section in SECTIONS:
        write_file(docs / f"api/{section.page}.md", _contents(section))
    pages = {f"{m}.{n}.rst": _page(m, n) for s in SECTIONS for m, n in qualified(s)}
    write_folder(docs / "api/names", pages)


def find(module: str, name: str) -> Any:
    """The object."""
    return getattr(importlib.import_module(module), name)


@functools.cache
def pages() -> frozenset[str]:
    """The full names that have a page."""
    return frozenset(f"{m}.{n}" for s in SECTIONS for m, n in qualified(s))


@functools.cache
def type_aliases() -> dict[str, str]:
    """The full names of classes, as annotations and docstrings call them: `Graph`, `DiskStore`.
    Modules of Flax are left out, since two have each name."""
    found: dict[str, str] = {}
    for full in sorted(pages()):
        name = full.rpartition(".")[2]
        if inspect.isclass(find(*full.rpartition(".")[::2])) and not full.startswith("gnnjit.nn"):
            found.setdefault(name, full)
    return found


def _contents(section: Section) -> str:
    rows = [f"| [`{n}`](names/{m}.{n}) | {_first(find(m, n), n)} |" for m, n in qualified(section)]
    listed = "\n".join(f"{n} <names/{m}.{n}>" for m, n in qualified(section))
    table = "\n".join(["| name | |", "|---|---|", *rows])
    toctree = f"```{{toctree}}\n:hidden:\n\n{listed}\n```"
    return f"# {section.title}\n\n{section.about}\n\n{table}\n\n{toctree}\n"


def _first(found: Any, name: str) -> str:
    """The first sentence of a docstring, for a cell of a table."""
    text = documentation(found, name).split("\n\n")[0]
    sentence = re.split(r"(?<=[.;:])\s", " ".join(text.split()) + " ")[0].rstrip(" ;:")
    return sentence.replace("|", "\\|")


def documentation(found: Any, name: str) -> str:
    """A docstring; for data, the string behind the assignment in the module that makes them."""
    if callable(found):
        return inspect.getdoc(found) or ""
    name = name.rpartition(".")[2]
    for key, module in sorted(sys.modules.items()):
        if key.partition(".")[0] == "gnnjit" and getattr(module, name, None) is found:
            body = ast.parse(inspect.getsource(module)).body
            for node, after in itertools.pairwise(body):
                targets = getattr(node, "targets", [getattr(node, "target", None)])
                if name in (getattr(target, "id", None) for target in targets):
                    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                        return inspect.cleandoc(str(after.value.value))
    return ""


def _page(module: str, name: str) -> str:
    found = find(module, name)
    title = f"{module}.{name}"
    head = f"{title}\n{'=' * len(title)}\n\n"
    if inspect.isclass(found):
        own = "   :inherited-members: Generic\n" if issubclass(found, Relational) else ""
        return f"{head}.. autoclass:: {title}\n{own}"
    if callable(found):
        return f"{head}.. autofunction:: {title}\n"
    return f"{head}.. autodata:: {title}\n   :no-value:\n"
