"""Datasets of links: Gowalla, Last.fm and FB15k-237, in small files of their formats."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from gnnjit.data import LinkDataset, fb15k_237, gowalla, lastfm
from gnnjit.errors import DataError

FB = {
    "entity2id_no_sort.txt": "3\n/m/a\t0\n/m/b\t1\n/m/c\t2\n",
    "relation2id_no_sort.txt": "2\n/r/x\t0\n/r/y\t1\n",
    "train2id.txt": "2\n0\t0\t1\n1\t1\t2\n",
    "valid2id.txt": "1\n2\t0\t0\n",
    "test2id.txt": "1\n0\t1\t2\n",
}
LAST = {"data1.txt": "1\t2\t5\n2\t1\t7.5e+01\n", "test1.txt": "2\t3\t1\n"}


def write(folder, files):
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def write_gowalla(folder, test="0 2\n1 0 2\n", entries=((0, 0), (1, 1), (0, 1)), size=5):
    """Two users, three items."""
    users, items = (np.array(column) for column in zip(*entries, strict=True))
    rows, columns = np.concatenate([users, items + 2]), np.concatenate([items + 2, users])
    sp.save_npz(
        folder / "s_adj_mat.npz", sp.csr_matrix((np.ones(len(rows)), (rows, columns)), (size, size))
    )
    (folder / "test.txt").write_text(test)
    return folder


def test_gowalla(tmp_path):
    data = gowalla(write_gowalla(tmp_path))
    assert repr(data) == ("LinkDataset(gowalla: 2 users, 3 items, 3 train / 0 val / 3 test links)")
    assert data.train.tolist() == [[0, 0, 2], [0, 0, 3], [1, 0, 3]]
    assert data.test.tolist() == [[0, 0, 4], [1, 0, 2], [1, 0, 4]]
    assert (data.task, data.num_items, data.num_edges) == ("recommendation", 3, 6)
    graph = data.graph()
    pairs = zip(np.asarray(graph.src).tolist(), np.asarray(graph.dst).tolist(), strict=True)
    assert sorted(pairs) == [
        (0, 2), (0, 3), (1, 3), (2, 0), (3, 0), (3, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"test": "0 x\n"}, r"test.txt, line 1: got 'x', expected whole numbers from 0 on"),
        ({"test": "0 1\n\n1 -2\n"}, r"test.txt, line 3: got '-2', expected whole numbers"),
        ({"test": "0 3\n"}, r"test.txt: has the item 3, expected 0 to 2, the items of s_adj_mat"),
        ({"test": "\n"}, r"test.txt: has no lines of numbers"),
        ({"entries": ((0, 0), (0, -1))}, r"s_adj_mat.npz: expected a symmetric matrix that joins"),
    ],
)
def test_damaged_gowalla(tmp_path, files, message):
    with pytest.raises(DataError, match=message):
        gowalla(write_gowalla(tmp_path, **files))


def test_a_matrix_of_another_kind(tmp_path):
    write_gowalla(tmp_path)
    sp.save_npz(tmp_path / "s_adj_mat.npz", sp.csc_matrix(np.eye(3)))
    with pytest.raises(DataError, match=r"s_adj_mat.npz: is no square matrix in CSR"):
        gowalla(tmp_path)
    np.savez(tmp_path / "s_adj_mat.npz", indices=np.zeros(1))
    with pytest.raises(DataError, match=r"s_adj_mat.npz: KeyError\('indptr'\), expected a sparse"):
        gowalla(tmp_path)


def test_lastfm(tmp_path):
    data = lastfm(write(tmp_path, LAST))
    assert (data.num_users, data.num_items) == (2, 3)
    assert data.train.tolist() == [[0, 0, 3], [1, 0, 2]]
    assert data.test.tolist() == [[1, 0, 4]]
    (tmp_path / "data1.txt").write_text("1\t2\n")
    with pytest.raises(DataError, match=r"data1.txt, line 1: got 2 numbers, expected 3"):
        lastfm(tmp_path)
    (tmp_path / "data1.txt").write_bytes(b"1\t2\t\xff\n")
    with pytest.raises(DataError, match=r"data1.txt: byte 4 is no UTF-8"):
        lastfm(tmp_path)


def test_fb15k_237(tmp_path):
    data = fb15k_237(write(tmp_path, FB))
    assert repr(data) == (
        "LinkDataset(fb15k-237: 3 vertices, 2 relations, 2 train / 1 val / 1 test links)"
    )
    assert data.train.tolist() == [[0, 0, 1], [1, 1, 2]]
    assert data.task == "link"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("train2id.txt", "3\n0\t0\t1\n", "line 1: says 3 facts, and 1 follow"),
        ("train2id.txt", "0\t0\t1\n", r"line 1: got '0\\t0\\t1', expected the number of lines"),
        ("valid2id.txt", "1\n0\t2\t1\n", "line 2: has the relation 2, expected 0 to 1"),
        ("test2id.txt", "1\n0\t1\t3\n", "line 2: has the tail 3, expected 0 to 2"),
        ("test2id.txt", "1\n0\t1.5\t2\n", r"line 2: got '1.5', expected whole numbers from 0 on"),
        ("entity2id_no_sort.txt", "5\n/m/a\t0\n", "line 1: says 5 names, and 1 follow"),
    ],
)
def test_damaged_fb15k_237(tmp_path, name, text, message):
    write(tmp_path, FB | {name: text})
    with pytest.raises(DataError, match=message) as error:
        fb15k_237(tmp_path)
    assert name in str(error.value)


def links(**changes):
    parts = {
        "name": "toy", "num_nodes": 4, "train": np.array([[0, 0, 2]], np.int32),
        "val": np.zeros((0, 3), np.int32), "test": np.zeros((0, 3), np.int32),
    }  # fmt: skip
    return LinkDataset(**parts | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": np.zeros((0, 3), np.int32)}, "toy: train has no links"),
        ({"val": np.zeros((2, 2), np.int32)}, r"toy: val is int32\[2, 2\], expected int32\[any, 3"),
        ({"test": np.array([[0, 1, 2]], np.int32)}, "link 0 of test has the relation 1, expected"),
        ({"num_users": 3}, "link 0 of train has the item 2, expected 3 to 3"),
    ],
)
def test_parts_must_fit(changes, message):
    with pytest.raises(DataError, match=message):
        links(**changes)


def test_real(real):
    data = gowalla(real("gowalla/s_adj_mat.npz", "gowalla/test.txt"))
    assert (data.num_users, data.num_items) == (29858, 40981)
    assert (len(data.train), len(data.test)) == (810128, 217242)
    data = fb15k_237(real("fb15k-237/train2id.txt"))
    assert (data.num_nodes, data.num_relations) == (14541, 237)
    assert [len(part) for part in (data.train, data.val, data.test)] == [272115, 17535, 20466]
    data = lastfm(real("lastfm-rec/data1.txt"))
    assert (data.num_users, data.num_items) == (1892, 4489)
    assert (len(data.train), len(data.test)) == (42135, 10533)
