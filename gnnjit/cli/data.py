"""`gnnjit data`: the data sets that can be trained on, and what a file holds."""

from __future__ import annotations

import argparse
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from gnnjit.cli.output import add_json_option, check_json, for_people, named_options, write_json
from gnnjit.data import DATASETS
from gnnjit.data.describe import describe
from gnnjit.errors import DataError

_PREDICTED = {
    "vertex": "vertices",
    "typed": "vertices of a type",
    "graph": "graphs",
    "link": "links",
    "recommendation": "items for users",
    "pair": "pairs of vertices",
    "particles": "moves of particles",
    "sensors": "series of sensors",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gnnjit data`."""
    parser.add_argument(
        "action",
        choices=["list", "show"],
        help="list: names and what they are; show: what a file or folder holds, and how to read it",
    )
    parser.add_argument("path", nargs="?", help="of show: a file with edges, or a folder")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of gnnjit.data.read_edges, such as delimiter=;, or of the dataset; may "
        "be repeated",
    )
    add_json_option(parser, "what is printed")


def run(args: argparse.Namespace) -> int:
    """Print what is asked for; the exit code."""
    check_json(args.json)
    people = Console(file=for_people(args))
    if args.action == "list":
        return _list(args, people)
    if args.path is None:
        raise DataError("data show: expected the path of a file or folder: gnnjit data show FILE")
    found = describe(
        args.path, progress=people.is_terminal, **named_options("--option", args.option)
    )
    write_json(args.json, found)
    for line in _lines(found):
        people.print(line, highlight=False, soft_wrap=True, markup=False)
    return 0


def _list(args: argparse.Namespace, people: Console) -> int:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("name", "predicts", "files", "what it is"):
        table.add_column(heading)
    rows = []
    for name, entry in DATASETS.items():
        files = "--data-dir or download" if entry.reads_files else "none needed"
        table.add_row(name, _PREDICTED[entry.task], files, entry.summary)
        rows.append({"name": name, "task": entry.task, "files": list(entry.files)})
    write_json(args.json, rows)
    people.print(table)
    return 0


def _lines(found: dict[str, Any]) -> list[str]:
    """What `describe` found, in words."""
    holds, layout = found["holds"], found["layout"]
    if found["dataset"] or "dataset" in holds:
        lines = [f"{found['path']}: {found['kind']}", f"  {holds['dataset']}"]
    else:
        lines = [f"{found['path']}: a graph, read as {found['kind']}"]
        lines += _layout_lines(layout) if layout else []
        lines.append(f"  {holds['vertices']:,} vertices, {holds['edges']:,} edges")
        lines.append(
            f"  {holds['self_loops']:,} self loops, {holds['duplicates']:,} duplicates, "
            + ("every edge both ways" if holds["both_ways"] else "edges one way")
            + f", largest degree {holds['largest_degree']:,}"
        )
        if holds["ids"]:
            lines.append(f"  ids of the source, such as {', '.join(holds['ids'])}")
        lines += [f"  {name} of each edge: {said}" for name, said in holds["edge_columns"].items()]
        lines += [
            f"  {name} of each vertex: {said}" for name, said in holds["vertex_columns"].items()
        ]
    lines.append(f"  predicted: {_PREDICTED[found['task']]}")
    lines += [f"  {text}" for text in found["missing"]]
    return [*lines, f"read it:  {found['python']}", f"train:    {found['train']}"]


def _layout_lines(layout: dict[str, Any]) -> list[str]:
    header = ", ".join(layout["header"]) if layout["header"] else "none"
    between = {"blanks": "blanks", "tab": "tabs"}.get(
        layout["delimiter"], f"{layout['delimiter']!r}"
    )
    lines = [
        f"  {layout['columns']} columns with {between} between them, header: {header}",
        f"  from column {layout['source']} to column {layout['destination']}, ids are "
        f"{layout['ids']}, first edge: {' '.join(layout['first'])}",
    ]
    if layout["left out"]:
        lines.append(f"  left out: {', '.join(layout['left out'])} (weight=, time=, values=)")
    return lines
