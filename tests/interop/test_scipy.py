"""SciPy matrices: orientation, order, round trips."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.sparse

from gnnjit.errors import GraphError
from gnnjit.graph import Graph
from gnnjit.interop.scipy import from_scipy, to_scipy


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "lil", "dok", "bsr"])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5)])
def test_product_is_the_weighted_sum_over_in_edges(form: str, shape: tuple[int, int]) -> None:
    dense = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape) % 4
    graph, weights = from_scipy(scipy.sparse.coo_array(dense).asformat(form))
    x = np.arange(shape[1], dtype=np.float32) + 1
    out = jax.ops.segment_sum(weights * x[graph.src], graph.dst, graph.num_dst)
    np.testing.assert_array_equal(out, dense @ x)
    assert graph.bipartite == (shape[0] != shape[1])
    back = to_scipy(graph, weights)
    assert back.shape == shape
    np.testing.assert_array_equal(back.toarray(), dense)


def test_duplicates_and_explicit_zeros_are_edges() -> None:
    entries = (np.array([1.0, 2.0, 0.0]), (np.array([0, 0, 1]), np.array([1, 1, 0])))
    graph, weights = from_scipy(scipy.sparse.coo_array(entries, shape=(2, 2)))
    assert graph.num_edges == 3
    np.testing.assert_array_equal(weights, [1, 2, 0])
    assert to_scipy(graph, weights).nnz == 3


def test_square_matrix_between_two_vertex_sets() -> None:
    graph, _ = from_scipy(scipy.sparse.eye_array(3), bipartite=True)
    assert graph.bipartite


def test_padding_is_left_out() -> None:
    graph = Graph.from_edges([0, 1], [1, 0], 2).pad(3, 5)
    np.testing.assert_array_equal(to_scipy(graph).toarray(), [[0, 1, 0], [1, 0, 0], [0, 0, 0]])


def test_matrix_does_not_share_memory_with_the_graph() -> None:
    graph = Graph.from_edges([0, 1], [1, 0], 2)
    matrix = to_scipy(graph)
    matrix.indices[:] = 0
    matrix.indptr[:] = 0
    np.testing.assert_array_equal(graph.in_structure.neighbor, [1, 0])
    np.testing.assert_array_equal(graph.in_structure.indptr, [0, 1, 2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: from_scipy(np.eye(2)),
            "from_scipy() got ndarray, expected a SciPy sparse matrix: convert it with "
            "scipy.sparse.coo_array(matrix)",
        ),
        (
            lambda: from_scipy(scipy.sparse.coo_array((2, 3)), bipartite=False),
            "from_scipy(bipartite=False) got a matrix of shape (2, 3), expected a square one: one "
            "vertex set has as many rows as columns; leave bipartite out",
        ),
        (
            lambda: to_scipy(Graph.from_edges([0], [0]), np.ones((1, 2))),
            "weights has shape (1, 2), expected (1,), one number per edge: pass one column of the "
            "edge data",
        ),
        (
            lambda: jax.jit(lambda g: to_scipy(g).data)(Graph.from_edges([0], [0])),
            "to_scipy() got a traced graph, expected a concrete one: call it outside jit",
        ),
    ],
)
def test_errors(call, message: str) -> None:
    with pytest.raises(GraphError) as error:
        call()
    assert str(error.value) == message
