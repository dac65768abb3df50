import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from gnnjit.data import planetoid
from gnnjit.errors import DataError


def _edges(data):
    return np.stack([np.asarray(data.graph.src), np.asarray(data.graph.dst)])


@pytest.mark.parametrize("protocol", ["old", 2, 4])
@pytest.mark.parametrize("folder", ["cora", "."])
def test_tiny(tmp_path, planetoid_parts, write_planetoid, protocol, folder):
    write_planetoid(tmp_path / folder, planetoid_parts, protocol)
    data = planetoid("cora", tmp_path)
    features = np.arange(55, dtype=np.float32).reshape(11, 5) % 4
    np.testing.assert_array_equal(data.x[:7], features[:7])
    np.testing.assert_array_equal(data.x[[9, 7, 11, 8]], features[7:])
    np.testing.assert_array_equal(data.x[10], 0)
    assert data.y[:7].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert data.y[[9, 7, 11, 8, 10]].tolist() == [1, 2, 0, 1, 0]
    assert np.flatnonzero(data.train_mask).tolist() == [0, 1, 2]
    assert np.flatnonzero(data.val_mask).tolist() == [3, 4, 5, 6]
    assert np.flatnonzero(data.test_mask).tolist() == [7, 8, 9, 11]
    assert data.num_edges == 2 * 13  # the ring and the edge 3-6
    assert {(3, 6), (6, 3), (0, 11)} < set(map(tuple, _edges(data).T.tolist()))
    assert (data.num_classes, data.name) == (3, "cora")


def test_normalize(tmp_path, planetoid_parts, write_planetoid):
    write_planetoid(tmp_path, planetoid_parts)
    plain, scaled = (planetoid("cora", tmp_path, normalize=flag) for flag in (False, True))
    sums = scaled.x.sum(axis=1)
    np.testing.assert_allclose(sums, (plain.x.sum(axis=1) > 0).astype(float), rtol=1e-6)


_LABELS = np.eye(3, dtype=np.int32)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("x", _LABELS, "{x}: holds a ndarray, expected a SciPy CSR matrix of features. Is it "
         "another dataset's file?"),
        ("y", [1, 2], "{y}: holds a list, expected an array of one-hot labels, [rows, classes]. "
         "Is it another dataset's file?"),
        ("y", _LABELS * 2, "{y}: row 0 is not one-hot, expected a single 1. The file is damaged; "
         "get it again."),
        ("y", _LABELS[[2, 1, 0]], "{y}: got 3 labels, expected the first labels of ind.cora.ally. "
         "One of the two is damaged or of another dataset; get both again."),
        ("y", _LABELS[:2], "{y}: got 2 rows, expected 3 as in ind.cora.x. One of the two is "
         "damaged or of another dataset; get both again."),
        ("tx", sp.csr_matrix(np.ones((4, 6))), "{tx}: got 6 columns, expected 5 as in "
         "ind.cora.allx. One of the two is damaged or of another dataset; get both again."),
        ("ty", np.eye(4, dtype=int), "{ty}: got 4 classes, expected 3 as in ind.cora.ally. One "
         "of the two is damaged or of another dataset; get both again."),
        ("graph", {0: (1,), 1: [0]}, "{graph}: holds a dict, expected a dict from vertex to list "
         "of neighbours. Is it another dataset's file?"),
        ("graph", {0: [1], 1: [7]}, "{graph}: mentions vertex 7, expected ids from 0 to 1 as the "
         "file lists 2 vertices. The file is damaged; get it again."),
        ("graph", {0: [1], 5: [0]}, "{graph}: mentions vertex 5, expected ids from 0 to 1 as the "
         "file lists 2 vertices. The file is damaged; get it again."),
        ("graph", {i: [] for i in range(10)}, "{test.index}: got vertex 11, expected ids from 7 "
         "to 9 by allx and ind.cora.graph. One of the two is damaged or of another dataset; get "
         "both again."),
        ("test.index", [7, 8, 9], "{test.index}: got 3 ids, expected 4 as the rows of ind.cora.tx. "
         "One of the two is damaged or of another dataset; get both again."),
        ("test.index", [7, 8, 9, 7], "{test.index}: got an id twice, expected distinct ids, one "
         "for each row of ind.cora.tx. One of the two is damaged or of another dataset; get both "
         "again."),
        ("test.index", [3, 8, 9, 7], "{test.index}: got vertex 3, expected ids from 7 to 11 by "
         "allx and ind.cora.graph. One of the two is damaged or of another dataset; get both "
         "again."),
        ("test.index", b"7 eight 9", "{test.index}: not a list of vertex ids (invalid literal "
         "for int() with base 10: 'eight'), expected one number a line."),
        ("test.index", b"7 8 9 99999999999999999999", "{test.index}: not a list of vertex ids ("
         "9223372036854775807 is the largest that is read), expected one number a line."),
    ],
)  # fmt: skip
def test_refuses(tmp_path, planetoid_parts, write_planetoid, part, value, message):
    write_planetoid(tmp_path, planetoid_parts | {part: value})
    with pytest.raises(DataError) as error:
        planetoid("cora", tmp_path)
    for key in planetoid_parts:
        message = message.replace("{" + key + "}", str(tmp_path / f"ind.cora.{key}"))
    assert str(error.value) == message


