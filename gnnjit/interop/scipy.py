"""Graphs from and to SciPy sparse matrices.

Rows are destinations and columns are sources: a stored `A[i, j]` is the edge `j -> i`, so that
`A @ x` is the sum over each vertex's incoming edges of the edge's weight times the source's
feature. For a matrix whose rows are sources, pass its transpose.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import scipy.sparse

from gnnjit.errors import GraphError
from gnnjit.graph import Graph, hosting
from gnnjit.graph.reading import is_number, read_on_host
from gnnjit.graph.validate import cut, is_traced
from gnnjit.interop.scipy_entries import entries
from gnnjit.shapes import ArrayLike, EdgeWeight, HostArray


def from_scipy(matrix: Any, *, bipartite: bool | None = None) -> tuple[Graph, EdgeWeight]:
    """The graph of the stored entries of `matrix`, explicit zeros and duplicates included.

    Args:
        matrix: any SciPy sparse matrix or array, `[num_dst, num_src]`.
        bipartite: whether rows and columns are two vertex sets; by default, if it is not square.

    Returns:
        The graph and `weights[E]`, the entries in the order of its edges, in the matrix's dtype
        (as JAX holds it: 32-bit unless 64-bit types are on).

    Raises:
        GraphError: if `matrix` is not sparse, or not square although `bipartite` is False; if its
            arrays do not fit each other, which is checked before anything is read.
    """
    if not scipy.sparse.issparse(matrix):
        raise GraphError(
            f"from_scipy() got {type(matrix).__name__}, expected a SciPy sparse matrix: "
            f"convert it with scipy.sparse.coo_array(matrix)"
        )
    if len(matrix.shape) != 2:
        raise GraphError(
            f"from_scipy() got a sparse array of shape {matrix.shape}, expected (num_dst, "
            f"num_src): reshape it"
        )
    num_dst, num_src = matrix.shape
    if bipartite is False and num_dst != num_src:
        raise GraphError(
            f"from_scipy(bipartite=False) got a matrix of shape {(num_dst, num_src)}, expected a "
            f"square one: one vertex set has as many rows as columns; leave bipartite out"
        )
    row, column, value = entries(matrix)
    if bipartite or num_dst != num_src:
        graph = Graph.from_edges(column, row, num_src=num_src, num_dst=num_dst)
    else:
        graph = Graph.from_edges(column, row, num_dst)
    return graph, _as_weights(value)


def _as_weights(value: HostArray) -> EdgeWeight:
    """As JAX holds them."""
    try:
        return hosting.to_device(value.astype(jax.dtypes.canonicalize_dtype(value.dtype)))
    except TypeError as error:
        raise GraphError(
            f"the matrix holds {value.dtype}, expected a type that JAX has: pass "
            f"matrix.astype('float32')"
        ) from error


def to_scipy(graph: Graph, weights: ArrayLike | None = None) -> scipy.sparse.csr_array:
    """The CSR matrix `[num_dst, num_src]` of the real edges: `A[dst[i], src[i]] = weights[i]`.

    Duplicate edges stay separate entries (products add them up); padding is left out.

    Args:
        graph: a concrete graph.
        weights: `[E]`, one number per edge; float32 ones if left out.

    Raises:
        GraphError: if the graph is traced, or `weights` is not one number per edge.
    """
    structure = graph.in_structure
    if is_traced(graph):
        raise GraphError(
            "to_scipy() got a traced graph, expected a concrete one: call it outside jit"
        )
    indptr = np.asarray(structure.indptr)
    real = slice(0, int(indptr[-1]))
    edge = np.asarray(structure.edge)[real]
    if weights is None:
        data = np.ones(graph.num_edges, np.float32)
    else:
        data = read_on_host("weights", weights)
    if not is_number(data.dtype):
        raise GraphError(
            f"weights has dtype {cut(str(data.dtype))}, expected numbers: pass one per edge"
        )
    if data.shape != (graph.num_edges,):
        raise GraphError(
            f"weights has shape {cut(str(data.shape))}, expected ({graph.num_edges},), one number "
            f"per edge: pass one column of the edge data"
        )
    neighbor = np.asarray(structure.neighbor)[real]
    shape = (graph.num_dst, graph.num_src)
    return scipy.sparse.csr_array((data[edge], neighbor.copy(), indptr.copy()), shape=shape)
