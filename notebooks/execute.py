"""Run the notebooks' scripts and write their executed `.ipynb` files beside them.

    python notebooks/execute.py                     # all
    python notebooks/execute.py 01_first_layer.py   # some

The scripts (jupytext, percent format) are what to edit. `GNNJIT_SMOKE=1` runs them at tiny sizes.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jupytext
import nbclient
import nbformat

FOLDER = pathlib.Path(__file__).parent
SCRIPTS = sorted(FOLDER.glob("[0-9]*.py"))


def execute(script: pathlib.Path, folder: pathlib.Path, timeout: int = 600) -> Any:
    """The notebook of `script` with its outputs, run in `folder`.

    Raises `nbclient.exceptions.CellExecutionError` if a cell does.
    """
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # the same in every run
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", record_timing=False, resources=resources
    )
    return client.execute()


def main(names: Sequence[str]) -> int:
    """Run those named, or all."""
    for script in [FOLDER / name for name in names] or SCRIPTS:
        notebook = execute(script, FOLDER)
        nbformat.validate(notebook)
        nbformat.write(notebook, script.with_suffix(".ipynb"))
        print(f"{script.name}: {len(notebook.cells)} cells")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