@pytest.mark.parametrize("part", ["x", "allx", "ty", "graph"])
def test_cut_short(tmp_path, planetoid_parts, write_planetoid, part):
    raw = pickle.dumps(planetoid_parts[part], protocol=2)
    write_planetoid(tmp_path, planetoid_parts | {part: raw[: len(raw) // 2]})
    with pytest.raises(DataError, match=rf"ind\.cora\.{part}: not a readable pickle"):
        planetoid("cora", tmp_path)


def test_missing_file(tmp_path, planetoid_parts, write_planetoid):
    write_planetoid(tmp_path, planetoid_parts | {"allx": None})
    with pytest.raises(DataError, match=r"^cora: ind\.cora\.allx is missing, expected"):
        planetoid("cora", tmp_path)


def test_unknown_name(tmp_path):
    with pytest.raises(DataError) as error:
        planetoid("coral", tmp_path)
    assert str(error.value) == (
        "planetoid: got 'coral', expected one of cora, citeseer, pubmed, nell."
    )


def test_no_network():
    def fetch(url, size):
        raise OSError("no route")

    with pytest.raises(DataError, match=r"cannot download ind\.pubmed\.\w+ from https.*--data-dir"):
        planetoid("pubmed", fetch=fetch)


@pytest.mark.parametrize(
    ("name", "vertices", "edges", "features", "classes", "split"),
    [
        ("cora", 2708, 10556, 1433, 7, (140, 500, 1000)),
        ("citeseer", 3327, 9104, 3703, 6, (120, 500, 1000)),
        ("pubmed", 19717, 88648, 500, 3, (60, 500, 1000)),
    ],
)
def test_real(real, name, vertices, edges, features, classes, split):
    root = real(f"{name}/ind.{name}.allx")
    data = planetoid(name, root)
    assert data.graph.num_nodes == vertices
    assert data.num_edges == edges
    assert data.x.shape == (vertices, features)
    assert data.num_classes == classes
    masks = (data.train_mask, data.val_mask, data.test_mask)
    assert tuple(int(m.sum()) for m in masks) == split
    assert np.bincount(data.y[data.train_mask]).tolist() == [20] * classes


def test_real_cora(real):
    data = planetoid("cora", real("cora/ind.cora.x"))
    assert np.count_nonzero(data.x) == 31261 + 17955
    assert np.flatnonzero(data.test_mask).tolist() == list(range(1708, 2708))
    # Class sizes of Cora, in the numbering of the files.
    assert np.bincount(data.y).tolist() == [351, 217, 418, 818, 426, 298, 180]


def test_real_citeseer_has_vertices_without_features(real):
    data = planetoid("citeseer", real("citeseer/ind.citeseer.x"))
    empty = np.flatnonzero(~data.x.any(axis=1))
    assert empty.shape == (15,)
    assert empty.min() >= 2312
    assert not (data.train_mask | data.val_mask | data.test_mask)[empty].any()
    assert (data.y[empty] == 0).all()
    degree = np.bincount(_edges(data)[1], minlength=3327)
    assert (degree == 0).sum() == 48


@pytest.mark.parametrize(("name", "part"), [("pubmed", "allx"), ("nell", "ally")])
def test_real_but_partial(real, name, part):
    prefix = {"pubmed": "pubmed", "nell": "nell.0.001"}[name]
    root = real(f"{name}/ind.{prefix}.x")
    if (root / name / f"ind.{prefix}.{part}").exists():
        pytest.skip(f"{name} is complete here")
    with pytest.raises(DataError) as error:
        planetoid(name, root)
    file = f"ind.{prefix}.{part}"
    assert str(error.value) == (
        f"{name}: {file} is missing, expected {root / name / file} or {root / file}. Add the "
        "file, or leave out --data-dir (and GNNJIT_DATA_DIR) to download it."
    )


def test_real_pubmed_with_features_made_up(real, tmp_path):
    """The topology, labels and split are complete here; only rows of features are missing."""
    root = real("pubmed/ind.pubmed.graph")
    for path in (root / "pubmed").glob("ind.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "ind.pubmed.allx").write_bytes(
        pickle.dumps(sp.csr_matrix((18717, 500), dtype=np.float32))
    )
    data = planetoid("pubmed", tmp_path)
    assert (data.num_nodes, data.num_edges, data.num_classes) == (19717, 88648, 3)
