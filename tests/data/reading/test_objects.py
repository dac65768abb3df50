"""Tables, and graphs of other libraries: there and back, in their order, with what they carry."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnjit import Graph
from gnnjit.data import read_edges
from gnnjit.errors import DataError, GraphError
from gnnjit.interop.igraph import from_igraph, to_igraph
from gnnjit.interop.networkx import from_networkx, to_networkx
from gnnjit.interop.pyg import from_data, to_data
from gnnjit.interop.rustworkx import from_rustworkx, to_rustworkx


class Data:
    """What `from_data` and `to_data` touch of PyG's Data."""

    edge_index = num_nodes = None

    def items(self):
        return vars(self).items()


def to_and_back(library, graph, nodes, edges):
    """What comes back of a graph that was handed to a library."""
    if library == "pyg":
        made = to_data(graph, Data(), nodes, {f"edge_{k}": v for k, v in edges.items()})
        found = from_data(made)
        return found._replace(edges={k[5:]: v for k, v in found.edges.items()}), made
    module = pytest.importorskip(library)
    if library == "networkx":
        made = to_networkx(graph, module.MultiDiGraph(), nodes, edges)
        return from_networkx(made), made
    if library == "igraph":
        made = to_igraph(graph, module.Graph, nodes, edges)
        return from_igraph(made), made
    made = to_rustworkx(graph, module.PyDiGraph(), nodes, edges)
    return from_rustworkx(made), made


@pytest.mark.parametrize("library", ["pyg", "networkx", "igraph", "rustworkx"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_there_and_back(library, data):
    count = data.draw(st.integers(1, 5))
    pairs = data.draw(st.lists(st.tuples(*[st.integers(0, count - 1)] * 2), max_size=6))
    src, dst = np.array(pairs, np.int32).reshape(-1, 2).T
    graph = Graph.from_edges(src, dst, count)
    nodes = {"x": np.arange(2.0 * count).reshape(count, 2), "y": np.arange(count)}
    edges = {"weight": np.arange(len(src)) + 0.5}
    found, made = to_and_back(library, graph, nodes, edges)
    order = np.arange(len(src))
    if library == "networkx":  # goes through the edges source by source
        order = np.argsort(src, kind="stable")
        order = np.concatenate([order[:0], *(order[src[order] == v] for v in range(count))])
        order = np.array(_by_pair(src, dst, order), np.int64)
    assert np.asarray(found.graph.src).tolist() == src[order].tolist()
    assert np.asarray(found.graph.dst).tolist() == dst[order].tolist()
    assert (found.graph.num_nodes, found.ids) == (count, None)
    assert {k: v.tolist() for k, v in found.nodes.items()} == {
        k: v.tolist() for k, v in nodes.items()
    }
    weights = found.edges.get("weight", np.zeros(0))
    assert weights.tolist() == edges["weight"][order].tolist()
    listed = read_edges(made)
    assert (listed.src.tolist(), listed.num_nodes) == (src[order].tolist(), count)


def _by_pair(src, dst, order):
    """A multigraph keeps parallel edges side by side, where the first of them came."""
    first = {}
    for e in order:
        first.setdefault((src[e], dst[e]), []).append(e)
    return [e for some in first.values() for e in some]


def test_undirected_and_named():
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    graph.add_edge("a", "b", weight=2.5, kind="road")
    graph.add_edge("b", "b", weight=1)
    found = from_networkx(graph)
    assert (found.ids, np.asarray(found.graph.src).tolist()) == (["a", "b"], [0, 1, 1])
    assert {k: v.tolist() for k, v in found.edges.items()} == {"weight": [2.5, 1, 2.5]}
    edges = read_edges(graph)
    assert (edges.ids.tolist(), edges.weight.tolist()) == (["a", "b"], [2.5, 1, 2.5])


def test_gaps_and_numbers_of_rustworkx():
    rustworkx = pytest.importorskip("rustworkx")
    graph = rustworkx.PyGraph()
    graph.add_nodes_from([1.5, 2.5, 3.5])
    graph.add_edges_from([(0, 2, 7.0)])
    graph.remove_node(1)
    found = from_rustworkx(graph)
    assert (found.ids, found.nodes["x"].tolist()) == ([0, 2], [1.5, 3.5])
    assert found.edges["weight"].tolist() == [7, 7]


def test_objects_that_are_none():
    for read in (from_networkx, from_igraph, from_rustworkx, from_data):
        with pytest.raises(GraphError, match=r"_?\w+\(\) got a int without \w+, expected a"):
            read(3)
    with pytest.raises(GraphError, match=r"got a Data without edge_index or num_nodes, expected"):
        from_data(SimpleNamespace(edge_index=None, num_nodes=3))
    graph = Graph.from_edges([0], [1], 2)
    with pytest.raises(GraphError, match="pass one row per vertex"):
        to_data(graph, Data(), np.ones(3))
    with pytest.raises(DataError, match=r"read_edges: got a object, expected a path, a table"):
        read_edges(object())
    with pytest.raises(DataError, match=r"read_edges: got .*, expected a pair of sources and"):
        read_edges([1, 2, 3])


def test_pairs_columns_and_matrices():
    edges = read_edges((np.array([5, 9]), [9, 7]))
    assert (edges.src.tolist(), edges.ids.tolist()) == ([0, 2], [5, 7, 9])
    table = {"t": [1, 2], "from": ["a", "b"], "to": ["b", "ü"], "time": [1.5, 2]}
    edges = read_edges(table, values=["t"])
    assert (edges.ids.tolist(), edges.time.tolist()) == (["a", "b", "ü"], [1.5, 2])
    assert edges.edges["t"].tolist() == [1, 2]
    matrix = sp.csr_matrix(([2.0], ([0], [2])), (3, 3))
    edges = read_edges(matrix)
    assert (edges.src.tolist(), edges.dst.tolist(), edges.weight.tolist()) == ([0], [2], [2])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"from": [1, 2], "to": [1]}, "dict: source has the shape (2,) and destination (1,), "
         "expected one id for each edge in both."),
        ({"from": [1, np.nan], "to": [1, 2]}, "dict, row 1: has no id, expected one. Leave the row "
         "out."),
        ({"from": ["a", None], "to": ["a", "b"]}, "dict, row 1: has no id, expected one. Leave the "
         "row out."),
        ({"from": [1], "to": [2], "weight": ["x"]}, "dict: weight is <U1, expected numbers."),
        ({"from": [1], "to": [2], "weight": [np.inf]}, "dict, row 0: weight is inf, expected a "
         "finite number."),
        ({"from": [1], "to": [2], "weight": [1, 2]}, "dict: weight has the shape (2,), expected 1 "
         "rows."),
        ({"from": [1]}, "dict: has one column, expected two or more, of source and destination. Is "
         "it another delimiter? Pass delimiter=."),
    ],
)  # fmt: skip
def test_tables_that_are_wrong(table, message):
    with pytest.raises(DataError) as error:
        read_edges(table)
    assert str(error.value) == message


