"""`TypedGraph`: what it is made from, and what it is changed to."""

from __future__ import annotations

import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import TypedGraph
from gnnjit.errors import GraphError

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
EDGES = {WRITES: ([0, 1, 1], [0, 2, 1]), CITES: ([0, 1], [1, 3])}


def made(**counts: int) -> TypedGraph:
    return TypedGraph.from_edges(EDGES, {"author": 2, "paper": 4, "venue": 3} | counts)


def ends(graph: gnnjit.Graph) -> list[list[int]]:
    return [np.asarray(graph.src).tolist(), np.asarray(graph.dst).tolist()]


def test_types_relations_and_graphs():
    graph = made()
    assert graph.types == ("author", "paper", "venue")
    assert graph.num_nodes == {"author": 2, "paper": 4, "venue": 3}
    assert graph.num_edges == {WRITES: 3, CITES: 2}
    assert graph["writes"] is graph[WRITES]
    assert graph[WRITES].bipartite
    assert not graph["cites"].bipartite
    assert graph["cites"].num_nodes == 4
    assert "writes" in graph
    assert CITES in graph
    assert "likes" not in graph
    assert graph.into("paper") == (WRITES, CITES)
    assert graph.into("venue") == ()
    assert graph.out_of("author") == (WRITES,)
    assert ends(graph["writes"]) == [[0, 1, 1], [0, 2, 1]]
    assert "2 author, 4 paper, 3 venue" in repr(graph)


def test_counts_are_inferred_from_all_relations_of_a_type():
    graph = TypedGraph.from_edges({WRITES: ([0, 5], [0, 2]), CITES: np.array([[0, 7], [1, 2]])})
    assert graph.num_nodes == {"author": 6, "paper": 8}
    masked = TypedGraph.from_edges(
        {WRITES: ([0, 5], [0, 2])}, edge_mask={"writes": np.array([True, False])}
    )
    assert masked.num_nodes == {"author": 1, "paper": 1}
    none = TypedGraph.from_edges({}, {"author": 3})
    assert none.types == ("author",)
    assert none.relations == ()


def test_it_is_a_pytree_that_jit_and_vmap_take():
    graph = made()
    twice = jax.jit(lambda g: g)(graph)
    assert twice.relations == graph.relations
    assert ends(twice["cites"]) == ends(graph["cites"])

    @jax.jit
    def rebuilt(src, dst):
        return TypedGraph.from_edges({WRITES: (src, dst)}, {"author": 2, "paper": 4})

    graph = rebuilt(jnp.array([0, 9]), jnp.array([1, 1]))
    assert graph["writes"].num_dropped() == 1


def test_it_is_written_to_files():
    graph = made()
    copy = pickle.loads(pickle.dumps(graph))
    assert copy.num_edges == graph.num_edges
    of_author = jax.export.export(jax.jit(lambda g: g["writes"].out_degree))(graph)
    found = jax.export.deserialize(of_author.serialize()).call(graph)
    assert found.tolist() == [1, 2]


def test_reversed_and_self_relations():
    graph = made().with_reverse()
    assert graph.relations == (
        WRITES, CITES, ("paper", "rev_writes", "author"), ("paper", "rev_cites", "paper")
    )  # fmt: skip
    assert ends(graph["rev_writes"]) == ends(graph["writes"])[::-1]
    assert made().with_reverse(["writes"]).relations[2:] == (("paper", "rev_writes", "author"),)
    back = made().reverse()
    assert back.relations == (("paper", "writes", "author"), CITES)
    assert ends(back["writes"]) == ends(made()["writes"])[::-1]
    loops = made().with_self_relations()
    assert ends(loops["venue", "self", "venue"]) == [[0, 1, 2], [0, 1, 2]]
    assert loops.select(["writes"]).relations == (WRITES,)
    more = made().with_relations({("venue", "prints", "paper"): ([2], [3])})
    assert more.num_edges["venue", "prints", "paper"] == 1


def test_padding_keeps_edges_and_fills_features():
    graph = made().pad({"author": 5, "venue": 4}, {"cites": 6})
    assert graph.num_nodes == {"author": 5, "paper": 4, "venue": 4}
    assert graph.num_edges == {WRITES: 3, CITES: 6}
    assert np.asarray(graph["cites"].mask).tolist() == [True] * 2 + [False] * 4
    x = graph.pad_nodes({"author": np.ones((2, 3))})
    assert x["author"].shape == (5, 3)
    assert not x["author"][2:].any()
    assert graph.pad_edges({"cites": np.ones(2)})[CITES].tolist() == [1, 1, 0, 0, 0, 0]


