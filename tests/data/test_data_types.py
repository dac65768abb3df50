import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.data.edges import symmetric_edges
from gnnjit.data.splits import per_class_split, row_normalize
from gnnjit.data.types import Dataset, GraphDataset
from gnnjit.errors import DataError
from gnnjit.graph import Graph


def _dataset(**changes):
    mask = np.eye(3, dtype=bool)
    parts = {
        "name": "toy",
        "graph": Graph.from_edges([0, 1], [1, 0], 3),
        "x": np.zeros((3, 2), np.float32),
        "y": np.array([0, 1, 1], np.int32),
        "train_mask": mask[0],
        "val_mask": mask[1],
        "test_mask": mask[2],
        "num_classes": 2,
    }
    return Dataset(**parts | changes)


def _graphs(**changes):
    """Two vertices with an edge both ways, no vertices, three vertices with one edge."""
    parts = {
        "name": "toy",
        "node_offsets": np.array([0, 2, 2, 5], np.int64),
        "edge_offsets": np.array([0, 2, 2, 3], np.int64),
        "src": np.array([0, 1, 4], np.int32),
        "dst": np.array([1, 0, 2], np.int32),
        "x": np.arange(10, dtype=np.float32).reshape(5, 2),
        "y": np.array([0, 1, 1], np.int32),
        "num_classes": 2,
        "edge_label": np.array([0, 1, 2], np.int32),
    }
    return GraphDataset(**parts | changes)


def test_dataset_describes_itself():
    assert repr(_dataset()) == (
        "Dataset(toy: 3 vertices, 2 directed edges, 2 features, 2 classes, 1 train / 1 val / "
        "1 test)"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        _dataset().name = "other"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": np.zeros((2, 2), np.float32)},
            "toy: x is float32[2, 2], expected float32[3, any].",
        ),
        ({"x": np.zeros((3, 2))}, "toy: x is float64[3, 2], expected float32[3, any]."),
        ({"y": np.zeros((3, 1), np.int32)}, "toy: y is int32[3, 1], expected int32[3]."),
        ({"val_mask": np.array([1])}, "toy: val_mask is int64[1], expected bool[3]."),
        (
            {"y": np.array([0, 2, 0], np.int32)},
            "toy: y[1] is 2, expected a class from 0 to 1. Renumber the classes or raise "
            "num_classes.",
        ),
        (
            {"test_mask": np.ones(3, bool)},
            "toy: vertex 0 is in two of train_mask, val_mask and test_mask, expected disjoint "
            "masks. Take it out of one of them.",
        ),
    ],
)
def test_dataset_refuses(changes, message):
    with pytest.raises(DataError) as error:
        _dataset(**changes)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"node_offsets": np.array([0, 2, 1, 5], np.int64)},
            "toy: node_offsets runs from 0 to 5, expected it to rise from 0 to 5 without a step "
            "down.",
        ),
        (
            {"edge_offsets": np.array([0, 2, 2, 2], np.int64)},
            "toy: edge_offsets runs from 0 to 2, expected it to rise from 0 to 3 without a step "
            "down.",
        ),
        (
            {"dst": np.array([1, 0, 1], np.int32)},
            "toy: dst of edge 2 is vertex 1, expected a vertex of graph 2, whose vertices are 2 "
            "to 4. No edge may join two graphs.",
        ),
        (
            {"edge_label": np.zeros(2, np.int32)},
            "toy: edge_label is int32[2], expected int32[3].",
        ),
    ],
)
def test_graph_dataset_refuses(changes, message):
    with pytest.raises(DataError) as error:
        _graphs(**changes)
    assert str(error.value) == message


def test_graph_dataset_takes_apart():
    data = _graphs()
    assert repr(data) == (
        "GraphDataset(toy: 3 graphs, 5 vertices, 3 directed edges, 2 features, 2 classes)"
    )
    assert len(data) == 3
    assert data.node_graph.tolist() == [0, 0, 2, 2, 2]
    assert (data.union().num_nodes, data.union().num_edges) == (5, 3)
    graph, x = data.graph(2)
    assert (graph.num_nodes, list(graph.src), list(graph.dst)) == (3, [2], [0])
    assert x.tolist() == [[4, 5], [6, 7], [8, 9]]
    empty, x = data.graph(1)
    assert (empty.num_nodes, empty.num_edges, x.shape) == (0, 0, (0, 2))


def test_select_renumbers():
    got = _graphs().select([2, 0, 2])
    assert got.node_offsets.tolist() == [0, 3, 5, 8]
    assert got.edge_offsets.tolist() == [0, 1, 3, 4]
    assert got.src.tolist() == [2, 3, 4, 7]
    assert got.dst.tolist() == [0, 4, 3, 5]
    assert got.edge_label.tolist() == [2, 0, 1, 2]
    assert got.y.tolist() == [1, 0, 1]
    assert len(_graphs().select([])) == 0


