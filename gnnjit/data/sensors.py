"""Sensors on a road network: a weighted graph, where they are, and what they measured."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnnjit.data.files import Fetch, fetch_url, library, locate, read_bytes
from gnnjit.data.pickles import load_pickle
from gnnjit.data.tables import text_of
from gnnjit.data.types import expect
from gnnjit.data.upstream import METR_LA
from gnnjit.errors import DataError
from gnnjit.graph import Graph
from gnnjit.shapes import HostArray

SPEEDS = "metr-la.h5"


class Windows(NamedTuple):
    """Parts of a series: float32 [W, past, N] and what follows them, [W, future, N]."""

    past: HostArray
    future: HostArray


@dataclass(frozen=True, eq=False, repr=False)
class SensorDataset:
    """Sensors that are joined in a graph, and a series of measurements of each.

    Attributes:
      name: what `open_dataset` calls it.
      src, dst: int32 [E], without self loops.
      weight: float32 [E], how close the ends are, above 0.
      ids: str [N], what the sensors are called.
      positions: float64 [N, 2], latitude and longitude in degrees.
      series: float32 [T, N], NaN where nothing was measured; None where it is not in the source.
      step: seconds from one measurement to the next.
      source: the paper that the dataset comes from.

    Raises:
      DataError: if the parts do not fit each other.
    """

    name: str
    src: HostArray
    dst: HostArray
    weight: HostArray
    ids: HostArray
    positions: HostArray
    series: HostArray | None = None
    step: float = 300.0
    source: str = ""

    def __post_init__(self) -> None:
        edges, count = len(self.src), len(self.ids)
        for part in ("src", "dst"):
            expect(self.name, part, getattr(self, part), (edges,), np.int32)
        expect(self.name, "weight", self.weight, (edges,), np.float32)
        expect(self.name, "positions", self.positions, (count, 2), np.float64)
        if self.series is not None:
            expect(self.name, "series", self.series, (None, count), np.float32)

    @property
    def num_nodes(self) -> int:
        """N, the sensors."""
        return len(self.ids)

    @property
    def num_edges(self) -> int:
        """E, the directed edges."""
        return len(self.src)

    @property
    def task(self) -> str:
        """ "sensors"."""
        return "sensors"

    def graph(self) -> Graph:
        """The sensors as a graph."""
        return Graph.from_edges(self.src, self.dst, self.num_nodes)

    def windows(self, part: str, past: int = 12, future: int = 12) -> Windows:
        """All parts of the series of so many steps in a part of it: "train" is its first 70 %, then
        come 10 % "val" and 20 % "test" (Li et al. 2018, section 4.1). They overlap each other, and
        no two parts.

        Raises:
          DataError: there is no series, the part is unknown, or it is too short.
        """
        if self.series is None:
            raise DataError(
                f"{self.name}: has no series, expected {SPEEDS} beside the other files: get it, "
                "their repository does not have it."
            )
        total = len(self.series)
        bounds = {
            "train": (0, int(0.7 * total)),
            "val": (int(0.7 * total), int(0.8 * total)),
            "test": (int(0.8 * total), total),
        }
        if part not in bounds:
            raise DataError(f"{self.name}: part is {part!r}, expected train, val or test.")
        rows = self.series[slice(*bounds[part])]
        if past < 1 or future < 1 or len(rows) < past + future:
            raise DataError(
                f"{self.name}: got past={past} and future={future}, expected 1 or more, and "
                f"together at most {len(rows)}, the steps of {part}."
            )
        found = np.lib.stride_tricks.sliding_window_view(rows, past + future, axis=0)
        found = np.moveaxis(found, -1, 1)
        return Windows(found[:, :past], found[:, past:])

    def __repr__(self) -> str:
        steps = "no series" if self.series is None else f"{len(self.series):,} steps"
        return (
            f"SensorDataset({self.name}: {self.num_nodes} sensors, {self.num_edges:,} directed "
            f"edges, {steps})"
        )


def metr_la(
    data_dir: str | os.PathLike[str] | None = None, *, fetch: Fetch = fetch_url
) -> SensorDataset:
    """Speeds on the highways of Los Angeles, in the files of DCRNN's authors.

    Li et al., "Diffusion convolutional recurrent neural network: data-driven traffic forecasting"
    (2018), section 4.1: a weight is a Gaussian of the distance by road. The speeds themselves are
    read where `metr-la.h5` lies beside the other files (with h5py); their repository does not have
    it, so that it is never downloaded.

    Args:
      data_dir: holds `adj_mx.pkl` and `graph_sensor_locations.csv`, or a folder `metr-la` of them;
        see `gnnjit.data.files`.
      fetch: downloads a URL; for tests.

    Returns:
      207 sensors, 1,515 directed edges.

    Raises:
      DataError: if a file is missing, damaged or inconsistent.
    """
    paths = locate("metr-la", "metr-la", tuple(METR_LA.values()), data_dir, fetch)
    path = paths["adj_mx.pkl"]
    ids, weights = _matrix(path)
    places = _locations(paths["graph_sensor_locations.csv"])
    missing = [name for name in ids if name not in places]
    if missing:
        raise DataError(
            f"{paths['graph_sensor_locations.csv']}: has no sensor {missing[0]}, which {path.name} "
            "has. Get both again."
        )
    src, dst = np.nonzero(weights * (1 - np.eye(len(ids), dtype=weights.dtype)))
    speeds = path.parent / SPEEDS
    return SensorDataset(
        name="metr-la",
        src=src.astype(np.int32),
        dst=dst.astype(np.int32),
        weight=weights[src, dst].astype(np.float32),
        ids=np.array(ids),
        positions=np.array([places[name] for name in ids], np.float64),
        series=_speeds(speeds, len(ids)) if speeds.is_file() else None,
        source="Li et al. 2018, arXiv:1707.01926",
    )


def _matrix(path: Path) -> tuple[list[str], HostArray]:
    """The sensors' names, and the matrix of weights [N, N]."""
    found = load_pickle(read_bytes(path), str(path))
    names: Any = found[0] if isinstance(found, list) and len(found) == 3 else ()
    matrix: Any = found[2] if names else None
    fine = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not fine or not isinstance(matrix, np.ndarray) or matrix.shape != (len(names),) * 2:
        raise DataError(
            f"{path}: expected a list of the sensors' names, their numbers and a square matrix of "
            "weights. The file is damaged; get it again."
        )
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise DataError(f"{path}: has a weight below 0 or not finite. Get it again.")
    return names, matrix


def _locations(path: Path) -> dict[str, tuple[float, float]]:
    reader = csv.DictReader(io.StringIO(text_of(path)))
    found = {}
    for row in reader:
        try:
            found[row["sensor_id"]] = float(row["latitude"]), float(row["longitude"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}, line {reader.line_num}: {error!r}, expected sensor_id, latitude and "
                "longitude."
            ) from error
    return found


def _speeds(path: Path, sensors: int) -> HostArray:
    """float32 [T, N] of the table that pandas wrote; 0 is what was not measured."""
    h5py = library("h5py", path.name, "pip install h5py, or move the file away")
    try:
        with h5py.File(path, "r") as file:
            table = np.asarray(file["df"]["block0_values"], np.float32)
    except (OSError, KeyError, TypeError) as error:
        raise DataError(f"{path}: {error}, expected a table df of pandas in HDF5.") from error
    if table.ndim != 2 or table.shape[1] != sensors:
        raise DataError(f"{path}: has the shape {table.shape}, expected {sensors} columns.")
    return np.where(table == 0, np.nan, table)
