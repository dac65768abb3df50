"""Splits and transforms of graphs of one's own, and the datasets that are made of them."""

from __future__ import annotations

import numpy as np
import pytest

from gnnjit.data import (
    Dataset,
    EdgeList,
    LinkDataset,
    communities,
    deduplicated,
    induced,
    largest_component,
    negative_links,
    own_dataset,
    random_split,
    split_links,
    time_split,
    to_undirected,
    training_part,
    with_degrees,
    with_laplacian,
    with_random_walks,
    without_self_loops,
)
from gnnjit.errors import DataError


def some(pairs=((0, 1), (1, 0), (0, 1), (2, 2), (3, 4), (1, 2)), count=6, **more):
    src, dst = np.array(pairs, np.int32).T
    weight = np.arange(1, len(pairs) + 1, dtype=np.float32)
    edges = {"weight": weight, "time": -np.arange(len(pairs))}
    return EdgeList("g", src, dst, count, edges=edges, **more)


def triples(edges):
    return list(zip(edges.src.tolist(), edges.dst.tolist(), edges.weight.tolist(), strict=True))


def test_edges_made_another_way():
    edges = some()
    assert triples(deduplicated(edges)) == [(1, 0, 2), (0, 1, 1), (1, 2, 6), (2, 2, 4), (3, 4, 5)]
    assert triples(deduplicated(edges, add_weights=True))[1] == (0, 1, 4)
    assert triples(without_self_loops(edges)) == [
        (0, 1, 1), (1, 0, 2), (0, 1, 3), (3, 4, 5), (1, 2, 6),
    ]  # fmt: skip
    both = to_undirected(without_self_loops(edges))
    assert triples(both) == [(1, 0, 2), (0, 1, 1), (2, 1, 6), (1, 2, 6), (4, 3, 5), (3, 4, 5)]
    assert both.report == ("1 self loops left out", "5 edges to 6 that go both ways")


def test_the_largest_component():
    edges = some(ids=np.array(list("abcdef")), nodes={"x": np.arange(6)})
    part = largest_component(edges)
    assert (part.ids.tolist(), part.nodes["x"].tolist()) == (["a", "b", "c"], [0, 1, 2])
    assert part.report == ("the largest of 3 components, 3 of 6 vertices",)
    part = induced(some(), np.arange(6) >= 3)
    assert (triples(part), part.ids.tolist()) == ([(0, 1, 5)], [3, 4, 5])
    with pytest.raises(DataError, match=r"g: induced\(\) got int64\[1\], expected bool\[6\]"):
        induced(some(), np.array([1]))


def test_features_of_the_edges_alone():
    path = some(((0, 1), (1, 2), (2, 2)), 3)
    walks = with_random_walks(path, 3).nodes["x"]
    assert walks == pytest.approx(np.array([[0, 0.5, 0], [0, 1, 0], [0, 0.5, 0]]))
    first, again, other = (with_laplacian(path, 2, seed=s).nodes["x"] for s in (0, 0, 3))
    assert np.array_equal(first, again)
    assert np.abs(first) == pytest.approx(np.abs(other))
    assert not np.array_equal(first, other)
    # Of the path a - b - c: eigenvalues 0, 1, 2.
    half, root = 0.5, np.sqrt(0.5)
    assert np.abs(first) == pytest.approx(
        np.array([[root, half], [0, root], [root, half]]), abs=1e-6
    )
    both = with_degrees(with_degrees(path), largest=2)
    assert both.nodes["x"].tolist() == [
        [0, np.float32(np.log(2)), 1, 0, 0],
        [np.float32(np.log(2))] * 2 + [0, 1, 0],
        [np.float32(np.log(3)), np.float32(np.log(2)), 0, 0, 1],
    ]
    assert len(both.report) == 2
    with pytest.raises(DataError, match=r"g: with_laplacian\(\) got count=3, expected less than 3"):
        with_laplacian(path, 3)
    with pytest.raises(
        DataError, match=r"g: with_random_walks\(\) got steps=0, expected 1 or more"
    ):
        with_random_walks(path, 0)


def test_large_graphs_have_the_same_eigenvectors(monkeypatch):
    data = communities(200, 4, 4, avg_degree=8.0)
    edges = EdgeList("g", np.asarray(data.graph.src), np.asarray(data.graph.dst), 200)
    dense = with_laplacian(edges, 3).nodes["x"]
    monkeypatch.setattr("gnnjit.data.transforms._DENSE", 100)
    assert np.abs(with_laplacian(edges, 3).nodes["x"]) == pytest.approx(np.abs(dense), abs=1e-4)
    walks = with_random_walks(edges, 2).nodes["x"]
    monkeypatch.undo()
    assert walks == pytest.approx(with_random_walks(edges, 2).nodes["x"], abs=1e-6)


def ring(count=40):
    src = np.arange(count)
    both = np.concatenate([src, (src + 1) % count]), np.concatenate([(src + 1) % count, src])
    time = np.concatenate([src, src + 0.5])
    return EdgeList("ring", *(e.astype(np.int32) for e in both), count, edges={"time": time})


@pytest.mark.parametrize("by_time", [False, True])
def test_links_do_not_leak(by_time):
    data = split_links(ring(), val=0.1, test=6, by_time=by_time, seed=3)
    parts = [data.train, data.val, data.test]
    assert [len(p) for p in parts] == [30, 4, 6]
    pairs = [{frozenset((a, b)) for a, _, b in p.tolist()} for p in parts]
    assert len(set.union(*pairs)) == 40
    if by_time:
        assert [p[0].tolist() for p in parts] == [[0, 0, 1], [30, 0, 31], [34, 0, 35]]
    again = split_links(ring(), val=0.1, test=6, by_time=by_time, seed=3)
    assert np.array_equal(again.test, data.test)


