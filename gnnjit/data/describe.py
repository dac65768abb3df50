"""What a file or folder holds, and how it is read: `gnnjit data show`."""

from __future__ import annotations

import inspect
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from gnnjit.config import path_of
from gnnjit.data.own import FEATURES, LABELS, check_reading, own_dataset, smiles_column
from gnnjit.data.reading.edge_list import EdgeList
from gnnjit.data.reading.read import kind_of, layout_of, read_edges
from gnnjit.data.registry import DATASETS, dataset_in, open_dataset
from gnnjit.errors import DataError


def describe(
    path: str | os.PathLike[str], *, progress: bool = False, **options: Any
) -> dict[str, Any]:
    """What is in a file or folder, for JSON.

    Args:
      path: what `open_dataset` opens.
      progress: show a bar while it is read.
      options: what `open_dataset` takes; of a graph of one's own, what `read_edges` takes.

    Returns:
      "path"; "dataset" (its name, None for a graph of one's own); "kind" of file; "holds", its
      sizes and columns; "task", what can be predicted; "python" and "train", how.

    Raises:
      DataError: as `open_dataset` and `read_edges`.
    """
    path = path_of(path, "data show", DataError)
    name = dataset_in(path, options.get("dataset"))
    if name is not None or path.suffix.lower() == ".sdf" or smiles_column(path) is not None:
        return _of_known(path, name, options)
    known = set(inspect.signature(own_dataset).parameters) - {"path", "reading"}
    reading = {key: value for key, value in options.items() if key not in known}
    check_reading(path, reading)
    kind = options.get("kind") or kind_of(path)
    edges = read_edges(path, progress=progress, **reading)
    found = {
        "path": str(path),
        "dataset": None,
        "kind": kind,
        "layout": _layout(path, options) if kind == "text" else None,
        "holds": _sizes(edges),
        "report": list(edges.report),
    }
    labelled = "labels" in options or any(label in edges.nodes for label in LABELS)
    missing = []
    if not labelled:
        missing.append(
            "no labels of vertices: links are predicted. Give labels with --option labels=FILE"
        )
    if "features" not in options and not any(name in edges.nodes for name in FEATURES):
        missing.append(
            "no features of vertices: each learns an embedding. Give them with "
            "--option features=FILE, for vertices with labels"
        )
    if found["layout"] and not reading.get("bipartite") and edges.ids is not None:
        names = found["layout"]["source"], found["layout"]["destination"]
        if names[0].lower().startswith("user") and names[1].lower().startswith("item"):
            missing.append(
                "users and items have their ids in common: keep them apart with --option "
                "bipartite=True, to recommend items"
            )
    said = "".join(f", {key}={value!r}" for key, value in reading.items())
    more = "".join(f" --option {shlex.quote(f'{k}={v}')}" for k, v in options.items())
    return {
        **found,
        "task": "vertex" if labelled else "link" if edges.num_sources is None else "recommendation",
        "missing": missing,
        "python": f"gnnjit.data.read_edges({str(path)!r}{said})",
        "train": f"gnnjit train {shlex.quote(str(path))}{more}",
    }


def _of_known(path: Path, name: str | None, options: dict[str, Any]) -> dict[str, Any]:
    data = open_dataset(path, **options)
    entry = DATASETS.get(name or "")
    return {
        "path": str(path),
        "dataset": name,
        "kind": entry.summary if entry else "many graphs",
        "layout": None,
        "holds": {"dataset": repr(data)},
        "report": [],
        "task": entry.task if entry else "graph",
        "missing": [],
        "python": f"gnnjit.data.open_dataset({str(path)!r})",
        "train": f"gnnjit train {shlex.quote(str(path))}",
    }


def _layout(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    known = {
        "columns": None, "weight": None, "time": None, "values": (), "delimiter": None,
        "header": None, "comments": "#%", "ids": "auto",
    }  # fmt: skip
    layout = layout_of(path, {key: options.get(key, value) for key, value in known.items()})
    names = layout.names or tuple(map(str, range(layout.columns)))
    return {
        "delimiter": {" ": "blanks", "\t": "tab"}.get(layout.delimiter, layout.delimiter),
        "header": list(layout.names) if layout.names else None,
        "columns": layout.columns,
        "source": names[layout.source],
        "destination": names[layout.destination],
        "read": {name: names[column] for name, column in layout.values},
        "left out": [
            name
            for at, name in enumerate(names)
            if at not in (layout.source, layout.destination, *(c for _, c in layout.values))
        ],
        "ids": "text" if layout.text else "numbers",
        "first": list(layout.sample),
    }


def _sizes(edges: EdgeList) -> dict[str, Any]:
    """Counts and ranges."""
    n = max(edges.num_nodes, 1)
    src, dst = (np.asarray(end, np.int64) for end in (edges.src, edges.dst))
    forth = np.unique(src * n + dst)
    back = np.unique(dst * n + src)
    degree = np.bincount(src, minlength=n) + np.bincount(dst, minlength=n)
    return {
        "vertices": edges.num_nodes,
        "edges": edges.num_edges,
        "self_loops": int(np.count_nonzero(src == dst)),
        "duplicates": edges.num_edges - len(forth),
        "both_ways": bool(len(forth) and np.array_equal(forth, back)),
        "without_edges": int(np.count_nonzero(degree == 0)) if edges.num_nodes else 0,
        "largest_degree": int(degree.max(initial=0)),
        "ids": None if edges.ids is None else [str(i) for i in edges.ids[:3].tolist()],
        "edge_columns": {name: _range(column) for name, column in edges.edges.items()},
        "vertex_columns": {
            name: f"{column.dtype}{list(column.shape)}" for name, column in edges.nodes.items()
        },
    }


def _range(column: np.ndarray) -> str:
    if not len(column):
        return "empty"
    return f"{column.dtype}{list(column.shape)}, {column.min():g} to {column.max():g}"
