from __future__ import annotations

import numpy as np
import pytest

from gnnjit.data import ppi as package_ppi
from gnnjit.data.ppi import ppi
from gnnjit.errors import DataError

FILES = {
    "edges": "id1,id2\n0,1\n1,0\n2,2\n3,4\n0,2\n",
    "features": "a,b\n1,5\n3,5\n1,5\n3,6\n1,7\n",
    "target": "p,q,r\n1,0,1\n0,0,0\n1,1,1\n0,1,0\n1,0,0\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setitem(ppi.__globals__, "PARTS", {"train": (0, 3), "val": (3, 4), "test": (4, 5)})
    for name, text in FILES.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def test_values(folder):
    data = package_ppi(folder)
    assert (np.asarray(data.graph.src).tolist(), np.asarray(data.graph.dst).tolist()) == (
        [1, 2, 0, 0, 4, 3], [0, 0, 1, 2, 3, 4],
    )  # fmt: skip
    # Mean 5/3, deviation sqrt(8)/3 of the training vertices; the constant feature is not scaled.
    first = (np.array([1, 3, 1, 3, 1]) - 5 / 3) / (8**0.5 / 3)
    np.testing.assert_allclose(data.x, np.stack([first, [0, 0, 0, 1, 2]], axis=1), rtol=1e-6)
    assert data.y.dtype == bool
    assert data.y[2].tolist() == [True, True, True]
    assert data.num_classes == 3
    assert data.has_several_labels
    assert data.train_mask.tolist() == [True, True, True, False, False]
    assert data.test_mask.tolist() == [False, False, False, False, True]
    np.testing.assert_array_equal(ppi(folder, standardize=False).x[:, 1], [5, 5, 5, 6, 7])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("edges", "id1,id2\n0,9\n", "expected two vertices from 0 to 4 a row"),
        ("edges", "id1,id2\n0,1,2\n", "expected two vertices from 0 to 4 a row"),
        ("features", "a\n1\n", "got 1 rows, expected 5"),
        ("features", "a\n1\nx\n3\n4\n5\n", "expected a header and rows of numbers"),
        ("features", "a\n1\nnan\n3\n4\n5\n", "holds numbers that are not finite"),
        ("target", "a\n1\n2\n0\n0\n1\n", "expected labels 0 and 1 alone"),
    ],
)
def test_damage(folder, name, text, message):
    (folder / f"{name}.csv").write_text(text)
    with pytest.raises(DataError, match=message) as error:
        ppi(folder)
    assert f"{name}.csv" in str(error.value)


def test_real(real):
    data = ppi(real("toy-ppi/edges.csv"))
    assert (data.num_nodes, data.num_edges, data.x.shape[1]) == (14755, 444218, 50)
    assert round(float(data.y.mean()), 4) == 0.2987
    sizes = [int(mask.sum()) for mask in (data.train_mask, data.val_mask, data.test_mask)]
    assert sizes == [9716, 1825, 3214]
    for mask in (data.train_mask, data.val_mask, data.test_mask):
        ends = mask[np.asarray(data.graph.src)], mask[np.asarray(data.graph.dst)]
        assert np.array_equal(*ends)
