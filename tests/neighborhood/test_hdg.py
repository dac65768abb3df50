"""Hierarchical dependency graphs: aggregation level by level, beside naive enumeration."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.compiler.explain import Explanation
from gnnjit.errors import GraphError, SampleError
from gnnjit.graph.by_destination import ByDestination
from gnnjit.neighborhood import HDG, direct, metapaths
from neighborhood.naive import instances, movies

PATHS = [["m", "d", "m"], ["m", "a", "m"]]


@gnnjit.layer
def ordered(v: Any, e: Any, p: Any) -> Any:
    """A sum in which positions differ."""
    return gnnjit.sum(e.src * p["at"][e.relation])


@gnnjit.layer
def attend(v: Any, e: Any, p: Any) -> Any:
    score = jnp.tanh(e.src @ p["a"][e.relation] + v @ p["b"][e.relation])
    return gnnjit.sum(gnnjit.softmax(score) * e.src)


def parameters() -> dict[str, jax.Array]:
    rng = np.random.default_rng(1)
    shapes = {"at": (3, 4), "a": (2, 4), "b": (2, 4)}
    return {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}


def features(graph: gnnjit.TypedGraph) -> dict[str, jax.Array]:
    rng = np.random.default_rng(2)
    sizes = graph.num_nodes.items()
    return {t: jnp.asarray(rng.normal(size=(n, 4)), jnp.float32) for t, n in sizes}


def run(hdg: HDG, x: Any, p: Any) -> Any:
    stages = [functools.partial(f, p=p) for f in (ordered, attend, attend)]
    return hdg(x, *stages, lambda roots, h: roots + h)


def by_hand(found: Any, x: Any, p: Any) -> Any:
    """The same over lists of instances, all as long as the longest."""
    every = jnp.concatenate([x["m"], x["d"], x["a"]])
    longest = max(map(len, found.values()))
    at, real = np.zeros((6, 2, longest, 3), int), np.zeros((6, 2, longest), bool)
    for (root, t), some in found.items():
        at[root, t, : len(some)] = np.asarray(some, int).reshape(-1, 3)
        real[root, t, : len(some)] = True
    own = jnp.sum(every[at] * p["at"], axis=-2)
    at_root = x["m"] @ p["b"].T
    score = jnp.tanh(jnp.einsum("rtif,tf->rti", own, p["a"]) + at_root[..., None])
    weight = jax.nn.softmax(score, where=real)
    types = jnp.einsum("rti,rtif->rtf", jnp.where(real, weight, 0), own)
    weight = jax.nn.softmax(jnp.tanh(jnp.einsum("rtf,tf->rt", types, p["a"]) + at_root))
    return x["m"] + jnp.einsum("rt,rtf->rf", weight, types)


@pytest.mark.parametrize("cap", [None, 2])
def test_three_levels_are_what_enumeration_gives(cap: int | None) -> None:
    """With a cap, of an HDG that sorts its edges for the gradient."""
    graph, p = movies(), parameters()
    x, hdg = features(graph), metapaths(graph, PATHS, cap=cap)
    hdg = hdg.compact() if cap else hdg
    found = instances(hdg)

    def loss(fn: Any) -> Any:
        def value(x: Any, p: Any) -> Any:
            out = fn(x, p)
            return jnp.sum(jnp.sin(out)), out

        return jax.value_and_grad(value, argnums=(0, 1), has_aux=True)

    ours = jax.jit(lambda h, x, p: loss(functools.partial(run, h))(x, p))(hdg, x, p)
    theirs = jax.jit(loss(functools.partial(by_hand, found)))(x, p)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), ours, theirs)


def test_levels_are_the_same_inside_jit() -> None:
    hdg = metapaths(movies(), PATHS)
    inside = jax.jit(lambda h: h.levels)(hdg)
    for compact in (hdg.compact().levels, jax.jit(lambda h: h.levels)(hdg.compact())):
        for ours, theirs in zip(compact, inside, strict=True):
            for name in ("indptr", "neighbor", "edge"):
                np.testing.assert_array_equal(
                    getattr(ours.out_structure, name), getattr(theirs.out_structure, name)
                )
    whole = jax.jit(lambda h: h.levels)(hdg.expanded())
    jax.tree.map(np.testing.assert_array_equal, hdg.levels, whole)
    for ours, theirs in zip(hdg.levels, inside, strict=True):
        for one, other in [(ours.in_structure, theirs.in_structure),
                           (ours.out_structure, theirs.out_structure)]:  # fmt: skip
            for name in ("indptr", "neighbor", "edge"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        jax.tree.map(np.testing.assert_array_equal, ours.relations, theirs.relations)
        wanted = gnnjit.Graph.from_edges(
            ours.src, ours.dst, num_src=ours.num_src, num_dst=ours.num_dst
        )
        np.testing.assert_array_equal(ours.out_structure.edge, wanted.out_structure.edge)
        np.testing.assert_array_equal(ours.in_structure.indptr, wanted.in_structure.indptr)


def test_levels_that_a_compiled_function_captures_stay_known() -> None:
    hdg = metapaths(movies(), PATHS)
    jax.jit(lambda: hdg.levels[1].dst + 0)()
    assert np.asarray(hdg.levels[1].dst).shape == (hdg.parts[1].num_edges,)


def test_levels_that_a_loop_derives_stay_in_it() -> None:
    hdg = metapaths(movies(), PATHS)

    @jax.jit
    def f(hdg: HDG) -> Any:
        inside = jax.lax.scan(lambda c, _: (c + hdg.levels[1].dst.sum(), None), 0, None, 2)[0]
        return inside, hdg.levels[1].dst.sum()

    inside, outside = f(hdg)
    assert inside == 2 * outside


def test_what_is_implied_is_not_stored() -> None:
    hdg = metapaths(movies(), PATHS)
    report = hdg.report()
    _, middle, top = hdg.parts
    assert isinstance(middle, ByDestination)
    assert middle.source is None
    assert jax.tree.leaves(top) == []
    assert 2 * report.num_bytes < report.level_bytes
    # The vertices of instances in two orders, offsets, and nothing else.
    edges, instances = report.levels[0][2], report.levels[1][2]
    assert report.num_bytes == 4 * (2 * edges + 13 + 1 + 12 + 1)
    assert report.list_bytes == 4 * (edges + 2 * instances)
    # Without the order of edges by source, and where each source's begin.
    assert hdg.compact().report().num_bytes == report.num_bytes - 4 * (edges + 13 + 1)
    assert "HDG(metapaths: 6 roots, 2 neighbour types; levels of" in repr(hdg)


def test_selected_anew_nothing_is_compiled() -> None:
    graph = gnnjit.Graph.from_edges([0, 0, 1, 1], [0, 1, 0, 1])
    traces = []

    @jax.jit
    def f(hdg: HDG) -> Any:
        traces.append(hdg)
        return hdg.levels[0].src

    one, two = (f(metapaths(graph, [3], cap=2, seed=seed)) for seed in (0, 1))
    assert len(traces) == 1
    assert not np.array_equal(one, two)


def test_explain_shows_each_level() -> None:
    graph = movies()
    given = metapaths(graph, PATHS), features(graph), parameters()
    found = gnnjit.explain(run, *given, backward=False)
    assert isinstance(found, Explanation)
    rows = [[k.traversal for k in layer.kernels] for layer in found.layers]
    assert len(rows) == 3
    assert all(rows)


def test_direct_neighbours_are_the_graph() -> None:
    graph = gnnjit.Graph.from_edges([0, 1, 2], [1, 2, 2], num_nodes=4)
    mean = gnnjit.layer(lambda v, e: gnnjit.mean(e.src))
    hdg, x = direct(graph), jnp.arange(4.0)
    assert hdg.levels == (graph,)
    np.testing.assert_array_equal(hdg(x, mean), mean(graph, x))
    np.testing.assert_array_equal(hdg(x, mean, jnp.add), x + mean(graph, x))
    assert hdg.report().rows == (("neighbours", 3, 3, 2),)


def test_errors() -> None:
    graph = movies()
    hdg, x = metapaths(graph, PATHS), features(graph)
    mean = gnnjit.layer(lambda v, e: gnnjit.mean(e.src))
    with pytest.raises(GraphError, match="of 3 levels was called with 2 stages, expected 3, or 4"):
        hdg(x, mean, mean)
    with pytest.raises(GraphError, match="x has no features of 'a', expected some for each"):
        hdg({"m": x["m"], "d": x["d"]}, mean, mean, mean)
    with pytest.raises(GraphError, match=r"x\['d'\] has rows of .* expected the same for all"):
        hdg({**x, "d": x["d"][:, :2]}, mean, mean, mean)
    with pytest.raises(GraphError, match=r"x\['d'\] has 2 rows, but the graph has 3 vertices of"):
        hdg({**x, "d": x["d"][:2]}, mean, mean, mean)
    with pytest.raises(GraphError, match="report\\(\\) was called on a traced HDG"):
        jax.jit(lambda h: h.report())(hdg)
    with pytest.raises(GraphError, match="pad\\(\\) was called on an HDG of instances"):
        hdg.pad(100)
    with pytest.raises(SampleError, match="direct: got TypedGraph"):
        direct(graph)  # type: ignore[arg-type]