def test_batch():
    other = TypedGraph.from_edges(
        {CITES: ([0], [0]), WRITES: ([0], [0])}, {"paper": 1, "author": 1, "venue": 0}
    )
    graph, index = TypedGraph.batch([made(), other])
    assert graph.num_nodes == {"author": 3, "paper": 5, "venue": 3}
    assert ends(graph["writes"]) == [[0, 1, 1, 2], [0, 2, 1, 4]]
    assert {t: i.tolist() for t, i in index.items()} == {
        "author": [0, 0, 1], "paper": [0, 0, 0, 0, 1], "venue": [0, 0, 0]
    }  # fmt: skip


def test_statistics():
    found = made().statistics()
    assert list(found) == [WRITES, CITES]
    assert found[WRITES].num_edges == 3
    assert found[WRITES].isolated == 1


def test_from_graphs():
    graph = TypedGraph.from_graphs(dict(made().items()), {"venue": 3})
    assert graph.num_nodes == {"venue": 3, "author": 2, "paper": 4}


FLAT = gnnjit.Graph.from_edges([0], [1], 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TypedGraph.from_edges([1, 2]), "expected a dictionary from relations to edges"),
        (lambda: TypedGraph.from_edges({"writes": ([0], [0])}), "'writes'.*a name alone"),
        (lambda: TypedGraph.from_edges({("a", "b"): ([0], [0])}), "expected .source type, name"),
        (lambda: TypedGraph.from_edges({("a", 1, "b"): ([0], [0])}), "three texts"),
        (lambda: TypedGraph.from_edges({("a", "", "b"): ([0], [0])}), "not empty"),
        (lambda: TypedGraph.from_edges({WRITES: 3}), "relation .*'writes'.*expected .src, dst."),
        (lambda: TypedGraph.from_edges({WRITES: ([0, 1], [0])}), "'writes'.*src has 2 entries"),
        (lambda: TypedGraph.from_edges({WRITES: ([0.5], [0])}), "'writes'.*expected vertex"),
        (lambda: made(author=1), "'writes'.*src.1. is 1, expected a vertex from 0 to 0"),
        (lambda: TypedGraph.from_edges({WRITES: ([-1], [0])}), "'writes'.*src.0. is -1"),
        (lambda: TypedGraph.from_edges(EDGES, {"auther": 2}), "no 'author'.*it has 'auther'"),
        (lambda: TypedGraph.from_edges(EDGES, {"author": 2.5}), r"num_nodes\['author'\] is 2.5"),
        (lambda: TypedGraph.from_edges(EDGES, {3: 2}), "expected the name of a vertex type"),
        (lambda: TypedGraph.from_edges(EDGES, 7), "num_nodes is 7, expected a dictionary"),
        (lambda: TypedGraph.from_edges(EDGES, edge_mask={"x": []}), "edge_mask names 'x'"),
        (lambda: TypedGraph.from_edges(EDGES, edge_mask=[True]), "expected a dictionary from rel"),
        (lambda: made()["likes"], "'likes', which is no relation of the graph; it has"),
        (lambda: made().with_reverse(prefix="x").with_reverse(prefix="x"), "has a relation"),
        (lambda: made().into("x"), "'x' is no vertex type of the graph"),
        (lambda: made().pad({"x": 3}), "'x' is no vertex type"),
        (lambda: made().pad({"paper": 1}), "below the 4"),
        (lambda: made().pad({"venue": 1}), "below the 3"),
        (lambda: made().with_relations({("a", "b", "paper"): ([0], [0])}), "'a' is no vertex type"),
        (lambda: TypedGraph.batch([]), "no graphs"),
        (lambda: TypedGraph.batch(made()), "expected several graphs"),
        (lambda: TypedGraph.batch([FLAT]), "expected a gnnjit.TypedGraph"),
        (lambda: TypedGraph.batch([made(), made().select(["cites"])]), "graph 1 with the rel"),
        (lambda: TypedGraph.from_graphs({WRITES: FLAT}), "one vertex set, expected one of two"),
        (lambda: TypedGraph.from_graphs({CITES: made()["writes"]}), "two vertex sets, expected"),
        (lambda: TypedGraph.from_graphs({CITES: FLAT}, {"paper": 4}), "has 3 vertices of type"),
        (lambda: TypedGraph.from_graphs({CITES: 3}), "expected a gnnjit.Graph"),
        (lambda: TypedGraph.from_graphs([FLAT]), "expected a dictionary from relations to graphs"),
        (lambda: made().with_reverse(["writes"]).with_relations({("author", "writes", "author"): (
            [0], [1])})["writes"], "2 relations are called"),
    ],
)  # fmt: skip
def test_mistakes(make, message):
    with pytest.raises(GraphError, match=f"(?s){message}"):
        make()


def test_traced_edges_need_sizes():
    with pytest.raises(GraphError, match=r"no 'author' and edges of .*are traced"):
        jax.jit(lambda s: TypedGraph.from_edges({WRITES: (s, s)}))(jnp.array([0]))
