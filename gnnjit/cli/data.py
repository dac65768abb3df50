"""`gnnjit data`: the data sets that can be trained on."""

from __future__ import annotations

import argparse

from rich import box
from rich.console import Console
from rich.table import Table

from gnnjit.data import DATASETS

_PREDICTED = {
    "vertex": "vertices",
    "typed": "vertices of a type",
    "graph": "graphs",
    "link": "links",
    "recommendation": "items for users",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list"], help="list: names and what they are")


def run(args: argparse.Namespace) -> int:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("name", "predicts", "files", "what it is"):
        table.add_column(heading)
    for name, entry in DATASETS.items():
        files = "--data-dir or download" if entry.reads_files else "none needed"
        labels = _PREDICTED[entry.task]
        table.add_row(name, labels, files, entry.summary)
    Console().print(table)
    return 0
