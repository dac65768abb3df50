"""Folders of the Open Graph Benchmark, of one graph: its raw tables and its split."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from gnnjit.data.reading.streams import Source
from gnnjit.errors import DataError
from gnnjit.shapes import HostArray

_BLOCK = 1 << 24
"""Bytes of a table that are read at once."""
_SPLITS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}


def _nobody(stage: str, done: int, total: int) -> None:
    """Watches nothing."""


class OgbFolder(NamedTuple):
    """What a folder holds.

    Attributes:
        ends: int64[E, 2].
        num_nodes: N.
        edges, nodes: columns by name: "x", "y", "year", and the masks of the split.
        report: what was read, in words.
    """

    ends: HostArray
    num_nodes: int
    edges: dict[str, HostArray]
    nodes: dict[str, HostArray]
    report: tuple[str, ...]


def read_folder(folder: Path) -> OgbFolder:
    """The graph of a folder of OGB's node property datasets (Hu et al. 2020, section 3).

    It has `raw/edge.csv.gz` and `raw/num-node-list.csv.gz`, and perhaps `node-feat`, `node-label`,
    `node_year`, `edge-feat`, and a `split/NAME/` of `train`, `valid` and `test`.

    Raises:
      DataError: naming the file that is missing or damaged.
    """
    raw = folder / "raw"
    if not (raw / "edge.csv.gz").is_file() and not (raw / "edge.csv").is_file():
        raise DataError(
            f"{folder}: is a folder without raw/edge.csv.gz, expected a file with edges, or a "
            "folder of OGB."
        )
    ends = _table(raw, "edge", np.int64)
    counts = _table(raw, "num-node-list", np.int64)
    if ends is None or ends.shape[1] != 2 or counts is None or counts.size != 1:
        raise DataError(
            f"{raw}: expected two columns of edge.csv.gz and one number in num-node-list.csv.gz: "
            "folders of many graphs are not read."
        )
    count, nodes, edges = int(counts[0, 0]), {}, {}
    for name, file in (("x", "node-feat"), ("y", "node-label"), ("year", "node_year")):
        table = _table(raw, file, np.float32)
        if table is not None:
            nodes[name] = table if name == "x" else table[:, 0] if table.shape[1] == 1 else table
    features = _table(raw, "edge-feat", np.float32)
    if features is not None:
        edges["x"] = features
    splits = sorted(p for p in (folder / "split").glob("*") if p.is_dir())
    for part, mask in _SPLITS.items() if splits else ():
        rows = _table(splits[0], part, np.int64)
        if rows is not None:
            nodes[mask] = np.isin(np.arange(count), rows)
    said = (f"the split {splits[0].name!r}",) if splits else ()
    return OgbFolder(ends, count, edges, nodes, (*(f"{k} of the vertices" for k in nodes), *said))


def _table(folder: Path, name: str, dtype: type) -> HostArray | None:
    """[rows, columns], or None where there is no such file."""
    path = next(
        (p for p in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if p.is_file()), None
    )
    if path is None:
        return None
    found, number = [], 1
    for block in Source(path).blocks(_BLOCK, _nobody):
        lines = block.decode("ascii", "replace").split("\n")[:-1]
        found.append(_rows(path, lines, number, dtype))
        number += len(lines)
    if len({part.shape[1] for part in found if len(part)}) > 1:
        raise DataError(f"{path}: has lines of different lengths, expected one. Get it again.")
    return np.concatenate(found or [np.zeros((0, 0), dtype)])


def _rows(path: Path, lines: list[str], number: int, dtype: type) -> HostArray:
    """The numbers of some lines, of which the first has this number."""
    try:
        return np.loadtxt(lines, dtype=dtype, delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        wrong = next((i for i, line in enumerate(lines) if not _is_row(line, lines, dtype)), 0)
        raise DataError(
            f"{path}, line {number + wrong}: got {lines[wrong][:80]!r}, expected "
            f"{lines[0].count(',') + 1} numbers with commas between them. Get the file again."
        ) from error


def _is_row(line: str, lines: list[str], dtype: type) -> bool:
    """Whether it has as many numbers as the first line, or nothing."""
    try:
        np.loadtxt([line] if line.strip() else ["0"], dtype=dtype, delimiter=",", comments=None)
    except ValueError:
        return False
    return not line.strip() or line.count(",") == lines[0].count(",")
