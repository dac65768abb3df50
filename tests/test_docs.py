"""The manual in docs/: the code of each page runs, its links lead somewhere, the index names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
CODE = re.compile(r"^```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if CODE.search(p.read_text())], ids=lambda p: p.stem
)
def test_code_runs(page: Path) -> None:
    """The blocks of a page are one program; an error names the page and its line."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for block in CODE.finditer(text):
        first = text.count("\n", 0, block.start(1))
        for number, line in enumerate(block[1].splitlines()):
            lines[first + number] = line
    exec(compile("\n".join(lines), str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (DOCS / target).exists(), f"{page.name} links to {target}"


def test_the_index_names_each_page() -> None:
    index = (DOCS / "README.md").read_text()
    missing = [p.name for p in PAGES if p.name != "README.md" and f"]({p.name})" not in index]
    assert not missing, f"docs/README.md does not name {missing}"
