import numpy as np
import pytest

from gnnjit.data import tu
from gnnjit.errors import DataError

_PLACES = ["MUTAG.zip", "tu-mutag/MUTAG.zip", "MUTAG", "tu-mutag/MUTAG", "."]


@pytest.mark.parametrize("place", _PLACES)
def test_tiny(tmp_path, tu_texts, write_tu, place):
    write_tu(tmp_path / place, tu_texts)
    data = tu("mutag", tmp_path)
    assert data.name == "MUTAG"
    assert data.y.tolist() == [1, 0, 1]
    assert data.num_classes == 2
    assert data.node_offsets.tolist() == [0, 2, 5, 6]
    assert data.edge_offsets.tolist() == [0, 2, 8, 8]
    assert data.src.tolist() == [0, 1, 2, 3, 3, 4, 2, 4]
    assert data.dst.tolist() == [1, 0, 3, 2, 4, 3, 4, 2]
    assert data.edge_label.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert data.x.argmax(axis=1).tolist() == [0, 1, 1, 1, 0, 2]
    assert data.x.sum(axis=1).tolist() == [1] * 6


def test_the_zip_itself(tmp_path, tu_texts, write_tu):
    path = write_tu(tmp_path / "any name.zip", tu_texts)
    assert len(tu("MUTAG", path)) == 3


def test_attributes_come_first(tmp_path, tu_texts, write_tu):
    write_tu(tmp_path / "MUTAG.zip", tu_texts)
    x = tu("MUTAG", tmp_path, attributes=True).x
    assert x.shape == (6, 5)
    assert x[1].tolist() == [1.5, 2, 0, 1, 0]


def test_without_labels(tmp_path, tu_texts, write_tu):
    texts = tu_texts | {"node_labels": None, "edge_labels": None, "node_attributes": None}
    write_tu(tmp_path / "OTHER.zip", texts, "OTHER")
    data = tu("OTHER", tmp_path)
    assert data.x.tolist() == [[1.0]] * 6
    assert data.edge_label is None
    with pytest.raises(DataError) as error:
        tu("OTHER", tmp_path, attributes=True)
    assert str(error.value) == (
        f"{tmp_path}/OTHER.zip: OTHER_node_attributes.txt is missing, but attributes=True asks "
        "for it. Leave attributes out."
    )


@pytest.mark.parametrize(
    ("part", "text", "message"),
    [
        ("A", None, "{zip}: MUTAG_A.txt is missing, expected the TUDataset files of MUTAG. Is it "
         "another dataset's file?"),
        ("A", "", "{zip}:MUTAG_A.txt: is empty, expected a line of numbers an element."),
        ("A", "1, 2, 3\n", "{zip}:MUTAG_A.txt: got 1 lines of 3 numbers, expected any lines of 2. "
         "The file is damaged or of another set; get all files again."),
        ("A", "1, 9\n", "{zip}:MUTAG_A.txt: line 1 joins 1 and 9, expected vertices from 1 to 6. "
         "Get all files again."),
        ("A", f"1, {-2**63}\n", "{zip}:MUTAG_A.txt: line 1 joins 1 and -9223372036854775808, "
         "expected vertices from 1 to 6. Get all files again."),
        ("graph_indicator", f"{-2**63}\n1\n2\n2\n2\n3\n", "{zip}:MUTAG_graph_indicator.txt: got "
         "graphs -9223372036854775808 to 3, expected 1 to 3 by the lines of graph_labels. Get both "
         "files again."),
        ("A", "1, 2\n0, 1\n", "{zip}:MUTAG_A.txt: line 2 joins 0 and 1, expected vertices from 1 "
         "to 6. Get all files again."),
        ("A", "1, 2\n2, 3\n", "{zip}:MUTAG_A.txt: line 2 joins graphs 1 and 2, expected edges "
         "within a graph. Get all files again."),
        ("graph_indicator", "1\n1\n2\n1\n2\n3\n", "{zip}:MUTAG_graph_indicator.txt: line 4 steps "
         "down to graph 1, expected the vertices graph by graph. The file is damaged; get it "
         "again."),
        ("graph_indicator", "1\n1\n2\n2\n2\n4\n", "{zip}:MUTAG_graph_indicator.txt: got graphs 1 "
         "to 4, expected 1 to 3 by the lines of graph_labels. Get both files again."),
        ("node_labels", "1\n2\n", "{zip}:MUTAG_node_labels.txt: got 2 lines of 1 numbers, expected "
         "6 lines of any. The file is damaged or of another set; get all files again."),
        ("edge_labels", "1\n2\n", "{zip}:MUTAG_edge_labels.txt: got 2 lines of 1 numbers, expected "
         "8 lines of 1. The file is damaged or of another set; get all files again."),
    ],
)  # fmt: skip
def test_refuses(tmp_path, tu_texts, write_tu, part, text, message):
    path = write_tu(tmp_path / "MUTAG.zip", tu_texts | {part: text})
    with pytest.raises(DataError) as error:
        tu("MUTAG", tmp_path)
    assert str(error.value) == message.replace("{zip}", str(path))


