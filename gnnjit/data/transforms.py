"""Edge lists made another way, and numbers for vertices that follow from the edges alone.

Each function gives a new `EdgeList`, whose `report` says what was done.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackError, eigsh

from gnnjit.data.reading.edge_list import EdgeList
from gnnjit.data.types import Dataset
from gnnjit.errors import DataError
from gnnjit.graph import Graph
from gnnjit.graph.edit import coalesce, symmetrize
from gnnjit.shapes import HostArray

_DENSE = 1 << 22
"""Numbers of a block of columns that walks are followed in; and of a matrix that is made dense."""


def _with_edges(edges: EdgeList, chosen: HostArray, src: Any, dst: Any, said: str) -> EdgeList:
    """The edges `src` and `dst`, with the columns of the edges `chosen`."""
    return dataclasses.replace(
        edges,
        src=np.asarray(src, np.int32),
        dst=np.asarray(dst, np.int32),
        edges={name: np.asarray(column)[chosen] for name, column in edges.edges.items()},
        report=(*edges.report, said),
    )


def without_self_loops(edges: EdgeList) -> EdgeList:
    """The edges between two vertices, in their order."""
    kept = np.flatnonzero(edges.src != edges.dst)
    lost = edges.num_edges - len(kept)
    return _with_edges(
        edges, kept, edges.src[kept], edges.dst[kept], f"{lost:,} self loops left out"
    )


def deduplicated(edges: EdgeList, *, add_weights: bool = False) -> EdgeList:
    """Each distinct edge once, sorted by destination, then source; of columns the first edge's.

    Args:
      edges: of which parallel ones are merged.
      add_weights: whether the weight is the sum of theirs.
    """
    src, dst, group = coalesce(edges.src, edges.dst)
    first = np.full(len(src), edges.num_edges, np.int64)
    np.minimum.at(first, group, np.arange(edges.num_edges))
    said = f"{edges.num_edges - len(src):,} duplicates left out"
    found = _with_edges(edges, first, src, dst, said)
    if not add_weights or edges.weight is None:
        return found
    total = np.bincount(group, edges.weight, minlength=len(src)).astype(np.float32)
    return dataclasses.replace(found, edges={**found.edges, "weight": total})


def to_undirected(edges: EdgeList) -> EdgeList:
    """Every edge in both directions, each distinct one once, sorted by destination, then source;
    columns are those of the first edge that it comes from, its own direction before the other."""
    src, dst, origin = symmetrize(edges.src, edges.dst)
    said = f"{edges.num_edges:,} edges to {len(src):,} that go both ways"
    both = _with_edges(edges, np.asarray(origin), src, dst, said)
    return dataclasses.replace(both, num_sources=None)


def largest_component(edges: EdgeList) -> EdgeList:
    """The vertices that are joined to most others, whichever way edges go, and their edges; of
    components of one size the first. Vertices keep their order and `ids`."""
    _, component = connected_components(_matrix(edges, weighted=False), directed=False)
    sizes = np.bincount(component)
    kept = component == int(sizes.argmax()) if len(sizes) else np.zeros(0, bool)
    said = (
        f"the largest of {len(sizes):,} components, {np.count_nonzero(kept):,} of "
        f"{edges.num_nodes:,} vertices"
    )
    return induced(edges, kept, said)


def induced(edges: EdgeList, vertices: HostArray, said: str = "some vertices") -> EdgeList:
    """Some vertices, bool [N], renumbered in their order, and the edges between them.

    Raises DataError unless there is a truth value for each vertex.
    """
    vertices = np.asarray(vertices)
    if vertices.shape != (edges.num_nodes,) or vertices.dtype != np.bool_:
        raise DataError(
            f"{edges.name}: induced() got {vertices.dtype}{list(vertices.shape)}, expected "
            f"bool[{edges.num_nodes}], which vertices are kept."
        )
    number = np.cumsum(vertices) - 1
    kept = np.flatnonzero(vertices[edges.src] & vertices[edges.dst])
    ids = np.arange(edges.num_nodes) if edges.ids is None else edges.ids
    plain = edges.ids is None and bool(vertices.all())
    found = _with_edges(
        dataclasses.replace(edges, nodes={}, ids=None, num_sources=None),
        kept, number[edges.src[kept]], number[edges.dst[kept]], said,
    )  # fmt: skip
    return dataclasses.replace(
        found,
        num_nodes=int(np.count_nonzero(vertices)),
        num_sources=None if edges.num_sources is None else int(vertices[: edges.num_sources].sum()),
        ids=None if plain else ids[vertices],
        nodes={name: np.asarray(column)[vertices] for name, column in edges.nodes.items()},
    )


def training_part(dataset: Dataset) -> Dataset:
    """The training vertices alone, with the edges between them: what an inductive model sees, which
    is then tested on the whole graph (Hamilton et al. 2017, section 4.1).

    Raises DataError for vertices of several types.
    """
    if dataset.is_typed:
        raise DataError(
            f"{dataset.name}: vertices have types, expected one type: take them apart before."
        )
    kept, graph = np.asarray(dataset.train_mask), dataset.graph
    src, dst = np.asarray(graph.src), np.asarray(graph.dst)
    inside = kept[src] & kept[dst] & (True if graph.mask is None else np.asarray(graph.mask))
    number, count = np.cumsum(kept) - 1, int(np.count_nonzero(kept))
    none = np.zeros(count, bool)
    return dataclasses.replace(
        dataset,
        graph=Graph.from_edges(number[src[inside]], number[dst[inside]], count),
        x=np.asarray(dataset.x)[kept],
        y=np.asarray(dataset.y)[kept],
        train_mask=np.ones(count, bool),
        val_mask=none,
        test_mask=none,
    )


def with_degrees(edges: EdgeList, *, largest: int | None = None) -> EdgeList:
    """Features of how many edges each vertex has, put behind those that it has ("x").

    Two columns, `log(1 + degree)` of incoming and of outgoing edges; or with `largest` the degree
    of incoming ones, one-hot up to it, as for graphs without features (Xu et al. 2019, section 7).
    """
    degrees = [np.bincount(end, minlength=edges.num_nodes) for end in (edges.dst, edges.src)]
    if largest is None:
        return _with_columns(edges, np.log1p(np.stack(degrees, axis=1)), "degrees as features")
    rows = np.eye(largest + 1)[np.minimum(degrees[0], largest)]
    return _with_columns(edges, rows, f"degrees up to {largest} as features, one-hot")


def with_random_walks(edges: EdgeList, steps: int = 16) -> EdgeList:
    """Features of how likely a random walk is back where it began after 1 to `steps` steps: the
    diagonals of `(D^-1 A)^k`, put behind those that there are.

    Dwivedi et al., "Graph neural networks with learnable structural and positional
    representations" (2022), section 3.2. Edges go both ways. Exact, in O(steps * N * E).
    """
    _at_least("with_random_walks", "steps", steps, 1, edges)
    matrix = _adjacency(edges)
    degree = np.asarray(matrix.sum(axis=1)).ravel()
    walk = sp.csr_matrix(sp.diags(1 / np.maximum(degree, 1)) @ matrix)
    n = edges.num_nodes
    found, size = np.zeros((n, steps)), max(1, _DENSE // max(1, n))
    for start in range(0, n, size):
        stop = min(start + size, n)
        columns = np.zeros((n, stop - start))
        columns[np.arange(start, stop), np.arange(stop - start)] = 1
        for step in range(steps):
            columns = walk @ columns
            found[start:stop, step] = columns[np.arange(start, stop), np.arange(stop - start)]
    return _with_columns(edges, found, f"returns of {steps} steps of random walks as features")


def with_laplacian(edges: EdgeList, count: int = 8, *, seed: int = 0) -> EdgeList:
    """Features of where a vertex is in the graph: eigenvectors of `I - D^-1/2 A D^-1/2`, those of
    the smallest eigenvalues after the first, put behind those that there are.

    Dwivedi et al., "Benchmarking graph neural networks" (2023), section 3.3. Edges go both ways.
    An eigenvector's sign means nothing: it is drawn from `seed`.

    Raises DataError where there are not so many, or they do not converge.
    """
    _at_least("with_laplacian", "count", count, 1, edges)
    n = edges.num_nodes
    if count + 1 > n:
        raise DataError(
            f"{edges.name}: with_laplacian() got count={count}, expected less than {n}, the number "
            "of vertices."
        )
    matrix = _adjacency(edges)
    scale = sp.diags(1 / np.sqrt(np.maximum(np.asarray(matrix.sum(axis=1)).ravel(), 1)))
    normal = sp.csr_matrix(scale @ matrix @ scale)
    rng = np.random.Generator(np.random.PCG64(seed))
    if n * n <= _DENSE or count + 2 > n:
        vectors = np.linalg.eigh(normal.toarray())[1][:, ::-1]
    else:
        try:  # the largest of what is taken from I
            values, vectors = eigsh(normal, k=count + 1, which="LA", v0=rng.standard_normal(n))
        except ArpackError as error:
            raise DataError(
                f"{edges.name}: the {count} eigenvectors do not converge ({error}): take fewer."
            ) from error
        vectors = vectors[:, np.argsort(-values, kind="stable")]
    signs = rng.integers(0, 2, count) * 2 - 1
    said = f"{count} eigenvectors of the Laplacian as features, signs of seed {seed}"
    return _with_columns(edges, vectors[:, 1 : count + 1] * signs, said)


def _at_least(call: str, name: str, value: int, least: int, edges: EdgeList) -> None:
    if value < least:
        raise DataError(f"{edges.name}: {call}() got {name}={value}, expected {least} or more.")


def _with_columns(edges: EdgeList, rows: HostArray, said: str) -> EdgeList:
    """`rows` [N, F] behind the features."""
    rows = rows.astype(np.float32)
    if "x" in edges.nodes:
        before = np.asarray(edges.nodes["x"], np.float32).reshape(edges.num_nodes, -1)
        rows = np.concatenate([before, rows], axis=1)
    return dataclasses.replace(
        edges, nodes={**edges.nodes, "x": rows}, report=(*edges.report, said)
    )


def _matrix(edges: EdgeList, *, weighted: bool) -> sp.csr_matrix:
    ones = edges.weight if weighted and edges.weight is not None else np.ones(edges.num_edges)
    return sp.csr_matrix((ones, (edges.src, edges.dst)), (edges.num_nodes,) * 2)


def _adjacency(edges: EdgeList) -> sp.csr_matrix:
    """Both ways, 0 and 1, without self loops."""
    matrix = _matrix(edges, weighted=False)
    matrix = sp.csr_matrix(((matrix + matrix.T) > 0).astype(np.float64))
    matrix.setdiag(0)
    matrix.eliminate_zeros()
    return matrix