COLUMNS = {
    "from": ["a", "b", "a long name of a vertex"], "to": ["b", "c", "a"],
    "weight": [1.5, 2.0, 3.0], "n": [1, 2, 3],
}  # fmt: skip


@pytest.mark.parametrize("library", ["pyarrow", "polars", "pandas", "duckdb"])
def test_tables_of_libraries(library):
    module = pytest.importorskip(library)
    if library == "pyarrow":
        arrow = module.table({**COLUMNS, "kept": [[1], [2], [3]]})
        table = module.concat_tables([arrow.slice(0, 1), arrow.slice(1)])
        coded = table.set_column(0, "from", table["from"].dictionary_encode())
        assert read_edges(coded).ids.tolist() == read_edges(table).ids.tolist()
        dates = table.append_column("time", module.array([0, 10**9, None], "timestamp[ns]"))
        assert read_edges(dates.slice(0, 2)).time.tolist() == [0, 1]
        with pytest.raises(DataError, match=r"Table, row 2: weight is nan, expected a finite"):
            read_edges(table.set_column(2, "weight", module.array([1.0, 2.0, None])))
    elif library == "duckdb":
        rows = list(zip(*COLUMNS.values(), strict=True))
        values = ", ".join(map(str, rows))
        table = module.sql(f"select * from (values {values}) as t({', '.join(map(repr, COLUMNS))})"
                           .replace("'from'", '"from"').replace("'to'", '"to"')
                           .replace("'weight'", "weight").replace("'n'", "n"))  # fmt: skip
    else:
        table = module.DataFrame(COLUMNS)
    edges = read_edges(table, values=["n"])
    assert edges.ids.tolist() == ["a", "b", "c", "a long name of a vertex"]
    assert (edges.src.tolist(), edges.dst.tolist()) == ([0, 1, 3], [1, 2, 0])
    assert (edges.weight.tolist(), edges.edges["n"].tolist()) == ([1.5, 2, 3], [1, 2, 3])


@pytest.mark.long
def test_nothing_is_imported_that_reading_text_does_not_need(tmp_path):
    """In a fresh process: what is installed is not imported unless it is asked for."""
    (tmp_path / "g.csv").write_text("a,b\n")
    code = (
        "import sys, gnnjit.data\n"
        f"gnnjit.data.read_edges({str(tmp_path / 'g.csv')!r})\n"
        "wrong = {'networkx', 'pyarrow', 'pandas', 'polars', 'torch', 'h5py', 'rdkit', 'igraph', "
        "'rustworkx', 'dgl', 'torch_geometric'} & set(sys.modules)\n"
        "assert not wrong, wrong\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