@pytest.mark.parametrize(
    "text", ["1, two\n", "1, 2\n3\n", "1; 2\n", "1.5, 2\n", "\xe9, 1\n", f"{2**64}, 1\n"]
)
def test_not_numbers(tmp_path, tu_texts, write_tu, text):
    write_tu(tmp_path / "MUTAG.zip", tu_texts | {"A": text})
    with pytest.raises(DataError, match=r"MUTAG_A\.txt: not a table of numbers \("):
        tu("MUTAG", tmp_path)


def test_missing(tmp_path):
    with pytest.raises(DataError) as error:
        tu("mutag", tmp_path)
    assert str(error.value) == (
        f"MUTAG: MUTAG.zip is missing, expected {tmp_path}/tu-mutag/MUTAG.zip, "
        f"{tmp_path}/MUTAG.zip or the folder {tmp_path}/MUTAG. Add it, or leave out --data-dir "
        "(and GNNJIT_DATA_DIR) to download it."
    )


def test_unknown_sets_are_not_downloaded():
    with pytest.raises(DataError) as error:
        tu("IMDB-BINARY", fetch=lambda url, size: pytest.fail(url))
    assert str(error.value) == (
        "IMDB-BINARY: has no known checksum here, so it is not downloaded; known are MUTAG, "
        "PROTEINS, ENZYMES. Get it yourself and pass --data-dir DIR."
    )


@pytest.mark.parametrize(
    ("name", "graphs", "vertices", "edges", "labels", "attributes", "classes"),
    [
        ("MUTAG", 188, 3371, 7442, 7, 0, [63, 125]),
        ("PROTEINS", 1113, 43471, 162088, 3, 1, [663, 450]),
        ("ENZYMES", 600, 19580, 74564, 3, 18, [100] * 6),
    ],
)
def test_real(real, name, graphs, vertices, edges, labels, attributes, classes):
    root = real(f"tu-{name.lower()}/{name}.zip")
    data = tu(name, root, attributes=attributes > 0)
    assert len(data) == graphs
    assert (data.num_nodes, data.num_edges) == (vertices, edges)
    assert data.num_features == labels + attributes
    assert np.bincount(data.y).tolist() == classes
    assert (data.x[:, attributes:].sum(axis=1) == 1).all()
    assert (data.edge_label is not None) == (name == "MUTAG")
    assert data.union().num_edges == edges


def test_download_then_cache(real, tmp_path):
    raw = (real("tu-mutag/MUTAG.zip") / "tu-mutag/MUTAG.zip").read_bytes()
    asked = []

    def fetch(url, size):
        asked.append(url)
        return raw

    first, second = (tu("MUTAG", fetch=fetch) for _ in range(2))
    assert len(asked) == 1
    assert (tmp_path / "cache/gnnjit/tu-mutag/MUTAG.zip").read_bytes() == raw
    np.testing.assert_array_equal(first.src, second.src)
