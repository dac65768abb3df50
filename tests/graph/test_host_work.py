"""What is done with concrete graphs is done in NumPy: no size is compiled for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations

from gnnjit.graph import Bipartite, Graph, batch, coalesce, symmetrize


def drawn(seed: int, masked: bool = False) -> Graph:
    rng = np.random.default_rng(seed)
    n, e = rng.integers(5, 60), rng.integers(1, 200)
    src, dst = rng.integers(0, n, (2, e))
    mask = rng.random(e) < 0.8 if masked else None
    return Graph.from_edges(src, dst, int(n), edge_mask=mask)


def pair(seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    n, m, e = rng.integers(3, 50, 3)
    return Graph.from_edges(
        rng.integers(0, n, e), rng.integers(0, m, e), num_src=int(n), num_dst=int(m)
    )


def rows(count: int, seed: int = 0) -> jax.Array:
    return jax.device_put(np.random.default_rng(seed).random((count, 2)).astype(np.float32))


OPERATIONS: dict[str, Callable[[Graph], Any]] = {
    "from_edges": lambda g: Graph.from_edges(g.src, g.dst, g.num_nodes, edge_mask=g.mask),
    "from_edges, an edge list": lambda g: Graph.from_edges(np.stack([g.src, g.dst])),
    "from_edges, symmetric": lambda g: Graph.from_edges(
        np.concatenate([g.src, g.dst]), np.concatenate([g.dst, g.src]), symmetric=True
    ),
    "reverse": lambda g: g.reverse(),
    "degree": lambda g: [g.degree("in"), g.degree("out"), g.in_degree, g.out_degree],
    "num_dropped": lambda g: g.num_dropped(),
    "gcn_norm": lambda g: [g.gcn_norm(), g.gcn_norm(np.ones(g.num_edges))],
    "gcn_norm, weights in JAX": lambda g: g.gcn_norm(jax.device_put(np.ones(g.num_edges))),
    "gcn_factors": lambda g: [g.gcn_factors(), g.gcn_factors(np.ones(g.num_edges))],
    "with_self_loops": lambda g: [
        g.with_self_loops(),
        g.with_self_loops(missing_only=False),
        g.with_self_loops(rows(g.num_edges), fill=2.0),
        g.with_self_loops({"a": rows(g.num_edges)}, fill="mean"),
        g.with_self_loops(rows(g.num_edges), fill="max"),
    ],
    "to_undirected": lambda g: g.to_undirected(),
    "pad": lambda g: g.pad(g.num_nodes + 3, g.num_edges + 5),
    "pad_nodes": lambda g: g.pad(g.num_nodes + 3).pad_nodes({"x": rows(g.num_nodes)}),
    "pad_edges": lambda g: g.pad(g.num_nodes, g.num_edges + 3).pad_edges(rows(g.num_edges)),
    "statistics": lambda g: g.statistics(),
    "batch": lambda g: batch([g, g.reverse(), g]),
    "batch of padded": lambda g: batch([g, g.pad(g.num_nodes + 1, g.num_edges + 1)]),
    "coalesce": lambda g: coalesce(g.src, g.dst),
    "symmetrize": lambda g: symmetrize(g.src, g.dst),
    "check": lambda g: g.check(rows(g.num_nodes), "dst", "x"),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_compiled(name: str, masked: bool) -> None:
    graphs = [drawn(seed, masked) for seed in range(12)]
    with compilations() as found:
        jax.block_until_ready([OPERATIONS[name](g) for g in graphs])
    assert not found


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_compiled_for_two_vertex_sets(seed: int) -> None:
    with compilations() as found:
        graph = pair(seed)
        x = Bipartite(rows(graph.num_src), rows(graph.num_dst))
        padded = graph.pad(num_src=60, num_dst=70, num_edges=80)
        jax.block_until_ready(
            [
                padded, padded.pad_nodes(x), batch([graph, graph]), graph.gcn_factors(),
                graph.gcn_norm(), graph.reverse(), graph.in_degree,
            ]
        )  # fmt: skip
    assert not found


def test_the_counter_counts() -> None:
    with compilations() as found:
        jax.block_until_ready(jnp.arange(12347) * 3 + 1)
    assert found


SAME = [
    "with_self_loops", "gcn_norm", "gcn_factors", "degree", "pad", "batch", "batch of padded",
    "reverse", "pad_nodes", "pad_edges",
]  # fmt: skip


def known(tree: Any) -> list[Any]:
    """All arrays but those that only a traced graph has."""

    def without(g: Any) -> Any:
        return dataclasses.replace(g, mask=None, dropped=None) if isinstance(g, Graph) else g

    return jax.tree.leaves(jax.tree.map(without, tree, is_leaf=lambda g: isinstance(g, Graph)))


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("masked", [False, True])
def test_traced_graphs_get_the_same(name: str, masked: bool) -> None:
    graph = drawn(3, masked)
    if name == "with_self_loops":  # of a traced graph, one for every vertex with a mask

        def operation(g: Graph) -> Any:
            looped, edges = g.with_self_loops(rows(g.num_edges), fill="mean", missing_only=False)
            return looped.src, looped.dst, edges

    else:
        operation = OPERATIONS[name]  # type: ignore[assignment]
    here, there = operation(graph), jax.jit(operation)(graph)
    for a, b in zip(known(here), known(there), strict=True):
        assert isinstance(a, jax.Array)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_graph_stays_where_it_was_put() -> None:
    second = jax.devices()[1]
    graph = jax.device_put(drawn(0), second)
    padded = graph.pad(100, 300)
    weights = jax.device_put(np.ones(graph.num_edges, np.float32), second)
    for leaf in jax.tree.leaves([padded, graph.in_degree, graph.gcn_norm(weights)]):
        assert leaf.devices() == {second}
        assert leaf.committed
    assert padded.in_degree.sum() == graph.num_edges


def test_a_graph_on_many_devices() -> None:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("d",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    padded = jax.device_put(drawn(0), everywhere).pad(100, 300)
    assert padded.src.sharding.is_equivalent_to(everywhere, 1)
    apart = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    graph = Graph.from_edges(np.arange(16) % 8, np.arange(16) // 2, 8)
    src, dst = (jax.device_put(x, apart) for x in (graph.src, graph.dst))
    again = Graph.from_edges(src, dst, 8)
    np.testing.assert_array_equal(again.src, graph.src)
