"""What a vertex costs a GNN layer, in features that are known before it runs (ROC, Table 2)."""

from __future__ import annotations

import numpy as np

from gnnjit.partition import validate as checks
from gnnjit.shapes import ArrayLike, HostArray

VERTEX_FEATURES = ("vertex", "neighbors", "runs", "neighbor accesses", "activation accesses")
INDEX_BYTES = 4
ACTIVATION_BYTES = 4


def vertex_features(
    src: ArrayLike,
    dst: ArrayLike,
    num_nodes: int,
    width: int,
    order: ArrayLike | None = None,
    line: int = 64,
) -> HostArray:
    """`float64[N, 5]`: by vertex number, how much of each of `VERTEX_FEATURES` a vertex brings.

    ROC (section 4.1, Table 2), for the sources of the edges into a vertex:

        vertex                1
        neighbors             the edges into it
        runs                  runs of consecutive numbers among their sources, in the numbering of
                              `order`
        neighbor accesses     lines of memory that the indices of each run take, summed up
        activation accesses   lines of memory that the rows of each run take, summed up

    Where we differ: a line is of `line` bytes, where ROC counts the words of a warp (one index,
    and one activation, for each of 32 threads); indices and activations are of 4 bytes. An edge
    that is there twice counts twice and lengthens its run: it is read twice.

    The features of a shard are the sums over its vertices, `Partition.totals`.

    Args:
        src, dst: `int[E]`, the endpoints of each edge; no padding.
        num_nodes: N.
        width: activations of a vertex that an edge reads (numbers of 4 bytes).
        order: `int[N]`, the vertex at each position; by number if left out.
        line: bytes of a line of memory: 64 on CPUs, 128 on GPUs.

    Raises:
        GraphError: endpoints that are no vertices, an `order` that is no permutation, or a number
            below 1.
    """
    num_nodes = checks.whole("num_nodes", num_nodes, 0)
    width, line = checks.whole("width", width, 1), checks.whole("line", line, 1)
    src, dst = checks.endpoints(src, dst, num_nodes)
    if order is not None:
        vertex = checks.permutation(order, num_nodes)
        rank = np.empty(num_nodes, np.int64)
        rank[vertex] = np.arange(num_nodes)
        src = rank[src]
    degree = np.bincount(dst, minlength=num_nodes)
    starts = _run_starts(src, dst, degree)
    # The row of each run: runs are sorted by row, and so are the first slots of the rows.
    row = np.repeat(np.arange(num_nodes), degree)[starts]
    length = np.diff(starts, append=len(src))
    out = np.empty((num_nodes, len(VERTEX_FEATURES)))
    out[:, 0] = 1
    out[:, 1] = degree
    out[:, 2] = np.bincount(row, minlength=num_nodes)
    for column, size in ((3, INDEX_BYTES), (4, ACTIVATION_BYTES * width)):
        out[:, column] = np.bincount(row, -(-length * size // line), minlength=num_nodes)
    return out


def _run_starts(src: HostArray, dst: HostArray, degree: HostArray) -> HostArray:
    """With edges sorted by destination, then source: those that do not go on with a run."""
    # One sort of plain numbers takes a tenth of the time of a sort by two keys.
    key = np.sort(dst.astype(np.int64) * len(degree) + src)
    begins = np.ones(len(key), bool)
    np.greater(np.diff(key), 1, out=begins[1:])
    first = np.cumsum(degree) - degree
    begins[first[degree > 0]] = True
    return np.flatnonzero(begins)