def test_select_refuses():
    with pytest.raises(DataError) as error:
        _graphs().select([0, 3])
    assert str(error.value) == "toy: select() got graph 3, expected ids from 0 to 2."


def _labelled(y):
    n = len(y)
    offsets = np.arange(n + 1, dtype=np.int64)
    none = np.array([], np.int32)
    x = np.zeros((n, 1), np.float32)
    y = np.array(y, np.int32)
    return GraphDataset("toy", offsets, np.zeros_like(offsets), none, none, x, y, 4)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.data(), st.integers(0, 9))
def test_folds_partition_and_stratify(y, data, seed):
    dataset = _labelled(y)
    k = data.draw(st.integers(2, len(y)))
    folds = dataset.folds(k, seed)
    assert np.array_equal(np.sort(np.concatenate([f.test for f in folds])), np.arange(len(y)))
    for fold in folds:
        assert np.array_equal(np.union1d(fold.train, fold.test), np.arange(len(y)))
        assert np.intersect1d(fold.train, fold.test).size == 0
    counts = np.array([np.bincount(dataset.y[f.test], minlength=4) for f in folds])
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_folds_depend_on_the_seed_alone():
    data = _labelled([0, 1, 2, 3] * 10)
    same = zip(data.folds(5, 1), data.folds(5, 1), strict=True)
    assert all(np.array_equal(a.test, b.test) for a, b in same)
    assert not np.array_equal(data.folds(5, 1)[0].test, data.folds(5, 2)[0].test)


@pytest.mark.parametrize("k", [1, 4])
def test_folds_refuse(k):
    with pytest.raises(DataError) as error:
        _graphs().folds(k)
    assert str(error.value) == (f"toy: folds() got k={k}, expected 2 to 3, the number of graphs.")


_PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30)


@given(_PAIRS)
def test_symmetric_edges_against_a_set(pairs):
    a, b = np.array(pairs, np.int64).reshape(-1, 2).T
    src, dst = symmetric_edges(a, b, 7)
    want = {(v, u) for x, y in pairs if x != y for u, v in ((x, y), (y, x))}
    assert list(zip(dst.tolist(), src.tolist(), strict=True)) == sorted(want)
    assert (src.dtype, dst.dtype) == (np.int32, np.int32)


def test_ids_near_the_top_do_not_overflow():
    n = 2**31 - 1
    src, dst = symmetric_edges(np.array([n - 1]), np.array([n - 2]), n)
    assert (src.tolist(), dst.tolist()) == ([n - 1, n - 2], [n - 2, n - 1])


def test_per_class_split():
    y = np.repeat(np.arange(3, dtype=np.int32), [10, 20, 30])
    masks = per_class_split("toy", y, 3, train=4, val=5, seed=0)
    assert [np.bincount(y[m]).tolist() for m in masks] == [[4] * 3, [5] * 3, [1, 11, 21]]
    assert (sum(m.astype(int) for m in masks) == 1).all()
    other = per_class_split("toy", y, 3, train=4, val=5, seed=1)
    assert not np.array_equal(masks.train, other.train)


def test_per_class_split_refuses():
    y = np.array([0, 0, 0, 1, 1], np.int32)
    with pytest.raises(DataError) as error:
        per_class_split("toy", y, 2, train=1, val=1, seed=0)
    assert str(error.value) == (
        "toy: class 1 has 2 vertices, expected more than 1 train + 1 val. Lower train_per_class "
        "or val_per_class."
    )
    with pytest.raises(DataError, match="got train=0, val=1 vertices a class"):
        per_class_split("toy", y, 2, train=0, val=1, seed=0)


def test_row_normalize():
    x = np.array([[1, 3], [0, 0], [0.5, 0]], np.float32)
    got = row_normalize(x)
    np.testing.assert_array_equal(got, np.array([[0.25, 0.75], [0, 0], [1, 0]], np.float32))
    assert got.dtype == np.float32


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("make", [_dataset, _graphs])
def test_features_are_finite(make, value):
    x = make().x.copy()
    with np.errstate(over="ignore"):
        x[2, 1] = value
    message = (
        f"toy: x[2, 1] is {np.float32(x[2, 1])}, expected finite numbers of float32. Replace it, "
        "or leave the vertex out."
    )
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        make(x=x)


def test_seeds_are_not_negative():
    message = r"^toy: (folds\(\)|the split) got seed=-3, expected at least 0\.$"
    with pytest.raises(DataError, match=message):
        _graphs().folds(2, seed=-3)
    with pytest.raises(DataError, match=message):
        per_class_split("toy", np.zeros(9, np.int32), 1, train=1, val=1, seed=-3)