def test_links_that_are_not_there():
    data = split_links(ring(6), val=1, test=2)
    found = negative_links(data, "test", count=2, seed=1)
    assert found.shape == (2, 2, 3)
    assert np.array_equal(found[:, 0, 0], data.test[:, 0])
    for a, _, b in found.reshape(-1, 3).tolist():
        assert (a - b) % 6 not in (0, 1, 5)
    assert np.array_equal(found, negative_links(data, "test", count=2, seed=1))
    none = np.zeros((0, 3), np.int32)
    full = LinkDataset("all", 2, np.array([[0, 0, 1]], np.int32), none, none)
    with pytest.raises(DataError, match=r"all: found no vertex that 0 is not linked to in 100 dr"):
        negative_links(full, "train")
    with pytest.raises(DataError, match=r"all: part is 'some', expected train, val or test"):
        negative_links(full, "some")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val": 20, "test": 20}, "ring: val and test take 40 of 40 links, expected some to train "
         "on. Take fewer."),
        ({"val": -1}, "ring: val is -1, expected how many links, or a share of them below 1."),
        ({"test": 1.5}, "ring: test is 1.5, expected how many links, or a share of them below 1."),
        ({"seed": -1}, "ring: split_links got seed=-1, expected at least 0."),
    ],
)  # fmt: skip
def test_splits_of_links_that_are_none(options, message):
    with pytest.raises(DataError) as error:
        split_links(ring(), **options)
    assert str(error.value) == message


def test_splits_of_vertices():
    y = np.repeat([0, 1], [30, 70])
    masks = random_split("g", y, train=0.5, val=0.2, seed=4)
    counts = [[int((m & (y == c)).sum()) for c in (0, 1)] for m in masks]
    assert counts == [[15, 35], [6, 14], [9, 21]]
    known = np.arange(100) >= 90
    masks = random_split("g", y, known=known)
    assert np.array_equal(masks.train | masks.val | masks.test, known)
    time = np.array([5, 1, 2, np.nan, 3, 3])
    masks = time_split("g", time, train=0.4, val=0.3)
    assert [m.nonzero()[0].tolist() for m in masks] == [[1, 2], [4, 5], [0]]
    for wrong in (lambda: random_split("g", y, train=1.0), lambda: time_split("g", time, train=0)):
        with pytest.raises(DataError, match=r"g: the split got shares train=.*, expected above 0"):
            wrong()
    with pytest.raises(DataError, match=r"g: the split takes 1 of 1 labelled vertices to train on"):
        random_split("g", y, known=np.arange(100) == 3)
    with pytest.raises(DataError, match=r"g: 3 vertices are as early as 1.0 and 0 are later than"):
        time_split("g", np.ones(3))


def test_what_an_inductive_model_sees():
    data = communities(60, 3, 4, train_fraction=0.5)
    part = training_part(data)
    kept = np.flatnonzero(data.train_mask)
    assert (part.num_nodes, part.train_mask.all()) == (len(kept), True)
    src, dst = (np.asarray(e) for e in (data.graph.src, data.graph.dst))
    inside = np.isin(src, kept) & np.isin(dst, kept)
    assert kept[np.asarray(part.graph.src)].tolist() == src[inside].tolist()
    assert np.array_equal(part.x, data.x[kept])


def write(folder, **files):
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)


def test_a_graph_with_tables_of_its_vertices(tmp_path):
    write(
        tmp_path, g_csv="a,b\nb,c\nc,d\nd,a\n", y_csv="id,kind\na,red\nb,blue\nc,red\nd,blue\n",
        x_tsv="a\t1\t2\nc\t3\t4\n",
    )  # fmt: skip
    options = {"features": tmp_path / "x.tsv", "labels": tmp_path / "y.csv", "train_fraction": 0.5}
    data = own_dataset(tmp_path / "g.csv", val_fraction=0, **options)
    assert isinstance(data, Dataset)
    assert (data.y.tolist(), data.x.tolist()) == ([1, 0, 1, 0], [[1, 2], [0, 0], [3, 4], [0, 0]])
    assert (data.num_edges, data.num_classes) == (8, 2)
    links = own_dataset(tmp_path / "g.csv", test_links=1)
    assert (links.task, len(links.train)) == ("link", 3)
    np.save(tmp_path / "y.npy", np.array([[0.5], [np.nan], [2], [3]]))
    data = own_dataset(tmp_path / "g.csv", labels=tmp_path / "y.npy", train_fraction=0.5)
    assert (data.y[:, 0].tolist(), data.is_regression) == ([0.5, 0, 2, 3], True)
    assert not data.test_mask[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,1\nq,2\n", "y.csv, line 2: has the vertex 'q', which no edge has. Leave the line out, "
         "or correct it."),
        ("a,1\nb\n", "y.csv, line 2: got 1 columns, expected 2, as in the first line."),
        ("a,1,2\n", "y.csv: has 2 columns beside ids, expected one, of labels."),
    ],
)  # fmt: skip
def test_tables_of_vertices_that_are_wrong(tmp_path, text, message):
    write(tmp_path, g_csv="a,b\nb,c\n", y_csv=text)
    with pytest.raises(DataError) as error:
        own_dataset(tmp_path / "g.csv", labels=tmp_path / "y.csv")
    assert str(error.value) == f"{tmp_path}/{message}"


def test_an_option_that_is_none(tmp_path):
    write(tmp_path, g_csv="a,b\n")
    with pytest.raises(DataError, match=r"got the option 'colums', .* Did you mean 'columns'\?"):
        own_dataset(tmp_path / "g.csv", colums=(0, 1))
