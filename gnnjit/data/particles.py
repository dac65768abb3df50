"""Particles that move: trajectories in a box, as simulators learn from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnjit.data.files import Fetch, fetch_url, library, locate, user_dir
from gnnjit.data.tables import text_of
from gnnjit.data.types import Dataset, expect
from gnnjit.data.upstream import LJ3D
from gnnjit.errors import DataError
from gnnjit.graph import Graph
from gnnjit.shapes import HostArray

_FILES = {"train": "train.h5", "val": "valid.h5", "test": "test.h5"}


@dataclass(frozen=True, eq=False, repr=False)
class ParticleDataset:
    """Trajectories of particles in a box, in a split.

    Attributes:
      name: what `open_dataset` calls it.
      train, val, test: trajectories, float32 [T, N, D] each: where each particle is, step by step.
      types: int32 [N], the kind of each particle, for all trajectories.
      box: float32 [D, 2], from where to where the box reaches along each axis.
      periodic: bool [D], whether what leaves it comes in on the other side.
      dt: seconds from one step to the next.
      radius: within which particles act on each other.
      statistics: float32 [D] each: "vel_mean", "vel_std", "acc_mean", "acc_std", of differences
        from step to step in training.
      source: where the dataset comes from.

    Raises:
      DataError: if the parts do not fit each other.
    """

    name: str
    train: tuple[HostArray, ...]
    val: tuple[HostArray, ...]
    test: tuple[HostArray, ...]
    types: HostArray
    box: HostArray
    periodic: HostArray
    dt: float
    radius: float
    statistics: Mapping[str, HostArray]
    source: str = ""

    def __post_init__(self) -> None:
        axes = len(self.periodic)
        expect(self.name, "types", self.types, (None,), np.int32)
        expect(self.name, "box", self.box, (axes, 2), np.float32)
        for part in ("train", "val", "test"):
            for i, steps in enumerate(getattr(self, part)):
                what = f"{part}[{i}]"
                expect(self.name, what, steps, (None, len(self.types), axes), np.float32)
                if not np.isfinite(steps).all():
                    raise DataError(f"{self.name}: {what} has a position that is not finite.")
        for key, numbers in self.statistics.items():
            expect(self.name, key, numbers, (axes,), np.float32)

    @property
    def num_particles(self) -> int:
        """N."""
        return len(self.types)

    @property
    def task(self) -> str:
        """ "particles"."""
        return "particles"

    def displacement(self, a: HostArray, b: HostArray) -> HostArray:
        """The way from `a` to `b`, [..., D]; along a periodic axis the shortest one."""
        size = self.box[:, 1] - self.box[:, 0]
        way = b - a
        return np.where(self.periodic, way - size * np.round(way / size), way)

    def edges(self, positions: HostArray) -> tuple[HostArray, HostArray]:
        """(src, dst), int32 [E]: all pairs within the radius of each other in a frame [N, D], each
        both ways, compared one with another: O(N^2)."""
        way = self.displacement(positions[:, None], positions[None])
        near = np.square(way).sum(axis=-1) <= self.radius**2
        np.fill_diagonal(near, False)
        src, dst = np.nonzero(near)
        return src.astype(np.int32), dst.astype(np.int32)

    def one_step(self, history: int = 5) -> Dataset:
        """Every frame as a part of one graph, whose vertices have an acceleration each to predict.

        Sanchez-Gonzalez et al. 2020 ("Learning to simulate complex physics with graph networks"),
        section 4: `x` are the last `history` velocities and the type, one-hot; `y` the acceleration
        of the next step, `p[t + 1] - 2 p[t] + p[t - 1]`, both scaled by `statistics`. Masks are of
        the split. Edges join particles within the radius.

        Raises:
          DataError: no trajectory has so many steps.
        """
        frames = [
            frame
            for part in ("train", "val", "test")
            for steps in getattr(self, part)
            for frame in self._frames(part, steps, history)
        ]
        if not frames:
            raise DataError(
                f"{self.name}: one_step() got history={history}, expected less than the steps of a "
                "trajectory, less one."
            )
        count = self.num_particles
        src, dst = (
            np.concatenate([f["edges"][end] + i * count for i, f in enumerate(frames)])
            for end in (0, 1)
        )
        masks = {
            part: np.repeat([f["part"] == part for f in frames], count)
            for part in ("train", "val", "test")
        }
        return Dataset(
            name=self.name,
            graph=Graph.from_edges(src, dst, count * len(frames)),
            x=np.concatenate([f["x"] for f in frames]).astype(np.float32),
            y=np.concatenate([f["y"] for f in frames]).astype(np.float32),
            train_mask=masks["train"],
            val_mask=masks["val"],
            test_mask=masks["test"],
            num_classes=0,
            source=self.source,
        )

    def _frames(self, part: str, steps: HostArray, history: int) -> list[dict[str, Any]]:
        velocity = self.displacement(steps[:-1], steps[1:])
        said = self.statistics
        scaled = (velocity - said["vel_mean"]) / said["vel_std"]
        acceleration = (np.diff(velocity, axis=0) - said["acc_mean"]) / said["acc_std"]
        kinds = np.eye(int(self.types.max(initial=0)) + 1)[self.types]
        return [
            {
                "part": part,
                "edges": self.edges(steps[t]),
                "x": np.concatenate([*scaled[t - history : t], kinds], axis=-1),
                "y": acceleration[t - 1],
            }
            for t in range(history, len(velocity))
        ]

    def __repr__(self) -> str:
        parts = [f"{sum(len(s) for s in getattr(self, p)):,} {p}" for p in ("train", "val", "test")]
        axes = "periodic " if self.periodic.all() else ""
        return (
            f"ParticleDataset({self.name}: {self.num_particles} particles in a {axes}box of "
            f"{len(self.box)} dimensions, {' / '.join(parts)} steps)"
        )


def lagrange(
    name: str = "lj3d",
    data_dir: str | os.PathLike[str] | None = None,
    *,
    fetch: Fetch = fetch_url,
) -> ParticleDataset:
    """A dataset in the files of LagrangeBench: three Lennard-Jones particles in a periodic box.

    Toshev et al., "LagrangeBench: a Lagrangian fluid mechanics benchmarking suite" (2023), section
    3; "lj3d" is the set of its tests. Reading HDF5 needs h5py.

    Args:
      name: "lj3d", or any name with a `data_dir` that holds another set of the suite.
      data_dir: holds `metadata.json`, `train.h5`, `valid.h5` and `test.h5`, or a folder
        `lagrange-NAME` of them; see `gnnjit.data.files`.
      fetch: downloads a URL; for tests.

    Returns:
      lj3d: 3 particles in 3 dimensions, 1,214 / 405 / 405 steps.

    Raises:
      DataError: if a file is missing, damaged or inconsistent, or h5py is not installed.
    """
    if name != "lj3d" and user_dir(data_dir) is None:
        raise DataError(
            f"{name}: has no known checksum here, so it is not downloaded, only lj3d is. Get it "
            "yourself and pass --data-dir DIR."
        )
    paths = locate(name, f"lagrange-{name}", tuple(LJ3D.values()), data_dir, fetch)
    said = _metadata(paths["metadata.json"])
    parts = {part: _trajectories(paths[file]) for part, file in _FILES.items()}
    types = parts["train"][0][1]
    if any(not np.array_equal(kind, types) for part in parts.values() for _, kind in part):
        raise DataError(f"{name}: the particles' types differ between trajectories.")
    return ParticleDataset(
        name=name,
        **{part: tuple(steps for steps, _ in some) for part, some in parts.items()},
        types=types,
        **said,
        source="Toshev et al. 2023, arXiv:2309.16342",
    )


def _metadata(path: Path) -> dict[str, Any]:
    keys = ("vel_mean", "vel_std", "acc_mean", "acc_std")
    try:
        said = json.loads(text_of(path))
        return {
            "box": np.array(said["bounds"], np.float32),
            "periodic": np.array(said["periodic_boundary_conditions"], bool),
            "dt": float(said["dt"]) * int(said.get("write_every", 1)),
            "radius": float(said["default_connectivity_radius"]),
            "statistics": {key: np.array(said[key], np.float32) for key in keys},
        }
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: {error!r}, expected the metadata of LagrangeBench. Get the file again."
        ) from error


def _trajectories(path: Path) -> list[tuple[HostArray, HostArray]]:
    """(positions, types) of each trajectory of a file, in the order of their numbers."""
    h5py = library("h5py", path.name, "pip install h5py")
    try:
        with h5py.File(path, "r") as file:
            found = [
                (
                    np.asarray(file[key]["position"], np.float32),
                    np.asarray(file[key]["particle_type"], np.int32),
                )
                for key in sorted(file)
            ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: {error}, expected HDF5 with position and particle_type in each group. The "
            "file is damaged; get it again."
        ) from error
    if not found:
        raise DataError(f"{path}: has no trajectory, expected one or more.")
    return found
