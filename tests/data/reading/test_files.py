"""Matrices, lists of neighbours, files of networkx and folders of OGB."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from gnnjit.data import own_dataset, read_edges
from gnnjit.data.reading import ogb
from gnnjit.data.reading.streams import Source
from gnnjit.errors import DataError

ENDS = np.array([[0, 1], [1, 2], [2, 0], [2, 2]])
MATRIX = sp.coo_matrix((np.array([0.5, 2, 3, 4]), ENDS.T), (4, 4))


def triples(edges):
    weight = np.ones(edges.num_edges) if edges.weight is None else edges.weight
    return list(zip(edges.src.tolist(), edges.dst.tolist(), weight.tolist(), strict=True))


EXPECTED = [(0, 1, 0.5), (1, 2, 2), (2, 0, 3), (2, 2, 4)]


def test_matrix_market(tmp_path):
    path = tmp_path / "m.mtx"
    scipy.io.mmwrite(path, MATRIX, comment="a line")
    edges = read_edges(path)
    assert (sorted(triples(edges)), edges.num_nodes, edges.ids) == (EXPECTED, 4, None)
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n% c\n3 3 2\n2 1\n3 3\n")
    edges = read_edges(path)
    assert triples(edges) == [(1, 0, 1), (2, 2, 1), (0, 1, 1)]
    assert edges.report == ("each entry of the symmetric matrix both ways",)


_HEAD = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%%MatrixMarket matrix array real general\n", ", line 1: got '%%MatrixMarket matrix array "
         "real general', expected '%%MatrixMarket matrix coordinate' and one of real, integer, "
         "pattern, and of general, symmetric."),
        (_HEAD + "3 3\n", ", line 2: got '3 3', expected the numbers of rows, columns and "
         "entries."),
        (_HEAD + "3 4 0\n", ", line 2: is 3 x 4, expected a square matrix."),
        (_HEAD + "3 3 2\n1 1 1\n", ", line 2: says 2 entries, and 1 follow. The file is cut short; "
         "get it again."),
        (_HEAD + "3 3 1\n1 4 1\n", ": edge 0 has the vertex 4, expected 1 to 3, by the 3 vertices "
         "that there are."),
        (_HEAD + "3 3 1\n1 b 1\n", ", line 3: got 'b' in '1 b 1', expected a whole number. Are ids "
         "texts? Pass ids='text'."),
    ],
)  # fmt: skip
def test_damaged_matrix_market(tmp_path, text, message):
    path = tmp_path / "m.mtx"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_edges(path)
    assert str(error.value) == f"{path}{message}"


def test_mat(tmp_path):
    path, y = tmp_path / "m.mat", sp.csr_matrix(np.eye(4)[:, :2])
    scipy.io.savemat(
        path, {"network": MATRIX, "group": y, "other": sp.eye(9), "x": np.ones((4, 2))}
    )
    edges = read_edges(path)
    assert sorted(triples(edges)) == EXPECTED
    assert sorted(edges.nodes) == ["group", "x"]
    assert edges.nodes["group"].tolist() == y.toarray().tolist()
    assert read_edges(path, key="other").num_nodes == 9
    scipy.io.savemat(path, {"a": MATRIX, "b": sp.eye(9)})
    with pytest.raises(DataError) as error:
        read_edges(path)
    assert str(error.value) == (
        f"{path}: holds a, b; expected one sparse square matrix. Pass key=, one of a, b."
    )
    path.write_bytes(b"no matrix")
    with pytest.raises(DataError, match=r"m.mat: .*, expected a MATLAB file of version 5 to 7"):
        read_edges(path)


@pytest.mark.parametrize("form", ["csr", "coo", "pair", "rows"])
def test_npz(tmp_path, form):
    path = tmp_path / "m.npz"
    if form in ("csr", "coo"):
        sp.save_npz(path, getattr(MATRIX, f"to{form}")())
        assert sorted(triples(read_edges(path))) == EXPECTED
        return
    two = {"edge_index": ENDS.T} if form == "rows" else {"src": ENDS[:, 0], "dst": ENDS[:, 1]}
    mask = np.array([True, False, False, False])
    masks = {f"{part}_mask": np.roll(mask, i) for i, part in enumerate(("train", "val", "test"))}
    np.savez(path, x=np.ones((4, 2)), y=np.array([1, 0, 1, 0]), **two, **masks)
    edges = read_edges(path)
    assert (edges.num_nodes, edges.src.tolist(), edges.dst.tolist()) == (4, *ENDS.T.tolist())
    data = own_dataset(path)
    assert (data.x.shape, data.y.tolist(), data.num_classes) == ((4, 2), [1, 0, 1, 0], 2)
    assert data.test_mask.tolist() == [False, False, True, False]


def test_metis(tmp_path):
    path = tmp_path / "m.graph"
    path.write_text("% a comment\n4 2 011\n7 2 3\n1 1 3 3 5\n% more\n2 2 5\n9\n")
    edges = read_edges(path)
    assert triples(edges) == [(0, 1, 3), (1, 0, 3), (1, 2, 5), (2, 1, 5)]
    assert (edges.num_nodes, edges.nodes["weight"].tolist()) == (4, [[7], [1], [2], [9]])


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_metis_is_read_in_blocks(tmp_path, monkeypatch, size):
    path = tmp_path / "m.graph"
    path.write_text("4 2\n\n3 4\n% a comment\n2\n2\n")
    monkeypatch.setattr(Source, "text", None)
    assert triples(read_edges(path, block_bytes=size)) == [
        (1, 2, 1),
        (1, 3, 1),
        (2, 1, 1),
        (3, 1, 1),
    ]
    path.write_text("3 1\n2\n1")  # the line of a vertex without neighbours has no end
    assert read_edges(path, block_bytes=size).num_nodes == 3
    path.write_text("2 1\n2\n% so far\nx\n")
    with pytest.raises(DataError, match=r"m.graph, line 4: got 'x', expected whole numbers."):
        read_edges(path, block_bytes=size)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2\n2\n1\n", ", line 1: got '2', expected the numbers of vertices and edges, and perhaps "
         "which weights follow, as in 10 20 011."),
        ("2 1\n3\n1\n", ", line 2: got '3', expected neighbours from 1 to 2."),
        ("2 1\nx\n1\n", ", line 2: got 'x', expected whole numbers."),
        ("2 1 001\n2\n1 1\n", ", line 2: got '2', expected 0 weights of the vertex, and then "
         "neighbours with a weight each."),
        ("2 1\n2\n1\n1\n", ", line 4: got '1' after 2 vertices."),
        ("2 1\n2\n", ": says 2 vertices and 1 edges, and has 2 lines with 1 neighbours, expected "
         "two for each edge. The file is cut short; get it again."),
    ],
)  # fmt: skip
def test_damaged_metis(tmp_path, text, message):
    path = tmp_path / "m.graph"
    path.write_text(text.removesuffix("\n"))
    with pytest.raises(DataError) as error:
        read_edges(path)
    assert str(error.value) == f"{path}{message}"


def test_jlg(tmp_path):
    path = tmp_path / "m.jlg"
    path.write_bytes(gzip.compress(b"4,2,u,name\n1,2\n3,3\n"))
    assert triples(read_edges(path)) == [(0, 1, 1), (2, 2, 1), (1, 0, 1)]
    path.write_text("4,2,u,name\n1,2\n")
    with pytest.raises(DataError, match=r"m.jlg, line 1: says 2 edges, and 1 follow"):
        read_edges(path)
    path.write_text("4 2\n")
    with pytest.raises(DataError, match=r"m.jlg, line 1: got '4 2', expected the numbers of vert"):
        read_edges(path)


GML = 'graph [ directed 1 node [ id 0 label "a" x 1.5 ] node [ id 1 label "b" x 2 ] edge [ source 1 target 0 weight 3 ] ]'  # noqa: E501


def test_files_of_networkx(tmp_path, monkeypatch):
    path = tmp_path / "m.gml"
    path.write_text(GML)
    try:
        import networkx  # noqa: F401
    except ImportError:
        pass
    else:
        edges = read_edges(path)
        assert (triples(edges), edges.ids.tolist()) == ([(1, 0, 3)], ["a", "b"])
        assert edges.nodes["x"].tolist() == [1.5, 2]
        path.write_text("graph [")
        with pytest.raises(DataError, match=r"m.gml: networkx cannot read it \(NetworkXError"):
            read_edges(path)
        for ending in ("graphml", "gexf"):
            other = tmp_path / f"m.{ending}"
            other.write_text("<xml>\n<edge")
            with pytest.raises(DataError, match=rf"m.{ending}: networkx cannot .* line 2"):
                read_edges(other)
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(DataError) as error:
        read_edges(path)
    assert str(error.value) == (
        f"{path}: files of gml are read by networkx, which is not installed: pip install networkx, "
        "or save the edges as text."
    )


def write_ogb(folder):
    raw, split = folder / "raw", folder / "split" / "time"
    raw.mkdir(parents=True)
    split.mkdir(parents=True)
    for path, text in {
        raw / "edge.csv.gz": "0,1\n1,2\n", raw / "num-node-list.csv.gz": "3\n",
        raw / "node-feat.csv.gz": "0.5,1\n1,2\n3,4\n", raw / "node-label.csv.gz": "1\n0\nnan\n",
        raw / "edge-feat.csv.gz": "7\n8\n", split / "train.csv.gz": "0\n",
        split / "valid.csv.gz": "1\n", split / "test.csv.gz": "2\n",
    }.items():  # fmt: skip
        path.write_bytes(gzip.compress(text.encode()))
    return folder


def test_ogb(tmp_path, monkeypatch):
    folder = write_ogb(tmp_path / "ogbn")
    edges = read_edges(folder)
    assert (edges.num_nodes, edges.src.tolist(), edges.edges["x"].tolist()) == (
        3, [0, 1], [[7], [8]],
    )  # fmt: skip
    data = own_dataset(folder)
    assert (data.num_features, data.num_classes, data.val_mask.tolist()) == (
        2, 2, [False, True, False],
    )  # fmt: skip
    monkeypatch.setattr(ogb, "_BLOCK", 6)
    assert read_edges(folder).src.tolist() == [0, 1]
    for text, message in (
        (b"0,1\n1,x\n", "line 2: got '1,x', expected 2 numbers with commas"),
        (b"0,1\n1,2\n1,2,3\n", "has lines of different lengths, expected one"),
        (b"0\n1,2\n", "line 2: got '1,2', expected 1 numbers with commas"),
    ):
        (folder / "raw" / "edge.csv.gz").write_bytes(gzip.compress(text))
        with pytest.raises(DataError, match=rf"edge.csv.gz(, |: ){message}"):
            read_edges(folder)
    with pytest.raises(DataError, match=r": is a folder without raw/edge.csv.gz, expected a file"):
        read_edges(folder / "raw")


def test_paths_and_kinds(tmp_path):
    with pytest.raises(DataError, match=r"no such file or folder, expected one with edges"):
        read_edges(tmp_path / "none.csv")
    (tmp_path / "g.txt").write_text("0 1\n")
    with pytest.raises(DataError, match=r"g.txt: kind is 'xml', expected one of text, matrixma"):
        read_edges(tmp_path / "g.txt", kind="xml")
