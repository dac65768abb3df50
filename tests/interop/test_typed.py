"""Typed graphs from and to PyG and DGL. Neither is installed: objects with their names stand in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnnjit import TypedGraph
from gnnjit.data import read_edges
from gnnjit.errors import DataError, GraphError
from gnnjit.interop.dgl import from_heterograph, to_heterograph
from gnnjit.interop.pyg import from_hetero_data, to_hetero_data

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


class Tensor:
    """As torch's: NumPy reads it once it is detached and on the host."""

    def __init__(self, array: Any, ready: bool = False):
        self.array, self.ready = np.asarray(array), ready
        self.shape, self.dtype = self.array.shape, "torch.float32"

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return Tensor(self.array, ready=True)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        assert self.ready
        return self.array


class Store:
    """A `NodeStorage` or `EdgeStorage` of PyG."""

    def items(self) -> Any:
        return self.__dict__.items()

    @property
    def num_nodes(self) -> int | None:
        counts = [len(v.array) for v in self.__dict__.values() if isinstance(v, Tensor)]
        return self.__dict__.get("num_nodes", counts[0] if counts else None)

    @num_nodes.setter
    def num_nodes(self, count: int) -> None:
        self.__dict__["num_nodes"] = count


class HeteroData:
    def __init__(self) -> None:
        self.stores: dict[Any, Store] = {}

    def __getitem__(self, key: Any) -> Store:
        return self.stores.setdefault(key, Store())

    @property
    def node_types(self) -> list[str]:
        return [k for k in self.stores if isinstance(k, str)]

    @property
    def edge_types(self) -> list[Any]:
        return [k for k in self.stores if not isinstance(k, str)]


def some() -> Any:
    data = HeteroData()
    data["author"].x = Tensor(np.arange(6.0).reshape(3, 2))
    data["author"].name = "people"
    data["paper"].num_nodes = 4
    data[WRITES].edge_index = Tensor([[0, 2], [3, 1]])
    data[WRITES].edge_attr = Tensor([[1.0], [2.0]])
    data[CITES].edge_index = Tensor(np.zeros((2, 0), np.int64))
    return data


def test_hetero_data_there_and_back():
    graph, nodes, edges = from_hetero_data(some())
    assert graph.num_nodes == {"author": 3, "paper": 4}
    assert graph.num_edges == {WRITES: 2, CITES: 0}
    assert nodes["author"]["x"].shape == (3, 2)
    assert list(nodes["author"]) == ["x"]
    assert edges[WRITES]["edge_attr"].tolist() == [[1], [2]]

    padded = graph.pad({"author": 5}, {"writes": 4})
    back: Any = to_hetero_data(
        padded, HeteroData(), padded.pad_nodes({"author": nodes["author"]["x"]}),
        padded.pad_edges({"writes": edges[WRITES]["edge_attr"]}), tensor=Tensor,
    )  # fmt: skip
    assert back["author"].num_nodes == 5
    assert back["author"].x.array.shape == (5, 2)
    assert back[WRITES].edge_index.array.tolist() == [[0, 2], [3, 1]]
    assert back[WRITES].edge_attr.array.tolist() == [[1], [2]]
    assert back[CITES].edge_index.array.shape == (2, 0)


class Frames:
    """`graph.nodes[type].data` and `graph.edges[type].data` of DGL; `edges` is called too."""

    def __init__(self, graph: Any = None):
        self.graph, self.found = graph, {}

    def __getitem__(self, key: Any) -> Any:
        return self.found.setdefault(key, type("Frame", (), {"data": {}})())

    def __call__(self, *, order: str, etype: Any) -> Any:
        assert order == "eid"
        return self.graph.ends[etype]


class Heterograph:
    def __init__(self, ends: Any, num_nodes_dict: dict[str, int]):
        self.ends, self.counts = ends, num_nodes_dict
        self.ntypes, self.canonical_etypes = list(num_nodes_dict), list(ends)
        self.nodes, self.edges = Frames(), Frames(self)

    def num_nodes(self, ntype: str) -> int:
        return self.counts[ntype]


def test_heterograph_there_and_back():
    given = TypedGraph.from_edges(
        {WRITES: ([0, 2], [3, 1]), CITES: ([0], [1])}, {"author": 3, "paper": 4}
    )
    x, w = np.arange(6.0).reshape(3, 2), np.array([3.0, 4.0])
    made = to_heterograph(given, Heterograph, {"author": x}, {"writes": w}, tensor=Tensor)
    graph, nodes, edges = from_heterograph(made)
    assert graph.num_nodes == given.num_nodes
    assert np.asarray(graph["writes"].src).tolist() == [0, 2]
    np.testing.assert_array_equal(nodes["author"]["x"], x)
    np.testing.assert_array_equal(edges[WRITES]["w"], w)
    assert edges[CITES] == {}


def without_edges() -> Any:
    data = some()
    del data[WRITES].edge_index
    return data


def without_count() -> Any:
    data = some()
    data["venue"].url = "text"
    return data


GRAPH = TypedGraph.from_edges({WRITES: ([0, 2], [3, 1])})


@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (lambda: from_hetero_data(3), "a int without node_types"),
        (lambda: from_hetero_data(without_edges()), "'writes', 'paper'.* has no edge_index"),
        (lambda: from_hetero_data(without_count()), "how many vertices of type 'venue'"),
        (lambda: from_heterograph(some()), "a HeteroData without ntypes"),
        (lambda: to_hetero_data(GRAPH, {}), "expected an empty HeteroData"),
        (lambda: to_heterograph(GRAPH, {}), "pass dgl.heterograph"),
        (lambda: to_heterograph(GRAPH, Heterograph, tensor=3), "pass torch.from_numpy"),
        (lambda: to_heterograph(GRAPH, Heterograph, [1]), "dictionary from vertex types"),
        (lambda: to_heterograph(GRAPH, Heterograph, {"x": [1]}), "'x' is no vertex type"),
        (lambda: to_heterograph(GRAPH, Heterograph, {"paper": np.ones(2)}), "has 2 rows"),
        (lambda: to_heterograph(GRAPH, Heterograph, None, {"writes": np.ones(3)}), "has 3 rows"),
    ],
)
def test_mistakes(convert, message):
    with pytest.raises(GraphError, match=message):
        convert()


def test_a_heterograph_of_one_type_is_an_edge_list():
    key = ("_N", "_E", "_N")
    graph = Heterograph({key: ([0, 2], [1, 0])}, {"_N": 4})
    graph.nodes["_N"].data["x"] = Tensor(np.arange(4.0))
    graph.edges[key].data["w"] = Tensor(np.array([5.0, 6.0]))
    edges = read_edges(graph)
    assert (edges.src.tolist(), edges.dst.tolist(), edges.num_nodes) == ([0, 2], [1, 0], 4)
    assert edges.nodes["x"].tolist() == [0, 1, 2, 3]
    assert edges.edges["w"].tolist() == [5, 6]
    two = Heterograph({("a", "r", "b"): ([0], [1])}, {"a": 1, "b": 2})
    with pytest.raises(DataError, match="got a graph of DGL with several types, expected one"):
        read_edges(two)
    with pytest.raises(DataError, match=r"got a HeteroData, .*typed graphs are for gnnjit.interop"):
        read_edges(HeteroData())
