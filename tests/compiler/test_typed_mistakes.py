"""What a layer says of a call on a typed graph that cannot be meant."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import readout
from gnnjit.errors import GraphError, LayerError, StreamError

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
GRAPH = gnnjit.TypedGraph.from_edges(
    {WRITES: ([0, 1], [0, 2]), CITES: ([0, 1], [1, 2])}, {"author": 2, "paper": 3}
)
X = {"author": jnp.ones((2, 4)), "paper": jnp.ones((3, 4))}


@gnnjit.layer
def summed(v: Any, e: Any, w: Any = None) -> Any:
    return sum(gnnjit.sum(r.src) for r in e.relations) + v


@pytest.mark.parametrize(
    ("x", "edges", "message"),
    [
        (X["paper"], None, "x is .*expected a dictionary from vertex types to features"),
        ({"paper": X["paper"]}, None, "no features of 'author'.*may be None"),
        (X | {"venue": X["paper"]}, None, "features of 'venue', which is no vertex type"),
        (X | {"paper": jnp.ones((2, 4))}, None, r"x\['paper'\] has 2 rows.*3 vertices of type"),
        (X | {"paper": "text"}, None, r"x\['paper'\]"),
        (X, {"writes": jnp.ones(3)}, "3 rows.*2 edges of .'author', 'writes', 'paper'."),
        (X, {"likes": jnp.ones(2)}, "'likes', which is no relation of the graph"),
        (X, jnp.ones(2), "expected a dictionary from relations to the data"),
        (X, {"writes": jnp.ones(2)}, "results depend on none of it"),
        (X, {"writes": jnp.ones(2), WRITES: jnp.ones(2)}, "two entries for"),
    ],
)
def test_arguments_that_do_not_fit(x, edges, message):
    with pytest.raises((GraphError, LayerError), match=f"(?s)test_typed_mistakes.py.*{message}"):
        summed(GRAPH, x, edges=edges)


def of_two(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.relations[0].src * e.relations[1].src)


def nested(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.map(lambda r: e.map(lambda q: q.src)))


def of_other(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.map(lambda r: e.relations[0].src))


def of_one_and_all(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.map(lambda r: r.src) * e.relations[0].src)


def uneven(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.map(lambda r: r.src if r.name == "cites" else r.src[:2]))


def other_tree(v: Any, e: Any) -> Any:
    return e.map(lambda r: (r.src, v) if r.name == "cites" else r.src)


def parameters(v: Any, e: Any) -> Any:
    return v @ {"author": jnp.eye(4)}[e.dst_type]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda v, e: gnnjit.sum(e.src), "e.src was read.*write r.src for each r of e.relations"),
        (lambda v, e: gnnjit.sum(e.data), "e.data was read"),
        (lambda v, e: v + e.globals, "has no e.globals"),
        (lambda v, e: v + e.weight, "it has no 'weight'"),
        (lambda v, e: [r.data for r in e.relations], "without data of its edges: pass edges="),
        (lambda v, e: sum(r.edges for r in e.relations), "relation.*it has no 'edges'"),
        (lambda v, e: [gnnjit.sum(r * 2) for r in e.relations], "used as an array"),
        (lambda v, e: v * e, "used as an array"),
        (lambda v, e: gnnjit.softmax(v), "needs a value on edges, got one of dst"),
        (lambda v, e: v + readout.sum(v), "readout.sum.*reduce the vertices of a type between"),
        (lambda v, e: gnnjit.median(e.map(lambda r: r.src)), "median in a.*one of sum, mean"),
        (lambda v, e: gnnjit.prod(e.relations[0].src), "gnnjit.prod in a layer on a"),
        (
            lambda v, e: gnnjit.fold(lambda c, x: c + x, 0.0 * v, e.relations[0].src),
            "gnnjit.fold in a layer on a",
        ),
        (lambda v, e: gnnjit.sum(e.relations[0].src, over="out"), "sum: over=.out.*graph.reverse"),
        (of_two, r"values of .*'writes'.* and .*'cites'.*reduce them into the vertex first"),
        (nested, "inside the function of another e.map"),
        (of_other, "gave a value of .*'writes'.* for .*'cites'"),
        (of_one_and_all, "value of all relations .of e.map. with one of .*'writes'"),
        (uneven, r"shape \[4\] for 'cites' and \[2\] for 'writes'"),
        (other_tree, "same structure for every relation"),
        (parameters, "found no 'paper' in a dictionary"),
        (lambda v, e: None, "returned None"),
        (lambda v, e: v + X["paper"], "that the layer captured is combined with a value of one"),
    ],
)
def test_functions_that_cannot_be_traced(layer, message):
    with pytest.raises(LayerError, match=f"(?s)test_typed_mistakes.py.*{message}"):
        gnnjit.layer(lambda v, e: layer(v, e) if e.relations else v)(GRAPH, X)


class Model:
    @gnnjit.layer
    def __call__(self, v: Any, e: Any) -> Any:
        return v + gnnjit.degree()


def test_a_typed_layer_on_a_graph_of_one_type_and_the_other_way_round():
    graph = gnnjit.Graph.from_edges([0, 1], [1, 0])
    with pytest.raises(LayerError, match=r"(?s)e.relations, which edges of a gnnjit.TypedGraph"):
        summed(graph, jnp.ones((2, 4)))

    @gnnjit.layer
    def plain(v: Any, e: Any) -> Any:
        return gnnjit.sum(e.src)

    with pytest.raises(LayerError, match=r"called on a gnnjit.TypedGraph"):
        plain(GRAPH, X)
    with pytest.raises(LayerError, match="owner is missing"):
        Model.__call__.explain(GRAPH, X)  # type: ignore[attr-defined]
    with pytest.raises(LayerError, match="TypedGraph alone"):
        plain(GRAPH)


def test_what_typed_graphs_cannot_do_yet_is_said():
    with pytest.raises(LayerError, match=r"globals= on a gnnjit.TypedGraph"):
        summed(GRAPH, X, globals=jnp.ones(1))
    with pytest.raises(LayerError, match="memory budget"), gnnjit.memory_budget("1GiB"):
        summed(GRAPH, X)
    with pytest.raises(StreamError, match=r"a streamed function got a TypedGraph.*StreamedTyped"):
        gnnjit.stream(lambda g, x: summed(g, x), memory_budget="1MiB")(GRAPH, X)


def test_features_that_are_none_and_read():
    graph = gnnjit.TypedGraph.from_edges({("a", "to", "b"): ([0], [0])}, {"a": 1, "b": 1})
    with pytest.raises(LayerError, match=r"reads v, but x\['b'\] is None"):
        gnnjit.layer(lambda v, e: v * 1.0 if e.dst_type == "b" else jnp.zeros(1))(
            graph, {"a": jnp.ones((1, 2)), "b": None}
        )
    with pytest.raises(LayerError, match=r"reads r.src of .*x\['a'\] is None"):
        gnnjit.layer(lambda v, e: [gnnjit.sum(r.src) for r in e.relations] or jnp.zeros(1))(
            graph, {"a": None, "b": jnp.ones((1, 2))}
        )


def test_a_wrong_number_of_parameters():
    with pytest.raises(LayerError, match="was called with 2 parameters after the graph and x"):
        summed(GRAPH, X, np.ones(3), np.ones(3))
