"""Every dataset by name: what the command line offers."""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gnnjit.config import path_of
from gnnjit.data.blogcatalog import blogcatalog
from gnnjit.data.citation import citation_full
from gnnjit.data.communities import communities
from gnnjit.data.fb15k import fb15k_237
from gnnjit.data.gowalla import gowalla, lastfm
from gnnjit.data.imdb import imdb
from gnnjit.data.karate import karate
from gnnjit.data.links import LinkDataset
from gnnjit.data.molecules import molecule_set
from gnnjit.data.networks import network
from gnnjit.data.own import own_dataset
from gnnjit.data.pairs import PairDataset, caveman
from gnnjit.data.particles import ParticleDataset, lagrange
from gnnjit.data.planetoid import planetoid
from gnnjit.data.ppi import ppi
from gnnjit.data.sensors import SensorDataset, metr_la
from gnnjit.data.tu import tu
from gnnjit.data.types import Dataset, GraphDataset
from gnnjit.errors import DataError
from gnnjit.graph.validate import shown

AnyDataset = Dataset | GraphDataset | LinkDataset | PairDataset | ParticleDataset | SensorDataset
"""What `open_dataset` gives."""


@dataclass(frozen=True)
class Entry:
    """A dataset that `open_dataset` knows.

    Attributes:
      load: called with data_dir= (if `reads_files`) and the options.
      task: what is predicted: "vertex" and "typed" are labels of the vertices of a `Dataset`,
        whose graph is a `TypedGraph` for "typed"; "graph" are those of the graphs of a
        `GraphDataset`; "link" and "recommendation" are links of a `LinkDataset`; "pair" are pairs
        of vertices of a `PairDataset`, which belong together or not; "particles" are
        the moves of a `ParticleDataset`, "sensors" the series of a `SensorDataset`.
      summary: one line for people.
      files: names of files that it needs, from `data_dir` or by download; a folder that has them
        is known by them.
    """

    load: Callable[..., AnyDataset]
    task: Literal[
        "vertex", "graph", "typed", "link", "recommendation", "pair", "particles", "sensors"
    ]
    summary: str
    files: tuple[str, ...] = ()

    @property
    def reads_files(self) -> bool:
        """Whether it needs files."""
        return bool(self.files)

    def options(self) -> tuple[str, ...]:
        """The names that `open_dataset(name, **options)` takes."""
        names = inspect.signature(self.load).parameters
        return tuple(name for name in names if name not in ("name", "data_dir", "fetch"))


def _planetoid(name: str, prefix: str, summary: str) -> Entry:
    return Entry(partial(planetoid, name), "vertex", summary, (f"ind.{prefix}.graph",))


def _tu(name: str, summary: str) -> Entry:
    return Entry(partial(tu, name), "graph", summary, (f"{name}.zip",))


def _network(name: str, file: str, summary: str) -> Entry:
    return Entry(partial(network, name), "link", summary, (file,))


def _molecules(name: str, file: str, summary: str) -> Entry:
    return Entry(partial(molecule_set, name), "graph", summary, (file,))


