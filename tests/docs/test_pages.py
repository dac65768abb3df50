"""The pages of the manual: each is in a table of contents, links lead somewhere, code runs.

Building the manual finds these too, and runs the cells; here they are found without Sphinx.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
GENERATED = ("api/", "compiler/passes/", "command-line-options")
PAGES = [
    p
    for p in sorted(DOCS.rglob("*.md"))
    if not str(p.relative_to(DOCS)).startswith(GENERATED) and p.parent.name != "_build"
]
NOTEBOOK = "---\nfile_format: mystnb\nkernelspec: {name: python3, display_name: Python 3}\n---\n"
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


def name(page: Path) -> str:
    return str(page.relative_to(DOCS))


def listed() -> set[str]:
    """What the tables of contents name, as pages of the manual without their suffix."""
    found = {"index"}
    for page in PAGES:
        for tree in TOCTREE.findall(page.read_text()):
            for line in tree.splitlines():
                if line and not line.startswith(":"):
                    entry = re.sub(r".*<(.*)>$", r"\1", line)
                    found.add(str((page.parent / entry).relative_to(DOCS)))
    return found


def without_code(text: str) -> str:
    return re.sub(r"^(```+|:::+).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)


def test_every_page_is_in_a_table_of_contents() -> None:
    missing = {name(p).removesuffix(".md") for p in PAGES} - listed()
    assert not missing, f"no toctree names {sorted(missing)}"


@pytest.mark.parametrize("entry", sorted(listed()))
def test_tables_of_contents_name_pages(entry: str) -> None:
    assert entry.startswith(GENERATED) or (DOCS / f"{entry}.md").exists()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(without_code(page.read_text())):
        path = (page.parent / target).resolve()
        inside = path.relative_to(DOCS) if path.is_relative_to(DOCS) else None
        generated = inside is not None and str(inside).startswith(GENERATED)
        found = path.exists() or path.with_name(f"{path.name}.md").exists()
        assert generated or found, f"{name(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_with_cells_are_notebooks(page: Path) -> None:
    """Without the front matter, Sphinx shows cells and does not run them."""
    has_cells = re.search(r"^```+\{code-cell\}", page.read_text(), flags=re.MULTILINE)
    assert page.read_text().startswith(NOTEBOOK) == bool(has_cells)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_outside_of_cells(page: Path) -> None:
    """On a page without cells, its blocks are one program, which runs. On a notebook they are what
    cannot run there (several processes, a GPU), and are at least Python."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for block in PYTHON.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for number, line in enumerate(block[1].splitlines()):
            lines[first + number] = line
    program = compile("\n".join(lines), str(page), "exec")
    if not text.startswith(NOTEBOOK):
        exec(program, {"__name__": "__main__"})
