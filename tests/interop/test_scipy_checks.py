"""Matrices of SciPy that are broken: refused by name, and nothing is read past its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnjit.errors import GraphError
from gnnjit.graph import Graph
from gnnjit.interop.scipy import from_scipy

FORMATS = ["csr", "csc", "bsr", "coo", "dia", "dok", "lil"]
MEND = "build the matrix again from its rows, columns and values with scipy.sparse.coo_array"


def drawn(seed: int, form: str) -> Any:
    rng = np.random.default_rng(seed)
    shape = tuple(2 * rng.integers(1, 4, 2))
    dense = rng.integers(0, 3, shape).astype(rng.choice(["float32", "int32", "bool", "float64"]))
    kind = scipy.sparse.coo_array if seed % 2 else scipy.sparse.coo_matrix
    if form == "bsr":
        return kind(dense).tobsr((2, 1))
    return kind(dense).asformat(form)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("seed", range(6))
def test_entries_are_those_of_scipy_in_its_order(form: str, seed: int) -> None:
    matrix = drawn(seed, form)
    graph, weights = from_scipy(matrix, bipartite=True)
    expected = matrix.tocsr().tocoo() if form == "dia" else matrix.tocoo()
    np.testing.assert_array_equal(graph.dst, expected.row)
    np.testing.assert_array_equal(graph.src, expected.col)
    np.testing.assert_array_equal(weights, expected.data)
    assert (graph.num_dst, graph.num_src) == matrix.shape


def test_duplicates_in_any_order_and_room_that_is_not_used() -> None:
    matrix = scipy.sparse.csr_array((2, 4), dtype=np.float32)
    matrix.indptr = np.array([0, 3, 4], ">i8")
    matrix.indices = np.array([3, 0, 3, 1, 77, 5000], np.uint16)
    matrix.data = np.array([1, 2, 3, 4, 5, 6], ">f4")
    graph, weights = from_scipy(matrix)
    assert graph.src.tolist() == [3, 0, 3, 1]
    assert graph.dst.tolist() == [0, 0, 0, 1]
    assert weights.tolist() == [1, 2, 3, 4]


def csr(**changes: Any) -> Any:
    matrix = scipy.sparse.csr_array(np.array([[0, 1.0], [2, 0], [3, 4]]))
    for name, value in changes.items():
        setattr(matrix, name, value)
    return matrix


def changed(form: str, **changes: Any) -> Any:
    matrix = scipy.sparse.coo_array(np.array([[0, 1.0], [2, 0]])).asformat(form)
    for name, value in changes.items():
        setattr(matrix, name, value)
    return matrix


def dok() -> Any:
    matrix = changed("dok")
    matrix._dict[(5, 0)] = 1.0
    return matrix


def lil() -> Any:
    matrix = changed("lil")
    matrix.rows[0] = [0, 1]
    return matrix


CASES: list[tuple[Callable[[], Any], str]] = [
    (
        lambda: csr(indptr=np.array([0, 1, 2, 10**9])),
        "csr_array of shape (3, 2) with indptr from 0 to 1000000000, expected 0 to at most 4, the "
        "number of its indices",
    ),
    (
        lambda: csr(indptr=np.array([0, 3, 1, 4])),
        "csr_array of shape (3, 2) with indptr[2] = 1 after 3, expected numbers that do not fall",
    ),
    (
        lambda: csr(indptr=np.array([0, 1, 4])),
        "csr_array of shape (3, 2) with indptr of length 3, expected 4",
    ),
    (
        lambda: csr(indices=np.array([0, 1, 2, 0])),
        "csr_array of shape (3, 2) with indices[2] = 2, expected 0 to 1",
    ),
    (
        lambda: csr(indices=np.array([0, -1, 1, 0])),
        "csr_array of shape (3, 2) with indices[1] = -1, expected 0 to 1",
    ),
    (
        lambda: csr(data=np.ones(3)),
        "csr_array of shape (3, 2) with indices of length 4, data of length 3, expected one length",
    ),
    (
        lambda: csr(indices=np.array([0.0, 1, 1, 0])),
        "csr_array of shape (3, 2) with indices of type float64, expected integers",
    ),
    (
        lambda: csr(data=np.array(["a"] * 4)),
        "csr_array of shape (3, 2) with values of type <U1, expected numbers",
    ),
    (
        lambda: changed("bsr", data=np.ones((2, 3, 1))),
        "bsr_array of shape (2, 2) with blocks of 3 x 1, expected blocks that divide its shape",
    ),
    (
        lambda: changed("coo", coords=(np.array([0, 9]), np.array([0, 1]))),
        "coo_array of shape (2, 2) with row[1] = 9, expected 0 to 1",
    ),
    (
        lambda: changed("coo", coords=(np.array([0, 1]),)),
        "coo_array of shape (2, 2) with no row, expected one",
    ),
    (
        lambda: changed("dia", offsets=np.array([1, 1])),
        "dia_array of shape (2, 2) with a diagonal that is there twice, expected each offset once",
    ),
    (dok, "dok_array of shape (2, 2) with row of key [2] = 5, expected 0 to 1"),
    (
        lil,
        "lil_array of shape (2, 2) with 2 columns and 1 values in row 0, expected as many",
    ),
]


@pytest.mark.parametrize(("make", "message"), CASES)
def test_broken_matrices(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError) as error:
        from_scipy(make())
    assert str(error.value) == f"from_scipy() got a {message}: {MEND}"


def test_types_that_jax_does_not_have() -> None:
    with pytest.raises(GraphError) as error:
        from_scipy(scipy.sparse.csr_array(np.eye(2, dtype=np.longdouble)))
    assert str(error.value) == (
        "the matrix holds float128, expected a type that JAX has: pass matrix.astype('float32')"
    )


def test_one_dimension() -> None:
    with pytest.raises(GraphError) as error:
        from_scipy(scipy.sparse.coo_array(np.array([1, 0, 2])))
    assert str(error.value) == (
        "from_scipy() got a sparse array of shape (3,), expected (num_dst, num_src): reshape it"
    )


PARTS = {
    "csr": ["indptr", "indices", "data"],
    "csc": ["indptr", "indices", "data"],
    "bsr": ["indptr", "indices", "data"],
    "coo": ["coords", "data"],
    "dia": ["offsets", "data"],
    "lil": ["rows", "data"],
}


def mutated(array: Any, how: str, number: int) -> Any:
    """`array` with one thing wrong, perhaps."""
    array = np.array(array)
    at = number % max(array.size, 1)
    if how == "shorter":
        return array[..., : max(array.shape[-1] - 1 - number % 3, 0)]
    if how == "longer":
        return np.concatenate([array, array], axis=-1)
    if how == "none":
        return None
    if how in ("text", "float") and array.dtype == object:
        return np.array([how] * array.size, object)
    if how == "text":
        return array.astype(str)
    if how == "float":
        return array + 0.5
    if how == "flat":
        return array.ravel()[:, None]
    if how == "span":
        return np.zeros(array.shape, "m8[s]")
    if array.size and array.dtype != object:
        array = array.astype(np.int64)
        array.flat[at] = {"huge": 2**40, "negative": -3, "other": number % 5}[how]
    return array


HOW = ["shorter", "longer", "none", "text", "float", "flat", "span", "huge", "negative", "other"]


@given(st.sampled_from(sorted(PARTS)), st.integers(0, 30), st.sampled_from(HOW), st.integers(0, 50))
@settings(max_examples=400, deadline=None)
def test_mutated_matrices(form: str, seed: int, how: str, number: int) -> None:
    """An error of ours, or a graph of entries that the matrix has."""
    matrix = drawn(seed, form)
    name = PARTS[form][number % len(PARTS[form])]
    old = getattr(matrix, name)
    if name == "coords":
        setattr(matrix, name, (old[0], mutated(old[1], how, number)))
    else:
        setattr(matrix, name, mutated(old, how, number))
    try:
        graph, weights = from_scipy(matrix, bipartite=True)
    except GraphError as error:
        message = str(error)
    else:
        message = ""
        check_entries(matrix, form, graph, weights)
    assert len(message) <= 1000


def check_entries(matrix: Any, form: str, graph: Graph, weights: Any) -> None:
    assert len(weights) == graph.num_edges == len(np.asarray(graph.src))
    assert (graph.num_dst, graph.num_src) == matrix.shape
    if form == "csr":
        rows = [r for r in range(matrix.shape[0]) for _ in range(*matrix.indptr[r : r + 2])]
        assert graph.dst.tolist() == rows
        assert graph.src.tolist() == matrix.indices[: len(rows)].tolist()
