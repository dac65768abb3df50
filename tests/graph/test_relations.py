"""Relations of edges by number: what a graph knows of them, and what it does with them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import GraphError
from gnnjit.graph import Graph, batch

RNG = np.random.default_rng(0)
N, E, R = 12, 80, 5
SRC, DST, RELATION = RNG.integers(0, N, E), RNG.integers(0, N, E), RNG.integers(0, R - 1, E)
MASK = RNG.random(E) < 0.8
CODES = np.where(MASK, RELATION, 999)  # of padding, whatever stands there


def degrees(dst: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Edge by edge."""
    mask = np.ones(E, bool) if mask is None else mask
    same = (dst[:, None] == dst) & (RELATION[:, None] == RELATION) & mask & mask[:, None]
    return same.sum(1)


def made(**options: Any) -> Graph:
    return Graph.from_edges(SRC, DST, N, **{"relation": RELATION, "num_relations": R} | options)


@pytest.mark.parametrize("traced", [False, True])
def test_numbers_and_degrees(traced: bool) -> None:
    make = lambda relation: made(relation=relation, edge_mask=MASK)  # noqa: E731
    g = jax.jit(make)(CODES) if traced else make(CODES)
    relations = g.relations
    assert relations is not None
    assert (g.num_relations, relations.number.dtype, relations.degree.dtype) == (R, *[np.int32] * 2)
    np.testing.assert_array_equal(relations.number, np.where(MASK, RELATION, 0))
    np.testing.assert_array_equal(relations.degree, degrees(DST, MASK))
    assert int(g.num_dropped()) == 0
    reverse = g.reverse().relations
    assert reverse is not None
    np.testing.assert_array_equal(reverse.degree, degrees(SRC, MASK))


def test_many_more_pairs_than_edges() -> None:
    g = made(num_relations=10**8)
    assert g.relations is not None
    np.testing.assert_array_equal(g.relations.degree, degrees(DST))


def test_a_traced_relation_out_of_range_is_padding() -> None:
    out = RELATION.copy()
    out[[3, 7]] = [R, -1]
    g = jax.jit(lambda r: made(relation=r))(out)
    assert int(g.num_dropped()) == 2
    np.testing.assert_array_equal(np.flatnonzero(~np.asarray(g.mask)), [3, 7])
    keep = np.ones(E, bool)
    keep[[3, 7]] = False
    np.testing.assert_array_equal(g.relations.degree, degrees(DST, keep))


def test_padding_and_batches_keep_them() -> None:
    g = made()
    padded = g.pad(N + 3, E + 9)
    assert padded.relations is not None
    np.testing.assert_array_equal(padded.relations.number, [*RELATION, *[0] * 9])
    np.testing.assert_array_equal(padded.relations.degree, [*degrees(DST), *[0] * 9])
    both, _ = batch([padded, g])
    assert both.relations is not None
    np.testing.assert_array_equal(both.relations.degree, [*padded.relations.degree, *degrees(DST)])
    assert repr(both) == "Graph(27 vertices, 169 edges, padded, 5 relations, 2 graphs)"


def test_the_number_of_relations_is_inferred() -> None:
    assert made(num_relations=None).num_relations == RELATION.max() + 1
    assert Graph.from_edges([], [], 2, relation=[]).num_relations == 0
    assert Graph.from_edges([0], [1]).num_relations == 0


MESSAGES = {
    "too long": (
        lambda: made(relation=RELATION[:3]),
        "relation has shape (3,), expected (80,), one relation per edge: build it from the same "
        "edge list as src and dst",
    ),
    "floats": (
        lambda: made(relation=RELATION.astype(np.float32)),
        "relation has dtype float32, expected integers: number the relations from 0, with `names, "
        "relation = numpy.unique(relation, return_inverse=True)`",
    ),
    "out of range": (
        lambda: Graph.from_edges([0, 1], [1, 0], relation=[0, 2], num_relations=2),
        "relation[1] is 2, expected a relation from 0 to 1 (num_relations=2): pass a larger "
        "num_relations, or subtract 1 if your relations are numbered from 1",
    ),
    "negative": (
        lambda: Graph.from_edges([0, 1], [1, 0], relation=[-1, 0], num_relations=0),
        "relation[0] is -1, expected no edges at all (num_relations=0): pass a larger "
        "num_relations, or subtract 1 if your relations are numbered from 1",
    ),
    "a number alone": (
        lambda: Graph.from_edges([0], [1], num_relations=2),
        "num_relations=2 was given without relation=, expected both: pass the relation of each "
        "edge, int[num_edges]",
    ),
    "no number": (
        lambda: made(num_relations=2.5),
        "num_relations is 2.5, expected an integer, 0 or more: pass the number of relations, or "
        "leave it out to use the largest one plus one",
    ),
    "traced without a number": (
        lambda: jax.jit(lambda r: made(relation=r, num_relations=None))(jnp.asarray(RELATION)),
        "num_relations is missing and relation is traced, expected a static number: the largest "
        "relation is unknown inside jit, so pass num_relations=",
    ),
    "self loops": (
        lambda: made().with_self_loops(),
        "with_self_loops() on a graph of 5 relations, expected one whose edges have none: add v @ "
        "w in the layer, or append the loops to the edges, as a relation",
    ),
    "undirected": (
        lambda: made().to_undirected(),
        "to_undirected() on a graph of 5 relations, expected one whose edges have none: append the "
        "edges dst -> src as relations of their own, relation + num_relations",
    ),
    "other numbers": (
        lambda: batch([made(), made(num_relations=6), gnnjit.Graph.from_edges([0], [1])]),
        "batch() got graphs of different numbers of relations (5, 6, none), expected one: make "
        "them by from_edges(..., relation=, num_relations=) with one num_relations",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str) -> None:
    call, message = MESSAGES[name]
    with pytest.raises(GraphError) as error:
        call()
    assert str(error.value) == message
