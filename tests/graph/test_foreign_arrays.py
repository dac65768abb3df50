"""Arrays of other libraries, and what is no array of vertex numbers at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import gnnjit
from gnnjit.errors import GraphError
from gnnjit.graph import Graph, batch, coalesce
from gnnjit.partition import Partition, partition

RENUMBER = (
    "number the vertices from 0, with `ids, number = numpy.unique(numpy.concatenate([src, dst]), "
    "return_inverse=True)` and `src, dst = numpy.split(number, 2)`"
)


class Tensor:
    """Reads as an array, as those of PyTorch and pandas do."""

    def __init__(self, values: Any, refusal: str = "") -> None:
        self._values, self._refusal = np.asarray(values), refusal

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, at: Any) -> Tensor:
        return Tensor(self._values[at])

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self._refusal:
            raise TypeError(self._refusal)
        return self._values if dtype is None else self._values.astype(dtype)


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "array-like": Tensor,
    "big-endian": lambda x: np.array(x, ">i4"),
    "big-endian, 64 bits": lambda x: np.array(x, ">u8"),
    "not masked": np.ma.array,
    "range": lambda x: range(x[0], x[-1] + 1),
    "not contiguous": lambda x: np.array([x, x]).T[:, 0],
    "numbers of NumPy": lambda x: [np.int16(v) for v in x],
    "4 bits": lambda x: jnp.array(x, jnp.int4),
}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_many_kinds(kind: str) -> None:
    graph = Graph.from_edges(KINDS[kind]([2, 3, 4]), Tensor([0, 0, 1]), 6)
    assert graph.src.tolist() == [2, 3, 4]
    assert graph.in_degree.tolist() == [2, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "edges",
    [
        np.array([[0, 1, 3], [1, 2, 2]]),
        [[0, 1, 3], [1, 2, 2]],
        (np.array([0, 1, 3]), [1, 2, 2]),
        jnp.array([[0, 1, 3], [1, 2, 2]]),
        Tensor([[0, 1, 3], [1, 2, 2]]),
        np.array([[0, 1, 3], [1, 2, 2]], ">i8"),
    ],
)
def test_an_edge_list_alone(edges: Any) -> None:
    graph = Graph.from_edges(edges, num_nodes=5)
    assert graph.src.tolist() == [0, 1, 3]
    assert graph.dst.tolist() == [1, 2, 2]
    assert graph.num_nodes == 5


def test_a_traced_edge_list() -> None:
    edges = np.array([[0, 1, 3, 9], [1, 2, 2, 9]])
    graph = jax.jit(lambda e: Graph.from_edges(e, num_nodes=4))(edges)
    assert graph.in_degree.tolist() == [0, 1, 2, 0]
    graph = jax.jit(lambda s: Graph.from_edges((s, [1, 2, 2, 0]), num_nodes=4))(edges[0])
    assert graph.in_degree.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("empty", [np.zeros((2, 0)), np.zeros((2, 0), int), [[], []]])
def test_an_edge_list_without_edges(empty: Any) -> None:
    assert Graph.from_edges(empty, num_nodes=3).in_degree.tolist() == [0, 0, 0]


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    graph = Graph.from_edges(torch.tensor([[0, 1, 3], [1, 2, 2]]))
    assert graph.in_degree.tolist() == [0, 1, 2, 0]
    assert Graph.from_edges(torch.tensor([1, 2]), torch.tensor([0, 0])).num_nodes == 3


def test_columns_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"from": [0, 1, 3], "to": [1, 2, 2]})
    graph = Graph.from_edges(frame["from"], frame["to"])
    assert graph.in_degree.tolist() == [0, 1, 2, 0]
    with pytest.raises(GraphError, match=r"numpy\.unique"):
        Graph.from_edges(frame["from"].astype(str), frame["to"])


def edges(src: Any, dst: Any = (0, 1), **rest: Any) -> Callable[[], Any]:
    return lambda: Graph.from_edges(src, dst, **rest)


NO_ARRAY = "expected an array of vertex numbers: pass one vertex per edge"
UNREADABLE = "expected an array: pass one in the memory of the host, without ragged rows"
TWO_ROWS = "no dst, expected shape (2, num_edges)"
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "strings": (
        edges(["u7", "u9"]),
        f"src has dtype <U2 (src[0] is 'u7'), expected integers: {RENUMBER}",
    ),
    "objects": (
        edges(np.array([None, 4], object)),
        f"src has dtype object (src[0] is None), expected integers: {RENUMBER}",
    ),
    "numbers of 70 bits": (
        edges([1, 2**70]),
        f"src has dtype object (src[0] is 1), expected integers: {RENUMBER}",
    ),
    "dates": (
        edges(np.array(["2020-01-02", "2020-01-03"], "M8[D]")),
        "src has dtype datetime64[D] (src[0] is datetime.date(2020, 1, 2)), expected integers: "
        f"{RENUMBER}",
    ),
    "spans of time": (
        edges([0, 1], np.array([3, 4], "m8[ns]")),
        f"dst has dtype timedelta64[ns] (dst[0] is 3), expected integers: {RENUMBER}",
    ),
    "NaN": (
        edges([1.0, np.nan]),
        "src[1] is nan, expected vertex numbers: leave edges without an endpoint out, then "
        f"{RENUMBER}",
    ),
    "fractions": (
        edges([0, 1], [2.5, 1.0]),
        "dst[0] is 2.5, expected vertex numbers: leave edges without an endpoint out, then "
        f"{RENUMBER}",
    ),
    "whole numbers as floats": (
        edges(np.array([3.0, 1.0], np.float16)),
        "src has dtype float16, expected integers: pass vertex numbers, as in src.astype('int32')",
    ),
    "keys": (
        edges(jax.random.split(jax.random.key(0), 2)),
        "src has dtype key<fry>, expected integers: pass vertex numbers, as in src.astype('int32')",
    ),
    "huge": (
        edges([5, 40_000_000_000]),
        "src[1] is 40000000000, of 2 edges, which would be a graph of 40000000001 vertices: "
        f"{RENUMBER}",
    ),
    "huge, of 64 bits without sign": (
        edges([0, 1], np.array([2**64 - 2, 1], np.uint64)),
        "dst[0] is 18446744073709551614, of 2 edges, which would be a graph of "
        f"18446744073709551615 vertices: {RENUMBER}",
    ),
    "in coalesce": (
        lambda: coalesce([2**61], [0]),
        "src[0] is 2305843009213693952, of 1 edges, which would be a graph of 2305843009213693953 "
        f"vertices: {RENUMBER}",
    ),
    "nested lists": (
        edges([[i, i + 1] for i in range(5000)]),
        "src has shape (5000, 2), expected one vertex per edge, shape (num_edges,): split an edge "
        "list, as in from_edges(edge_index[0], edge_index[1])",
    ),
    "ragged": (
        edges([[0, 1], [2]]),
        "src is a list that NumPy cannot read (setting an array element with a sequence. The "
        f"requested array has an inhomoge...), {UNREADABLE}",
    ),
    "on another device": (
        edges(Tensor([0, 1], "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")),
        "src is a Tensor that NumPy cannot read (can't convert cuda:0 device type tensor to "
        f"numpy. Use Tensor.cpu()), {UNREADABLE}",
    ),
    "masked": (
        edges(np.ma.array([0, 1], mask=[False, True])),
        "src is a masked array with masked entries, expected a number in each: fill them, or leave "
        "these edges out with edge_mask=",
    ),
    "sparse": (edges(scipy.sparse.eye_array(2, format="csr")), f"src is a csr_array, {NO_ARRAY}"),
    "generator": (edges(i for i in range(2)), f"src is a generator, {NO_ARRAY}"),
    "an edge list of pairs": (
        lambda: Graph.from_edges([(0, 1), (1, 2), (2, 0)]),
        f"from_edges() got one array of shape (3, 2) and {TWO_ROWS}: pass edge_index.T, one row of "
        "sources and one of destinations",
    ),
    "one array": (
        lambda: Graph.from_edges([0, 1, 2]),
        f"from_edges() got one array of shape (3,) and {TWO_ROWS}: pass two arrays, "
        "from_edges(src, dst), or an edge list with two rows",
    ),
    "an edge list, and how many": (
        lambda: Graph.from_edges(np.zeros((2, 3), int), 7),
        "dst is 7 beside an edge list of shape (2, 3), expected the number of vertices by its "
        "name: pass from_edges(edge_index, num_nodes=...)",
    ),
    "how many, as text": (
        edges([0, 1], num_nodes="5"),
        "num_nodes is '5' of type str, expected an integer: pass int(num_nodes)",
    ),
    "how many, as a float": (
        edges([0, 1], num_nodes=1e3),
        "num_nodes is 1000.0 of type float, expected an integer: pass int(num_nodes)",
    ),
    "how many, as a list": (
        edges([0, 1], num_nodes=list(range(9999))),
        "num_nodes is [0, 1, 2, 3, 4, 5, ...] of type list, expected an integer: pass "
        "int(num_nodes)",
    ),
    "how many, 100 bits": (
        edges([0, 1], num_nodes=2**99),
        f"num_nodes is 633825300114114700748351602688, expected a number of 63 bits: {RENUMBER}",
    ),
    "a mask of text": (
        edges([0, 1], edge_mask=["yes", "no"]),
        "edge_mask has dtype <U3, expected bool (True marks a real edge): pass edge_mask != 0",
    ),
    "space": (
        lambda: small().check(np.ones(3), "up", "x"),
        "check() got the space 'up', expected 'src', 'dst', 'edge' or 'graph': "
        "name what there is a row for",
    ),
    "a list as features": (
        lambda: small().check([1.0] * 5000, "dst", "x"),
        "x is a list of numbers, expected arrays with one row for each of 3 vertices: pass "
        "numpy.asarray(x)",
    ),
    "many features": (
        lambda: small().check({f"f{i}": np.ones(2) for i in range(900)}, "dst", "x"),
        "x['f0'] has 2 rows; x['f1'] has 2 rows; x['f10'] has 2 rows; x['f100'] has 2 rows; "
        "x['f101'] has 2 rows; 895 more do not fit either, but the graph has 3 vertices: pass "
        "arrays with one row per vertex",
    ),
    "one graph": (
        lambda: batch(small()),  # type: ignore[arg-type]
        "batch() got Graph(3 vertices, 3 edges), expected several graphs: pass a list of them",
    ),
    "no graph": (
        lambda: batch([small(), 3]),  # type: ignore[list-item]
        "batch() got 3 as graph 1, expected a gnnjit.Graph: pass a list of graphs",
    ),
    "features of text": (
        lambda: small().pad(5).pad_nodes({"x": np.array(["a", "b", "c"])}),
        "x['x'] has dtype <U1, expected numbers: padding is rows of zeros",
    ),
    "weights of text": (
        lambda: small().gcn_norm(["1", "2", "3"]),
        "weights has dtype <U1, expected real numbers: pass one per edge",
    ),
    "weights in a column": (
        lambda: small().gcn_norm(np.ones((3, 1))),
        "weights has shape (3, 1), expected (3,), one number per edge: pass one column of the edge "
        "data",
    ),
    "a fill that is none": (
        lambda: small().with_self_loops(np.ones(3), fill="average"),
        "fill is 'average', expected a number, a row, or one of 'mean', 'sum', 'add', 'max', "
        "'min', 'mul': 'mean' gives a self loop the mean over the edges into its vertex",
    ),
    "a fill of no number": (
        lambda: small().with_self_loops(np.ones(3), fill=None),
        "fill has dtype object, expected numbers: pass what a new edge holds",
    ),
    "a complex fill": (
        lambda: small().with_self_loops(np.ones(3), fill=1j),
        "fill is 1j, which edges of type float32 cannot hold: pass a number of that type",
    ),
    "a fill out of range": (
        lambda: small().with_self_loops({"kind": np.ones(3, np.int8)}, fill=200),
        "fill is 200, which edges['kind'] of type int8 cannot hold: pass a number of that type",
    ),
    "a fill of another shape": (
        lambda: small().with_self_loops({"w": np.ones((3, 2))}, fill=np.ones(3)),
        "fill has shape (3,), expected one that broadcasts to a row of edges['w'], shape (2,): "
        "pass a number, or one row",
    ),
    "the mean of types": (
        lambda: small().with_self_loops(np.arange(3), fill="mean"),
        "edges has dtype int32, which has no mean: pass a value as fill=, or convert it to numbers "
        "of floating point",
    ),
    "an order of text": (
        lambda: partition.equal_vertices(2, 1, ["a", "b"]),
        "order has dtype <U1, expected integers: pass the vertex at each position",
    ),
    "costs of text": (
        lambda: partition.balanced(["a", "b"], 1),
        "cost has dtype <U1, expected real numbers: pass an array of them",
    ),
    "no shards": (
        lambda: partition.equal_vertices(10, 0),
        "num_shards is 0, expected a whole number, 1 or more: pass such an int",
    ),
    "more vertices than memory": (
        lambda: partition.equal_vertices(2**70, 2),
        "num_nodes is 1180591620717411303424, expected a whole number, 0 to 68719476736: no memory "
        "holds an entry for each",
    ),
    "many bounds": (
        lambda: Partition(np.arange(4), np.arange(5000)[::-1], "given"),
        "bounds is [4999, 4998, 4997, 4996, 4995, 4994, ...], expected numbers that rise from 0 to "
        "4: pass where each shard begins, and the number of vertices",
    ),
    "a cost model that is none": (
        lambda: gnnjit.shard(small(), jax.make_mesh((1,), ("d",)), cost=3),  # type: ignore
        "cost is 3, expected a PartitionModel or None: leave it out for the usual costs",
    ),
}


def small() -> Graph:
    return Graph.from_edges([0, 1, 2], [1, 2, 2], 3)


@pytest.mark.parametrize("name", CASES)
def test_messages(name: str) -> None:
    call, message = CASES[name]
    with pytest.raises(GraphError) as error:
        call()
    assert str(error.value) == message
    assert len(message) <= 1000


def test_the_advice_on_other_ids_works() -> None:
    src, dst = np.array(["u", "w", "u"]), np.array(["w", "v", "v"])
    ids, number = np.unique(np.concatenate([src, dst]), return_inverse=True)
    graph = Graph.from_edges(*np.split(number, 2))
    assert ids[np.asarray(graph.src)].tolist() == src.tolist()
    assert ids[np.asarray(graph.dst)].tolist() == dst.tolist()


# What a self loop holds ---------------------------------------------------------------------------

MASKS = [None, np.array([True, True, False, True, True])]
SRC, DST = np.array([0, 1, 2, 3, 3]), np.array([2, 2, 2, 0, 3])
DATA = np.array([[1.0, -2], [3, 4], [50, 60], [-5, 7], [2, 2]], np.float32)


def of_each_vertex(how: str, mask: np.ndarray | None) -> np.ndarray:
    """As PyG's `add_self_loops(fill_value=how)` fills them."""
    out = []
    for v in range(4):
        real = np.ones(5, bool) if mask is None else mask
        rows = DATA[(v == DST) & real]
        if not len(rows):
            out.append(np.full(2, how == "mul", np.float32))
            continue
        reduce = {
            "mean": np.mean, "sum": np.sum, "add": np.sum, "max": np.max, "min": np.min,
            "mul": np.prod,
        }[how]  # fmt: skip
        out.append(reduce(rows, axis=0))
    return np.array(out)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("how", ["mean", "sum", "add", "max", "min", "mul"])
