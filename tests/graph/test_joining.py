"""Edges of several graphs between the same vertices as one graph with relations."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from gnnjit import Graph
from gnnjit.graph.joining import joined

EDGES = [([0, 2, 2, 1], [1, 1, 1, 0]), ([], []), ([1, 0, 2], [1, 1, 0])]


@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("bipartite", [False, True], ids=["one set", "two sets"])
def test_edges_in_order_with_their_relations(traced, padded, bipartite):
    sizes: dict[str, Any] = {"num_src": 3, "num_dst": 3} if bipartite else {"num_nodes": 3}
    graphs = [Graph.from_edges(np.array(u, int), np.array(v, int), **sizes) for u, v in EDGES]
    if padded:
        graphs[0] = graphs[0].pad(num_edges=6)
    got = (jax.jit(joined) if traced else joined)(graphs)
    slots = [0, 1, 2, 3, *([-1, -1] if padded else []), 4, 5, 6]
    src, dst, relation = [0, 2, 2, 1, 1, 0, 2], [1, 1, 1, 0, 1, 1, 0], [0, 0, 0, 0, 2, 2, 2]
    mask = np.ones(len(slots), bool) if got.mask is None else got.mask
    real = np.asarray(slots) >= 0
    assert mask.tolist() == real.tolist()
    assert got.bipartite is bipartite
    assert (got.num_src, got.num_dst, got.num_edges) == (3, 3, len(slots))
    assert np.asarray(got.src)[real].tolist() == src
    assert np.asarray(got.dst)[real].tolist() == dst
    assert got.relations is not None
    assert got.relations.count == 3
    assert np.asarray(got.relations.number)[real].tolist() == relation
    assert np.asarray(got.relations.degree)[real].tolist() == [3, 3, 3, 1, 2, 2, 1]
    for structure, of in ((got.in_structure, dst), (got.out_structure, src)):
        assert np.diff(structure.indptr).tolist() == np.bincount(of, minlength=3).tolist()
    expected = Graph.from_edges(src, dst, **sizes)
    n = len(src)
    np.testing.assert_array_equal(got.in_structure.neighbor[:n], expected.in_structure.neighbor[:n])
    edge = np.asarray(slots)[np.asarray(got.in_structure.edge)[:n]]
    np.testing.assert_array_equal(edge, expected.in_structure.edge)
