import numpy as np
import pytest
import scipy.sparse as sp

from gnnjit.data import citation_full
from gnnjit.errors import DataError

_ADJACENCY = sp.csr_matrix(np.diag(np.ones(7), 1) + np.eye(8), dtype=np.float32)
_FEATURES = sp.csr_matrix(np.arange(24, dtype=np.float32).reshape(8, 3) % 5)
_Y = np.array([0, 1, 0, 1, 0, 1, 0, 1])
_SPLIT = {"train_per_class": 1, "val_per_class": 2}


def _parts(key, matrix, dot):
    names = ("data", "indices", "indptr", "shape")
    return {f"{key}{dot}{name}": np.asarray(getattr(matrix, name)) for name in names}


def _layouts():
    pickled = {
        "adj_matrix": np.array(_ADJACENCY, dtype=object),
        "node_attr": np.array(_FEATURES, dtype=object),
        "node_label": _Y,
        "metadata": np.array({"names": ["x"]}, dtype=object),  # never read
    }
    flat = {**_parts("adj", _ADJACENCY, "_"), **_parts("attr", _FEATURES, "_"), "labels": _Y}
    dotted = {
        **_parts("adj_matrix", _ADJACENCY, "."),
        **_parts("attr_matrix", _FEATURES, "."),
        "labels": _Y,
    }
    return {"pickled": pickled, "flat": flat, "dotted": dotted}


@pytest.mark.parametrize("layout", ["pickled", "flat", "dotted"])
@pytest.mark.parametrize("folder", ["citationfull-dblp", "."])
def test_tiny(tmp_path, layout, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    np.savez(tmp_path / folder / "dblp.npz", **_layouts()[layout])
    data = citation_full("dblp", tmp_path, **_SPLIT)
    np.testing.assert_array_equal(data.x, _FEATURES.toarray(), strict=True)
    assert data.y.tolist() == _Y.tolist()
    src, dst = np.asarray(data.graph.src), np.asarray(data.graph.dst)
    assert dst.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]
    assert src.tolist() == [1, 0, 2, 1, 3, 2, 4, 3, 5, 4, 6, 5, 7, 6]
    masks = (data.train_mask, data.val_mask, data.test_mask)
    assert [np.bincount(data.y[m]).tolist() for m in masks] == [[1, 1], [2, 2], [1, 1]]


def _without(key):
    return {k: v for k, v in _layouts()["pickled"].items() if k != key}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            _without("adj_matrix"),
            "{path}: has no CSR matrix adj_matrix or adj, expected the npz format of "
            "CitationFull. Is it another dataset's file?",
        ),
        (
            _without("node_label"),
            "{path}: expected the labels as integers [vertices], node_label.npy.",
        ),
        (
            _layouts()["pickled"] | {"node_label": _Y[:7]},
            "{path}: got an adjacency matrix of (8, 8), features of (8, 3) and 7 labels, expected "
            "(7, 7) and (7, any). The file is damaged; get it again.",
        ),
        (
            _layouts()["flat"] | {"adj_indices": _ADJACENCY.indices + 1},
            "{path}:adj: the sparse matrix is inconsistent, expected row pointers that rise from "
            "0 to 15 over 8 rows, and columns below 8. The file is damaged; get it again.",
        ),
        (
            _layouts()["flat"] | {"labels": -_Y},
            "{path}: got labels out of range, expected classes numbered from 0.",
        ),
    ],
)
def test_refuses(tmp_path, arrays, message):
    path = tmp_path / "dblp.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError) as error:
        citation_full("dblp", tmp_path, train_per_class=1, val_per_class=1)
    assert str(error.value) == message.replace("{path}", str(path))


def test_unknown_name():
    with pytest.raises(DataError) as error:
        citation_full("dplb")
    assert str(error.value) == "citation_full: got 'dplb', expected dblp."


def test_real(real):
    root = real("citationfull-dblp/dblp.npz")
    data = citation_full("dblp", root)
    assert data.num_nodes == 17716
    assert data.num_edges == 105734
    assert data.x.shape == (17716, 1639)
    assert np.count_nonzero(data.x) == 92192
    assert np.bincount(data.y).tolist() == [7920, 5645, 1982, 2169]
    assert np.bincount(data.y[data.train_mask]).tolist() == [20] * 4
    assert np.bincount(data.y[data.val_mask]).tolist() == [30] * 4
    assert int(data.test_mask.sum()) == 17716 - 200
    again, other = citation_full("dblp", root), citation_full("dblp", root, seed=1)
    assert np.array_equal(data.train_mask, again.train_mask)
    assert not np.array_equal(data.train_mask, other.train_mask)