@pytest.mark.parametrize("traced", [False, True])
def test_self_loops_hold_what_comes_into_the_vertex(how: str, mask: Any, traced: bool) -> None:
    graph = Graph.from_edges(SRC, DST, 4, edge_mask=mask)

    def looped(g: Graph, data: Any) -> Any:
        return g.with_self_loops({"w": data}, fill=how, missing_only=False)

    found, edges = (jax.jit(looped) if traced else looped)(graph, DATA)
    assert found.num_edges == 9
    np.testing.assert_array_equal(edges["w"][:5], DATA)
    np.testing.assert_allclose(edges["w"][5:], of_each_vertex(how, mask), rtol=1e-6)


def test_only_missing_loops_are_filled() -> None:
    graph, edges = Graph.from_edges(SRC, DST, 4).with_self_loops(DATA, fill="mean")
    assert graph.src[5:].tolist() == [0, 1]
    np.testing.assert_allclose(edges[5:], of_each_vertex("mean", None)[:2], rtol=1e-6)


def test_padding_reaches_no_filled_loop() -> None:
    graph = Graph.from_edges(SRC, DST, 4, edge_mask=MASKS[1])
    data = np.where(MASKS[1][:, None], DATA, np.nan)

    def total(data: Any) -> Any:
        _, edges = graph.with_self_loops(data, fill="mean")
        return jnp.sum(edges[5:] ** 2), edges

    gradient, edges = jax.grad(total, has_aux=True)(data)
    np.testing.assert_allclose(edges[5:8], of_each_vertex("mean", MASKS[1])[:3], rtol=1e-6)
    assert np.isfinite(gradient).all()
    assert gradient[2].tolist() == [0, 0]


def test_half_precision_is_added_up_in_float32() -> None:
    graph = Graph.from_edges(np.arange(700), np.full(700, 700), 701)
    _, edges = graph.with_self_loops(np.full(700, 200, np.float16), fill="mean")
    assert edges.dtype == jnp.float16
    assert float(edges[-1]) == 200
