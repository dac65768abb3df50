"""Molecules: SDF by our own reader, SMILES by RDKit where it is installed."""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import pytest

from gnnjit.data import molecule_set, molecules, open_dataset
from gnnjit.errors import DataError

WATER = """water
 made by hand

  3  2  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 O   0  0
    0.9572    0.0000    0.0000 H   0  0
   -0.2400    0.9266    0.0000 H   0  0
  1  2  1  0
  1  3  1  0
M  END
> <energy>
-76.4

$$$$
"""
ION = WATER.replace("  3  2  0", "  1  0  0").replace(
    "".join(WATER.splitlines(keepends=True)[5:9]), ""
)


def write(folder, text, name="some.sdf"):
    (folder / name).write_text(text)
    return folder / name


def test_sdf(tmp_path):
    data = molecules(write(tmp_path, WATER + ION.replace(" O ", " Xe")), targets=["energy"])
    assert repr(data) == (
        "GraphDataset(some: 2 graphs, 4 vertices, 4 directed edges, 13 features, 1 numbers)"
    )
    assert data.x.argmax(axis=1).tolist() == [4, 0, 0, 12]
    assert np.stack([data.src, data.dst]).tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert (data.edge_label.tolist(), data.y.tolist()) == ([0] * 4, [[np.float32(-76.4)]] * 2)
    assert data.pos[1].tolist() == [np.float32(0.9572), 0, 0]
    one = data.select([1])
    assert (one.pos.shape, one.y.shape, one.num_outputs) == ((1, 3), (1, 1), 1)
    assert {len(fold.test) for fold in data.folds(2)} == {1}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  3  2  0", "  x  2  0", "line 4: got 'x  2  0  0  0  0  0  0  0  0999 V2000', expected "
         "the numbers of atoms and bonds, of V2000."),
        ("    0.9572    0.0000    0.0000 H", "    0.9572    0.0000    O.0000 H", "line 6: got "
         "'0.9572    0.0000    O.0000 H   0  0', expected the position of an atom, and its "
         "element."),
        ("  1  3  1  0", "  1  4  1  0", "line 9: joins atoms 1 and 4 by bond 1, expected atoms "
         "from 1 to 3 and bonds from 1 to 4."),
        ("<energy>", "<heat>", "line 14: the molecule before has no item 'energy', expected one of "
         "heat."),
        ("-76.4", "low", "line 14: got 'low', expected a number, the energy."),
    ],
)  # fmt: skip
def test_damaged_sdf(tmp_path, old, new, message):
    path = write(tmp_path, WATER.replace(old, new))
    with pytest.raises(DataError) as error:
        molecules(path, targets=["energy"])
    assert str(error.value) == f"{path}, {message}"


def test_sdf_that_is_cut_short(tmp_path):
    path = write(tmp_path, WATER[: WATER.index("M ")])
    with pytest.raises(DataError, match=r"some.sdf: ends within a molecule. Get the file again."):
        molecules(path)


def test_unknown_set():
    with pytest.raises(DataError) as error:
        molecule_set("qm9")
    assert str(error.value) == (
        "molecule_set: got 'qm9', expected one of esol, freesolv, lipophilicity, gdb1k."
    )


def test_real_gdb(real):
    data = molecule_set("gdb1k", real("molecules/gdb1k.sdf"))
    assert (len(data), data.num_nodes, data.num_edges, data.num_outputs) == (1000, 14138, 27362, 0)


def test_targets_may_be_replaced(tmp_path):
    data = molecules(write(tmp_path, WATER + WATER))
    assert data.num_outputs == 0
    data = dataclasses.replace(data, y=np.zeros((2, 3), np.float32))
    assert (data.num_outputs, data.is_regression) == (3, True)


def test_files_of_ones_own(tmp_path):
    data = open_dataset(write(tmp_path, WATER), targets=["energy"])
    assert (data.name, data.num_outputs) == ("some", 1)
    path = write(tmp_path, "SMILES,t\nCO,1\n", "own.csv")
    if importlib.util.find_spec("rdkit") is None:
        with pytest.raises(DataError) as error:
            open_dataset(path)
        assert str(error.value) == (
            "own.csv needs rdkit: pip install rdkit, or pass a file of .sdf."
        )
    else:
        assert open_dataset(path, targets=["t"]).y.tolist() == [[1]]


def test_smiles(tmp_path):
    pytest.importorskip("rdkit")
    path = write(tmp_path, "smiles,t\nCO,1\nc1ccccc1,2.5\n[Na+],-1\n", "own.csv")
    data = molecules(path, targets=["t"])
    assert (len(data), data.num_nodes, data.num_edges, data.num_features) == (3, 9, 14, 31)
    assert data.y[:, 0].tolist() == [1, 2.5, -1]
    assert data.edge_label.tolist() == [0, 0] + [3] * 12
    path = write(tmp_path, "smiles,t\nCO,1\nC(,2\n", "bad.csv")
    with pytest.raises(DataError) as error:
        molecules(path)
    assert str(error.value) == (
        f"{path}, line 3: got 'C(', expected SMILES that RDKit reads. Correct the line, or leave "
        "it out."
    )
