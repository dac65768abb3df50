"""Particles in a periodic box, and sensors on roads."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from gnnjit.data import ParticleDataset, SensorDataset, lagrange, metr_la
from gnnjit.errors import DataError


def particles(**changes):
    steps = np.array([[[0.5, 0.5], [9.5, 0.5], [5, 5]]], np.float32) + np.array(
        [[[0.25 * t, 0], [0, 0.125 * t * t], [0, 0]] for t in range(6)], np.float32
    )
    parts = {
        "train": (steps,), "val": (), "test": (steps[:4],), "types": np.array([0, 0, 1], np.int32),
        "box": np.array([[0, 10], [0, 10]], np.float32), "periodic": np.array([True, True]),
        "dt": 0.1, "radius": 2.0,
        "statistics": {k: np.full(2, k.endswith("std"), np.float32)
                       for k in ("vel_mean", "vel_std", "acc_mean", "acc_std")},
    }  # fmt: skip
    return ParticleDataset("some", **(parts | changes))


def test_the_way_round_a_periodic_box():
    data = particles()
    a, b = np.array([0.5, 0.5]), np.array([9.5, 9.0])
    assert data.displacement(a, b).tolist() == [-1.0, -1.5]
    assert data.displacement(b, a).tolist() == [1.0, 1.5]
    closed = particles(periodic=np.array([True, False]))
    assert closed.displacement(a, b).tolist() == [-1.0, 8.5]
    src, dst = data.edges(data.train[0][0])
    assert sorted(zip(src.tolist(), dst.tolist(), strict=True)) == [(0, 1), (1, 0)]


def test_one_step():
    data = particles().one_step(history=2)
    # Steps 2 to 4 of training, and step 2 of the test: three particles each.
    assert (data.num_nodes, data.num_features, data.num_outputs) == (12, 2 * 2 + 2, 2)
    assert (data.train_mask.sum(), data.val_mask.sum(), data.test_mask.sum()) == (9, 0, 3)
    assert data.x[0].tolist() == [0.25, 0, 0.25, 0, 1, 0]
    assert data.y[:3].tolist() == [[0, 0], [0, 0.25], [0, 0]]
    assert repr(particles()) == (
        "ParticleDataset(some: 3 particles in a periodic box of 2 dimensions, 6 train / 0 val / 4 "
        "test steps)"
    )
    with pytest.raises(DataError) as error:
        particles().one_step(history=9)
    assert str(error.value) == (
        "some: one_step() got history=9, expected less than the steps of a trajectory, less one."
    )


def test_parts_that_do_not_fit():
    with pytest.raises(DataError, match=r"some: types is int32\[3, 1\], expected int32\[any\]"):
        particles(types=np.zeros((3, 1), np.int32))
    broken = (np.full((2, 3, 2), np.nan, np.float32),)
    with pytest.raises(DataError, match=r"some: val\[0\] has a position that is not finite"):
        particles(val=broken)


def test_files_of_lagrange_bench(tmp_path):
    h5py = pytest.importorskip("h5py")
    data = particles()
    said = {"bounds": data.box.tolist(), "periodic_boundary_conditions": [True, True], "dt": 0.1,
            "default_connectivity_radius": 2.0,
            **{k: v.tolist() for k, v in data.statistics.items()}}  # fmt: skip
    (tmp_path / "metadata.json").write_text(json.dumps(said))
    for name in ("train", "valid", "test"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["00000/position"], file["00000/particle_type"] = data.train[0], data.types
    found = lagrange("own", tmp_path)
    assert found.train[0].tolist() == data.train[0].tolist()
    assert (found.radius, found.box.tolist()) == (2.0, data.box.tolist())
    (tmp_path / "valid.h5").write_bytes(b"no HDF5")
    with pytest.raises(DataError, match=r"valid.h5: .*expected HDF5 with position"):
        lagrange("own", tmp_path)


def test_only_lj3d_is_downloaded():
    with pytest.raises(DataError) as error:
        lagrange("tgv2d")
    assert str(error.value) == (
        "tgv2d: has no known checksum here, so it is not downloaded, only lj3d is. Get it yourself "
        "and pass --data-dir DIR."
    )


def test_metadata_that_is_damaged(tmp_path):
    for name in ("train.h5", "valid.h5", "test.h5"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "metadata.json").write_text("{}")
    with pytest.raises(DataError, match=r"metadata.json: KeyError\('bounds'\), expected the meta"):
        lagrange("own", tmp_path)


def write_sensors(folder, matrix=((1, 0.5, 0), (0, 1, 0.25), (0, 0, 1)), places="773,1,2\n"):
    names = [b"773", b"774", b"9"]
    value = [[n.decode() for n in names], {}, np.array(matrix, np.float32)]
    (folder / "adj_mx.pkl").write_bytes(pickle.dumps(value, protocol=2))
    text = "index,sensor_id,latitude,longitude\n0," + places + "1,774,3,4\n2,9,5,6\n"
    (folder / "graph_sensor_locations.csv").write_text(text)
    return folder


def test_sensors(tmp_path):
    data = metr_la(write_sensors(tmp_path))
    assert repr(data) == "SensorDataset(metr-la: 3 sensors, 2 directed edges, no series)"
    assert (data.src.tolist(), data.dst.tolist(), data.weight.tolist()) == (
        [0, 1], [1, 2], [0.5, 0.25],
    )  # fmt: skip
    assert (data.ids.tolist(), data.positions[2].tolist()) == (["773", "774", "9"], [5, 6])
    assert data.graph().num_edges == 2
    with pytest.raises(DataError) as error:
        data.windows("train")
    assert str(error.value) == (
        "metr-la: has no series, expected metr-la.h5 beside the other files: get it, their "
        "repository does not have it."
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"places": "772,1,2\n"}, "locations.csv: has no sensor 773, which adj_mx.pkl has"),
        ({"places": "773,north,2\n"}, "locations.csv, line 2: ValueError.*expected sensor_id"),
        ({"matrix": ((1, 2), (3, 4))}, "adj_mx.pkl: expected a list of the sensors' names"),
        ({"matrix": -np.eye(3)}, "adj_mx.pkl: has a weight below 0 or not finite"),
    ],
)
def test_damaged_sensors(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        metr_la(write_sensors(tmp_path, **changes))


def test_windows_of_a_series():
    series = np.arange(40, dtype=np.float32).reshape(20, 2)
    empty = np.zeros(0, np.int32)
    data = SensorDataset(
        "own", empty, empty, np.zeros(0, np.float32), np.array(["a", "b"]), np.zeros((2, 2)), series
    )
    past, future = data.windows("train", past=3, future=2)
    assert (past.shape, future.shape) == ((10, 3, 2), (10, 2, 2))
    assert past[1, :, 0].tolist() == [2, 4, 6]
    assert future[1, :, 0].tolist() == [8, 10]
    assert data.windows("test", 1, 1).past[0, 0].tolist() == series[16].tolist()
    with pytest.raises(DataError) as error:
        data.windows("val", 2, 2)
    assert str(error.value) == (
        "own: got past=2 and future=2, expected 1 or more, and together at most 2, the steps of "
        "val."
    )
