"""What the manual says that the package says itself: passes, options, public names.

`docs/conf.py` calls `write` of each module with the folder of the manual. A file is written only
where its text changed, so that Sphinx reads again what must be read again; git ignores all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_folder(folder: Path, pages: Mapping[str, str]) -> None:
    """Exactly these pages in `folder`, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        write_file(folder / name, text)


def write_file(file: Path, text: str) -> None:
    """`text`, if the file does not say so already."""
    if not file.exists() or file.read_text() != text:
        file.write_text(text)