DATASETS: dict[str, Entry] = {
    "karate": Entry(karate, "vertex", "Zachary's karate club, 34 vertices; built in"),
    "communities": Entry(
        communities, "vertex", "power-law communities of any size; generated from a seed"
    ),
    "caveman": Entry(
        caveman, "pair", "pairs of one community, of 20 cliques of 20; generated from a seed"
    ),
    "cora": _planetoid("cora", "cora", "2,708 papers in 7 classes"),
    "citeseer": _planetoid("citeseer", "citeseer", "3,327 papers in 6 classes"),
    "pubmed": _planetoid("pubmed", "pubmed", "19,717 papers in 3 classes"),
    "nell": _planetoid("nell", "nell.0.001", "65,755 entities in 210 classes"),
    "dblp": Entry(
        partial(citation_full, "dblp"), "vertex", "17,716 papers in 4 classes", ("dblp.npz",)
    ),
    "ppi": Entry(
        ppi,
        "vertex",
        "14,755 proteins, each with some of 121 labels",
        ("edges.csv", "features.csv", "target.csv"),
    ),
    "gowalla": Entry(
        gowalla,
        "recommendation",
        "29,858 users, 40,981 places, 1 million visits",
        ("s_adj_mat.npz", "test.txt"),
    ),
    "fb15k-237": Entry(
        fb15k_237,
        "link",
        "272,115 facts of 14,541 entities, 237 relations",
        ("train2id.txt", "relation2id_no_sort.txt"),
    ),
    "lastfm": Entry(
        lastfm,
        "recommendation",
        "1,892 users, 4,489 artists, 52,668 listenings",
        ("data1.txt", "test1.txt"),
    ),
    "blogcatalog": Entry(
        blogcatalog, "vertex", "10,312 bloggers, each in some of 39 groups", ("blogcatalog.mat",)
    ),
    "imdb": Entry(
        imdb,
        "typed",
        "4,278 movies in 3 classes, joined by directors and actors",
        ("movie_metadata.csv",),
    ),
    "mutag": _tu("MUTAG", "188 molecules in 2 classes"),
    "proteins": _tu("PROTEINS", "1,113 proteins in 2 classes"),
    "enzymes": _tu("ENZYMES", "600 proteins in 6 classes"),
    "esol": _molecules("esol", "delaney-processed.csv", "1,128 molecules and how they dissolve"),
    "freesolv": _molecules("freesolv", "freesolv.csv", "642 molecules and their energy in water"),
    "lipophilicity": _molecules(
        "lipophilicity", "Lipophilicity.csv", "4,200 molecules and how they take to fat"
    ),
    "gdb1k": _molecules("gdb1k", "gdb1k.sdf", "1,000 molecules with positions, no target"),
    "epinions": _network("epinions", "soc-Epinions1.txt.gz", "75,879 people and whom they trust"),
    "notredame": _network("notredame", "web-NotreDame.txt.gz", "325,729 pages and their links"),
    "ego-twitter": _network(
        "ego-twitter", "ego-twitter-undirected.jlg", "81,306 people and whom they follow"
    ),
    "airfoil1": _network("airfoil1", "airfoil1.graph", "a mesh of 4,253 points"),
    "4elt": _network("4elt", "4elt.graph", "a mesh of 15,606 points"),
    "wing": _network("wing", "wing.graph", "a mesh of 62,032 points"),
    "lj3d": Entry(
        partial(lagrange, "lj3d"),
        "particles",
        "3 Lennard-Jones particles in a periodic box",
        ("train.h5", "valid.h5", "test.h5", "metadata.json"),
    ),
    "metr-la": Entry(
        metr_la,
        "sensors",
        "207 sensors on highways",
        ("adj_mx.pkl", "graph_sensor_locations.csv"),
    ),
}
"""Every dataset that `open_dataset` knows, by name."""


def open_dataset(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> AnyDataset:
    """Open a dataset by its name, one of `DATASETS` in any case, or by its path.

    Args:
      name: such as "cora"; `DATASETS` has all of them. Or the path of a folder, or file, with the
        files of one: it is known by their names. A folder of several opens the first of them;
        `dataset=` names another. Or a file with a graph of your own, which `own_dataset` opens.
      data_dir: a directory with the dataset's files; default GNNJIT_DATA_DIR, else a download
        into the cache. Unused by "karate", "communities" and "caveman", and with a path.
      options: what the loader takes, such as normalize=True or num_nodes=1000.

    Returns:
      A `Dataset` of one graph, a `GraphDataset` of many, a `LinkDataset`, a `PairDataset`, a
      `ParticleDataset`, or a `SensorDataset`.

    Raises:
      DataError: if the name or an option is unknown, or the files are missing or damaged.
    """
    if is_path(name):
        path, wanted = path_of(name, "open_dataset", DataError), options.pop("dataset", None)
        found = dataset_in(path, wanted)
        if found is None:
            return own_dataset(path, **options)
        name, data_dir = found, path if path.is_dir() else path.parent
        if name not in DATASETS:  # of TU, by its own name
            return tu(name, path, **options)
    name = str(name)
    entry, options = entry_of(name), checked_options(name, options)
    if entry.reads_files:
        options["data_dir"] = data_dir
    return entry.load(**options)


def is_path(name: str | os.PathLike[str]) -> bool:
    """Whether it is a path, and no name: what has a separator, or is there and no name."""
    if not isinstance(name, str):
        return True
    return name.lower() not in DATASETS and (os.sep in name or Path(name).expanduser().exists())


def dataset_in(path: Path, wanted: str | None = None) -> str | None:
    """The name of the dataset whose files a folder has, or that a file is one of; None for a file
    of no known one.

    Raises:
      DataError: there is nothing, the folder has no files of a known dataset, or not of `wanted`.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder, expected one with a dataset.")
    names = {p.name for p in path.iterdir()} if path.is_dir() else {path.name}
    known = []
    for name, entry in DATASETS.items():
        found = names.intersection(entry.files)
        if found and (found == set(entry.files) or path.is_file()):
            known.append(name)
    known += [name.removesuffix("_A.txt") for name in names if name.endswith("_A.txt")]
    if wanted is not None and wanted not in known:
        raise DataError(
            f"{path}: has no dataset {shown(wanted)}, expected one of {', '.join(known) or 'none'}."
        )
    if known or path.is_file() or (path / "raw").is_dir():
        return wanted or next(iter(known), None)
    raise DataError(
        f"{path}: has no files of a known dataset, such as {_some_files()}. Pass the file with the "
        "edges."
    )


def _some_files() -> str:
    return ", ".join(DATASETS[name].files[0] for name in ("cora", "dblp", "mutag"))


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
