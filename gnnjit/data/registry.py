"""Every dataset by name: what the command line offers."""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from gnnjit.data.blogcatalog import blogcatalog
from gnnjit.data.citation import citation_full
from gnnjit.data.communities import communities
from gnnjit.data.fb15k import fb15k_237
from gnnjit.data.gowalla import gowalla, lastfm
from gnnjit.data.imdb import imdb
from gnnjit.data.karate import karate
from gnnjit.data.links import LinkDataset
from gnnjit.data.planetoid import planetoid
from gnnjit.data.ppi import ppi
from gnnjit.data.tu import tu
from gnnjit.data.types import Dataset, GraphDataset
from gnnjit.errors import DataError
from gnnjit.graph.validate import shown


@dataclass(frozen=True)
class Entry:
    """A dataset that `open_dataset` knows.

    Attributes:
      load: called with data_dir= (if `reads_files`) and the options.
      task: what is predicted: "vertex" and "typed" are labels of the vertices of a `Dataset`,
        whose graph is a `TypedGraph` for "typed"; "graph" are those of the graphs of a
        `GraphDataset`; "link" and "recommendation" are links of a `LinkDataset`.
      summary: one line for people.
      reads_files: whether it needs files, from `data_dir` or by download.
    """

    load: Callable[..., Dataset | GraphDataset | LinkDataset]
    task: Literal["vertex", "graph", "typed", "link", "recommendation"]
    summary: str
    reads_files: bool = True

    def options(self) -> tuple[str, ...]:
        """The names that `open_dataset(name, **options)` takes."""
        names = inspect.signature(self.load).parameters
        return tuple(name for name in names if name not in ("name", "data_dir", "fetch"))


DATASETS: dict[str, Entry] = {
    "karate": Entry(karate, "vertex", "Zachary's karate club, 34 vertices; built in", False),
    "communities": Entry(
        communities, "vertex", "power-law communities of any size; generated from a seed", False
    ),
    "cora": Entry(partial(planetoid, "cora"), "vertex", "2,708 papers in 7 classes"),
    "citeseer": Entry(partial(planetoid, "citeseer"), "vertex", "3,327 papers in 6 classes"),
    "pubmed": Entry(partial(planetoid, "pubmed"), "vertex", "19,717 papers in 3 classes"),
    "nell": Entry(partial(planetoid, "nell"), "vertex", "65,755 entities in 210 classes"),
    "dblp": Entry(partial(citation_full, "dblp"), "vertex", "17,716 papers in 4 classes"),
    "ppi": Entry(ppi, "vertex", "14,755 proteins, each with some of 121 labels"),
    "gowalla": Entry(gowalla, "recommendation", "29,858 users, 40,981 places, 1 million visits"),
    "fb15k-237": Entry(fb15k_237, "link", "272,115 facts of 14,541 entities, 237 relations"),
    "lastfm": Entry(lastfm, "recommendation", "1,892 users, 4,489 artists, 52,668 listenings"),
    "blogcatalog": Entry(blogcatalog, "vertex", "10,312 bloggers, each in some of 39 groups"),
    "imdb": Entry(imdb, "typed", "4,278 movies in 3 classes, joined by directors and actors"),
    "mutag": Entry(partial(tu, "MUTAG"), "graph", "188 molecules in 2 classes"),
    "proteins": Entry(partial(tu, "PROTEINS"), "graph", "1,113 proteins in 2 classes"),
    "enzymes": Entry(partial(tu, "ENZYMES"), "graph", "600 proteins in 6 classes"),
}
"""Every dataset that `open_dataset` knows, by name."""


def open_dataset(
    name: str, data_dir: str | os.PathLike[str] | None = None, **options: Any
) -> Dataset | GraphDataset | LinkDataset:
    """Open a dataset by its name, one of `DATASETS` in any case.

    Args:
      name: "karate", "communities", "cora", "citeseer", "pubmed", "nell", "dblp", "ppi",
        "mutag", "proteins" or "enzymes".
      data_dir: a directory with the dataset's files; default GNNJIT_DATA_DIR, else a download
        into the cache. Unused by "karate" and "communities".
      options: what the loader takes, such as normalize=True or num_nodes=1000.

    Returns:
      A `Dataset` of one graph, or a `GraphDataset` of many.

    Raises:
      DataError: if the name or an option is unknown, or the files are missing or damaged.
    """
    entry, options = entry_of(name), checked_options(name, options)
    if entry.reads_files:
        options["data_dir"] = data_dir
    return entry.load(**options)


def entry_of(name: str) -> Entry:
    """The entry of a dataset. Raises DataError if the name is unknown."""
    entry = DATASETS.get(name.lower())
    if entry is None:
        raise DataError(
            f"open_dataset: got {name!r}, expected one of {', '.join(DATASETS)}."
            f"{_suggest(name.lower(), tuple(DATASETS))}"
        )
    return entry


def checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a dataset, numbers as the kind that its loader takes: 1e3 is 1000.

    Raises:
      DataError: if the name or an option is unknown, or a value is of another kind.
    """
    entry = entry_of(name)
    for option in options:
        if option not in entry.options():
            raise DataError(
                f"open_dataset: {name} got the option {option!r}, expected one of "
                f"{', '.join(entry.options())}.{_suggest(option, entry.options())}"
            )
    return {option: _checked(name, option, value, entry) for option, value in options.items()}


_BITS = 128
"""Bits of the largest whole number that an option may be, seeds included."""
_KINDS = {"int": "a whole number", "float": "a finite number", "bool": "True or False"}


def _checked(name: str, option: str, value: Any, entry: Entry) -> Any:
    """The value, as the loader's annotation says. Raises DataError for another kind of value."""
    kind, _, none = str(inspect.signature(entry.load).parameters[option].annotation).partition(
        " | "
    )
    if kind not in _KINDS or (none and value is None):
        return value
    found = _as_kind(kind, value)
    if found is None or (option == "seed" and found < 0):
        wanted = "a whole number, 0 or more" if option == "seed" else _KINDS[kind]
        if isinstance(value, int) and value.bit_length() > _BITS:
            wanted += f" below 2**{_BITS}"
        raise DataError(f"{name}: got {option}={shown(value)}, expected {wanted}.")
    return found


def _as_kind(kind: str, value: Any) -> Any:
    """`value` as an int, float or bool; None where it is none."""
    if isinstance(value, bool | np.bool_):
        return bool(value) if kind == "bool" else None
    if kind == "bool" or not isinstance(value, int | float | np.integer | np.floating):
        return None
    if isinstance(value, int) and value.bit_length() > _BITS:
        return None
    if not math.isfinite(value) or (kind == "int" and value != int(value)):
        return None
    return int(value) if kind == "int" else float(value)


def _suggest(got: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(got, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
