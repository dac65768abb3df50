"""Relations by number of a streamed graph give what they give in memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit.errors import GraphError
from gnnjit.nn import RGCN
from gnnjit.streaming import StreamedGraph

from .functions import assert_same

N, E, R, F = 40, 160, 5, 4
RNG = np.random.default_rng(0)
SRC, DST = RNG.integers(0, N, (2, E))
RELATION = RNG.integers(0, R - 1, E)  # one without edges


def streamed(relation: Any = RELATION, **options: Any) -> StreamedGraph:
    return StreamedGraph.from_edges(SRC, DST, N, relation=relation, **options)


@pytest.mark.parametrize("mean", [pytest.param("all", marks=pytest.mark.long), "relation"])
def test_rgcn(mean: str) -> None:
    model = RGCN(F, 6, num_relations=R, mean=mean, rngs=nnx.Rngs(0))
    definition, params, rest = nnx.split(model, nnx.Param, ...)
    x = np.float32(np.random.default_rng(1).normal(size=(N, F)))

    def loss(x: Any, params: Any, graph: Any) -> Any:
        out = nnx.merge(definition, params, rest)(graph, x)
        return jnp.sum(jnp.cos(out)), out

    run = jax.grad(loss, (0, 1), has_aux=True)
    graph = gnnjit.Graph.from_edges(SRC, DST, N, relation=RELATION, num_relations=R)
    there = streamed(num_relations=R)
    got = gnnjit.stream(run, memory_budget="64MiB", parts=3)(there.put("x", x), params, there)
    want = jax.jit(run)(x, params, graph)
    assert_same(*(jax.tree.map(np.asarray, tree) for tree in (got, want)))
    assert repr(there) == "StreamedGraph(40 vertices, 160 edges, 5 relations)"


def test_graphs_with_and_without_relations_are_told_apart() -> None:
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src * e.num_relations))
    run = gnnjit.stream(layer, memory_budget="64MiB", parts=2)
    x, degree = np.ones(N, np.float32), np.bincount(DST, minlength=N)
    for count in (R, R + 2):
        graph = streamed(num_relations=count)
        np.testing.assert_array_equal(run(graph, graph.put("x", x)), degree * count)
    graph = StreamedGraph.from_edges(SRC, DST, N)
    assert graph.relations is None
    with pytest.raises(Exception, match=r"e\.num_relations"):
        run(graph, graph.put("x", x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: streamed(RELATION[1:]), r"relation has shape \(159,\), expected \(160,\)"),
        (lambda: streamed(num_relations=3), r"expected a relation from 0 to 2"),
        (lambda: streamed(None, num_relations=3), r"num_relations=3 was given without relation="),
        (lambda: jax.jit(lambda r: streamed(r, num_relations=R))(RELATION),
         r"relation is traced, expected a concrete array"),
    ],
)  # fmt: skip
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()
