"""Neighbour sampling against exact chances, by enumeration, and against plain loops."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from graph.strategies import edge_lists
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.nn import SAGE
from gnnjit.sample import NeighborSampler, Sample, Workers
from sample.exact import (
    DIRECTED,
    KITE,
    check_chances,
    check_sample,
    edges_of,
    graph_of,
    marginal,
    random_graph,
    same_bits,
    successive,
)

DRAWS = 5000
WEIGHTS = [1, 0, 3, 2, 0.5]


def star(leaves: int) -> Graph:
    """Edges `i` from vertex `i + 1` to vertex 0."""
    return graph_of([(i + 1, 0) for i in range(leaves)], leaves + 1)


def picks(sampler: NeighborSampler, **times: Any) -> list[tuple[int, ...]]:
    """The edges that vertex 0 draws in each of many batches."""
    samples = (sampler.sample([0], seed, **times) for seed in range(DRAWS))
    return [tuple(sample.edge.tolist()) for sample in samples]


def as_sets(draws: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(sorted(draw)) for draw in draws]


def product(chances: list[float], count: int) -> dict[tuple[int, ...], float]:
    """Of `count` draws with replacement."""
    orders = itertools.product(range(len(chances)), repeat=count)
    return {order: float(np.prod([chances[i] for i in order])) for order in orders}


# (10, 9) is drawn in one pass over the slots, the others by Floyd's algorithm.
@pytest.mark.parametrize(("leaves", "fanout"), [(5, 1), (5, 2), (6, 4), (10, 9), (4, 4), (3, 7)])
def test_uniform_without_replacement(leaves: int, fanout: int) -> None:
    draws = as_sets(picks(NeighborSampler(star(leaves), (fanout,))))
    if fanout >= leaves:
        assert set(draws) == {tuple(range(leaves))}
        return
    sets = list(itertools.combinations(range(leaves), fanout))
    check_chances(draws, {chosen: 1 / len(sets) for chosen in sets})


def test_uniform_with_replacement() -> None:
    draws = picks(NeighborSampler(star(4), (3,), replace=True))
    check_chances(draws, product([1 / 4] * 4, 3))


@pytest.mark.parametrize("fanout", [1, 2, 3])
def test_weighted_without_replacement(fanout: int) -> None:
    draws = as_sets(picks(NeighborSampler(star(5), (fanout,), weights=WEIGHTS)))
    check_chances(draws, successive(WEIGHTS, fanout))


@pytest.mark.parametrize("fanout", [4, 9])
def test_an_edge_of_weight_0_is_never_drawn(fanout: int) -> None:
    draws = as_sets(picks(NeighborSampler(star(5), (fanout,), weights=WEIGHTS)))
    assert set(draws) == {(0, 2, 3, 4)}
    nothing = NeighborSampler(star(5), (fanout,), weights=np.zeros(5), replace=fanout == 9)
    assert nothing.sample([0]).sizes == (1, 1, 0)


def test_weighted_with_replacement() -> None:
    draws = picks(NeighborSampler(star(5), (2,), weights=WEIGHTS, replace=True))
    check_chances(draws, product([w / sum(WEIGHTS) for w in WEIGHTS], 2))


def test_weights_follow_the_order_in_which_edges_were_given() -> None:
    graph = graph_of([(1, 2), (1, 0), (2, 0), (0, 2)], 3)
    sample = NeighborSampler(graph, (1,), weights=[0, 0, 1, 1]).sample([0, 2])
    assert sample.edge.tolist() == [2, 3]


def test_vertices_draw_independently() -> None:
    graph = graph_of([*((i + 2, 0) for i in range(3)), *((i + 2, 1) for i in range(3))], 5)
    sampler = NeighborSampler(graph, (1,))
    samples = (sampler.sample([0, 1], seed) for seed in range(DRAWS))
    draws = (tuple(sample.edge.tolist()) for sample in samples)
    check_chances(draws, {(a, b): 1 / 9 for a in range(3) for b in range(3, 6)})


def test_a_vertex_draws_the_same_from_batch_seeds_that_differ_as_independently() -> None:
    sampler = NeighborSampler(star(4), (1,))
    draws = [sampler.sample([0], seed).edge[0] for seed in range(2 * DRAWS)]
    pairs = zip(draws[::2], draws[1::2], strict=True)
    check_chances(((int(a), int(b)) for a, b in pairs), product([1 / 4] * 4, 2))


@pytest.mark.parametrize("replace", [False, True])
def test_two_hops(replace: bool) -> None:
    """The joint chance of both hops; a vertex that is found again draws nothing more."""
    sampler = NeighborSampler(KITE, (1, 1), replace=replace)
    into = collections.defaultdict(list)
    for edge, v in enumerate(np.asarray(KITE.dst).tolist()):
        into[v].append(edge)
    chances: dict[Any, float] = {}
    for first in into[0]:
        middle = int(KITE.src[first])
        for second in into[middle]:
            chances[first, second] = 1 / len(into[0]) / len(into[middle])
    samples = (sampler.sample([0], seed) for seed in range(DRAWS))
    check_chances((tuple(sample.edge.tolist()) for sample in samples), chances)


# ---- times


def test_uniform_among_what_is_there() -> None:
    sampler = NeighborSampler(star(5), (2,), edge_times=[4, 1, 3, 9, 2])
    draws = as_sets(picks(sampler, times=[3]))
    check_chances(draws, {chosen: 1 / 3 for chosen in itertools.combinations([1, 2, 4], 2)})


@pytest.mark.parametrize("replace", [False, True])
def test_weighted_among_what_is_there(replace: bool) -> None:
    times = [4, 1, 3, 9, 2]
    sampler = NeighborSampler(star(5), (2,), weights=WEIGHTS, replace=replace, edge_times=times)
    there = [w if t <= 4 else 0 for w, t in zip(WEIGHTS, times, strict=True)]
    draws = picks(sampler, times=[4])
    if replace:
        check_chances(draws, product([w / sum(there) for w in there], 2))
    else:
        check_chances(as_sets(draws), successive(there, 2))


TIMES = st.lists(st.integers(0, 5), min_size=12, max_size=12)


@given(
    edges=edge_lists(masked=False), edge_times=TIMES, vertex_times=st.none() | TIMES,
    seed_times=TIMES, fanout=st.sampled_from([1, 2, -1]), replace=st.booleans(),
    number=st.integers(0, 99),
)  # fmt: skip
def test_nothing_later_than_its_seed_is_drawn(
    edges, edge_times, vertex_times, seed_times, fanout, replace, number
) -> None:
    graph = Graph.from_edges(edges.src, edges.dst, edges.num_dst)
    edge_times = np.array(edge_times[: len(edges.src)], np.int64)
    vertex_times = None if vertex_times is None else np.array(vertex_times[: graph.num_nodes])
    seeds = np.arange(graph.num_nodes)
    seed_times = np.array(seed_times[: len(seeds)])
    sampler = NeighborSampler(
        graph, (fanout, fanout), edge_times=edge_times, vertex_times=vertex_times, replace=replace
    )
    sample = sampler.sample(seeds, number, times=seed_times)
    check_sample(graph, sample)
    there = edge_times if vertex_times is None else np.maximum(edge_times, vertex_times[edges.src])
    rows = np.repeat(np.arange(len(sample.indptr) - 1), np.diff(sample.indptr))
    assert sample.tree is not None
    assert (there[sample.edge] <= seed_times[sample.tree[rows]]).all()
    assert (sample.tree[rows] == sample.tree[sample.neighbor]).all()
    # Of what is there, as many as the fan-out asks for, and at least one.
    for row, v in enumerate(sample.vertices[: sample.vertex_counts[1]]):
        live = int((there[edges.dst == v] <= seed_times[sample.tree[row]]).sum())
        wanted = live if fanout < 0 else fanout * (live > 0) if replace else min(live, fanout)
        assert sample.indptr[row + 1] - sample.indptr[row] == wanted


def test_times_as_floats() -> None:
    sampler = NeighborSampler(star(3), (-1,), edge_times=[0.5, 0.25, np.inf])
    assert sampler.sample([0], times=np.array([0.25])).edge.tolist() == [1]
    assert sampler.sample([0], times=np.array([0.5])).edge.tolist() == [1, 0]
    assert sampler.sample([0], times=np.array([0.0])).edge.tolist() == []


# ---- structure


def neighbourhood(graph: Graph, seeds: list[int], hops: int) -> tuple[list[set], set[int]]:
    """The vertices of each hop, and the edges into all but the last hop's."""
    ends = list(zip(np.asarray(graph.src).tolist(), np.asarray(graph.dst).tolist(), strict=True))
    levels, seen, edges = [set(seeds)], set(seeds), set()
    for _ in range(hops):
        found = {edge for edge, (_, v) in enumerate(ends) if v in levels[-1]}
        levels.append({ends[edge][0] for edge in found} - seen)
        seen |= levels[-1]
        edges |= found
    return levels, edges


@given(edge_lists(masked=False), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_all_neighbours_are_the_graph(edges, seeds, data) -> None:
    graph = Graph.from_edges(edges.src, edges.dst, edges.num_dst)
    seeds = [s % edges.num_dst for s in seeds]
    hops = data.draw(st.integers(1, 3))
    sample = NeighborSampler(graph, (-1,) * hops).sample(seeds)
    check_sample(graph, sample)
    levels, wanted = neighbourhood(graph, seeds, hops)
    counts = (0, *sample.vertex_counts)
    found = [set(sample.vertices[a:b].tolist()) for a, b in itertools.pairwise(counts)]
    assert found == levels
    assert sorted(sample.edge.tolist()) == sorted(wanted)
    assert sample.seeds is not None
    assert sample.vertices[sample.seeds].tolist() == seeds


def check_hops(sample: Sample) -> None:
    """That rows are those of all hops but the last, and what they draw is of the next at most."""
    assert len(sample.indptr) == sample.vertex_counts[-2] + 1
    for hop, edges in enumerate(sample.edge_counts):
        assert edges == sample.indptr[sample.vertex_counts[hop]]
        assert sample.neighbor[:edges].max(initial=0) < sample.vertex_counts[hop + 1]


@given(
    edges=edge_lists(masked=False), seeds=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    fanouts=st.lists(st.integers(1, 3), min_size=1, max_size=3), replace=st.booleans(),
    weighted=st.booleans(), disjoint=st.booleans(), number=st.integers(0, 99),
)  # fmt: skip
def test_samples_are_parts_of_the_graph(
    edges, seeds, fanouts, replace, weighted, disjoint, number
) -> None:
    graph = Graph.from_edges(edges.src, edges.dst, edges.num_dst)
    seeds = [s % edges.num_dst for s in seeds]
    weights = np.arange(len(edges.src)) % 3 if weighted else None
    sampler = NeighborSampler(graph, fanouts, weights=weights, replace=replace, disjoint=disjoint)
    sample = sampler.sample(seeds, number)
    check_sample(graph, sample)
    check_hops(sample)
    assert sample.seeds is not None
    assert sample.vertices[sample.seeds].tolist() == seeds
    assert (sample.tree is not None) == disjoint
    if disjoint:
        assert sample.seeds.tolist() == list(range(len(seeds)))
    chosen = [edge for _, _, edge in edges_of(sample)]
    if not replace and not disjoint:
        assert len(set(chosen)) == len(chosen)
    if weights is not None:
        assert (weights[chosen] > 0).all()
    for row in range(len(sample.indptr) - 1):
        own = sample.edge[sample.indptr[row] : sample.indptr[row + 1]].tolist()
        assert replace or len(set(own)) == len(own)


def test_trees_are_drawn_for_themselves_and_merged_ones_once() -> None:
    twice = NeighborSampler(star(4), (1,), disjoint=True)
    samples = (twice.sample([0, 0], seed) for seed in range(DRAWS))
    draws = (tuple(sample.edge.tolist()) for sample in samples)
    check_chances(draws, product([1 / 4] * 4, 2))
    merged = NeighborSampler(star(4), (1,)).sample([0, 0])
    assert (merged.sizes, merged.seeds.tolist()) == ((1, 2, 1), [0, 0])


def test_layers_on_full_neighbourhoods_compute_what_they_do_on_the_graph() -> None:
    graph = random_graph(60, 150)
    x = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    modules = [SAGE(4, 5, rngs=nnx.Rngs(0)), SAGE(5, 3, rngs=nnx.Rngs(1))]
    expected: Any = jnp.asarray(x)
    for module in modules:
        expected = module(graph, expected)
    sample = NeighborSampler(graph, (-1, -1)).sample([7, 3, 40])
    out: Any = jnp.asarray(x[sample.vertices])
    for module, block in zip(modules, sample.graphs(), strict=True):
        out = module(block, out)
    np.testing.assert_allclose(out, expected[np.array([7, 3, 40])], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"replace": True}, {"weights": True}, {"weights": True, "replace": True}, {"times": True}],
    ids=str,
)
def test_threads_give_the_same_bits(options: dict[str, bool]) -> None:
    graph = random_graph(20_000, 60_000, hubs=2)
    rng = np.random.default_rng(0)
    arguments: dict[str, Any] = {"replace": options.get("replace", False)}
    if "weights" in options:
        arguments["weights"] = rng.random(graph.num_edges)
    times = {}
    if "times" in options:
        arguments["edge_times"] = rng.integers(0, 100, graph.num_edges)
        times = {"times": rng.integers(0, 100, 5000)}
    sampler = NeighborSampler(graph, (4, 3), **arguments)
    seeds, hops = rng.permutation(20_000)[:5000], []
    first = sampler.sample(seeds, 1, **times)
    with Workers(3) as workers:
        again = sampler.sample(seeds, 1, workers=workers, found=hops.append, **times)
    assert same_bits(first, again)
    assert [len(hop) for hop in hops] == np.diff((0, *first.vertex_counts)).tolist()
    assert np.array_equal(np.concatenate(hops), first.vertices)
    assert not same_bits(first, sampler.sample(seeds, 2, **times))


def test_seeds_without_edges_and_no_seeds() -> None:
    sampler = NeighborSampler(DIRECTED, (2, 2))
    assert sampler.sample([5]).sizes == (1, 1, 1, 0, 0)
    none = sampler.sample([])
    assert none.sizes == (0, 0, 0, 0, 0)
    assert [graph.num_edges for graph in none.graphs()] == [0, 0]
    empty = NeighborSampler(Graph.from_edges([], [], 0), (2,))
    assert empty.num_seeds == 0
    assert empty.sample([]).sizes == (0, 0, 0)


def test_seeds_as_a_mask() -> None:
    mask = np.array([False, True, False, False, True])
    sampler = NeighborSampler(KITE, (2,))
    assert same_bits(sampler.sample(mask, 3), sampler.sample([1, 4], 3))


STAR = star(3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: NeighborSampler(STAR, (2, 0)),
            "NeighborSampler: fanouts[1] is 0, expected a whole number >= 1, or -1 for all "
            "neighbours: without neighbours, leave the hop out",
        ),
        (
            lambda: NeighborSampler(STAR, (2.5,)),  # type: ignore[arg-type]
            "NeighborSampler: fanouts[0] is 2.5, expected a whole number >= 1, or -1 for all "
            "neighbours: without neighbours, leave the hop out",
        ),
        (
            lambda: NeighborSampler(STAR, ()),
            "NeighborSampler: fanouts is empty, expected a number for each hop: (15, 10)",
        ),
        (
            lambda: NeighborSampler(STAR, 15),  # type: ignore[arg-type]
            "NeighborSampler: fanouts is 15, expected a number for each hop: (15, 10)",
        ),
        (
            lambda: NeighborSampler(STAR, (2,), weights=[1, -2, 3]),
            "NeighborSampler: weights holds -2, expected finite numbers >= 0: what has weight 0 is "
            "never drawn",
        ),
        (
            lambda: NeighborSampler(STAR, (2,), weights=[1, np.nan, 3]),
            "NeighborSampler: weights holds nan, expected finite numbers >= 0: what has weight 0 "
            "is never drawn",
        ),
        (
            lambda: NeighborSampler(STAR, (2,), weights=[1, 2]),
            "NeighborSampler: weights has shape (2,), expected (3,): one number per edge, in the "
            "order in which edges were given",
        ),
        (
            lambda: NeighborSampler(STAR, (2,), edge_times=[1, 2]),
            "NeighborSampler: edge_times is int64 of shape (2,), expected numbers of shape (3,)",
        ),
        (
            lambda: NeighborSampler(STAR, (2,), edge_times=[1, np.nan, 3]),
            "NeighborSampler: edge_times holds NaN, expected a time",
        ),
        (
            lambda: NeighborSampler(
                STAR, (2,), edge_times=[1, 2, 3], vertex_times=[1.0, 2.0, 3.0, 4.0]
            ),
            "NeighborSampler: edge_times and vertex_times are whole numbers and floats, expected "
            "one kind",
        ),
        (
            lambda: NeighborSampler(STAR, (2,), edge_times=[1, 2, 3], disjoint=False),
            "NeighborSampler: disjoint=False with times, expected trees of their own: seeds of "
            "different times see different neighbours; leave disjoint out",
        ),
        (
            lambda: NeighborSampler(
                Graph.from_edges([0], [0], num_src=2, num_dst=1),
                (2,),
            ),
            "NeighborSampler: the graph has 2 sources and 1 destinations, expected one vertex set: "
            "number both in one, destinations first",
        ),
        (
            lambda: NeighborSampler(np.zeros((2, 3)), (2,)),  # type: ignore[arg-type]
            "NeighborSampler: got ndarray of shape (2, 3), expected a gnnjit.Graph",
        ),
        (
            lambda: NeighborSampler(STAR, (2,)).sample([0, 4]),
            "NeighborSampler.sample: seeds[1] is 4, expected a vertex from 0 to 3: number vertices "
            "as the graph does",
        ),
        (
            lambda: NeighborSampler(STAR, (2,)).sample([0.5]),
            "NeighborSampler.sample: seeds is float64 of shape (1,), expected vertex numbers of "
            "shape [n], or a mask bool[4]",
        ),
        (
            lambda: NeighborSampler(STAR, (2,)).sample([0], times=[1]),
            "NeighborSampler.sample: got times, and the sampler has none: pass edge_times or "
            "vertex_times to NeighborSampler",
        ),
        (
            lambda: NeighborSampler(STAR, (2,), edge_times=[1, 2, 3]).sample([0]),
            "NeighborSampler.sample: times is missing, expected the time of each seed",
        ),
        (
            lambda: NeighborSampler(STAR, (2,), edge_times=[1, 2, 3]).sample([0], times=[1, 2]),
            "NeighborSampler.sample: times is int64 of shape (2,), expected int64 of shape (1,): "
            "one time per seed",
        ),
        (
            lambda: NeighborSampler(STAR, (2,)).sample([0], seed=2**64),
            "NeighborSampler.sample: seed is 18446744073709551616, expected a whole number from 0 "
            "to 2**64 - 1: pass another for each batch",
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(SampleError) as caught:
        make()
    assert str(caught.value) == message


def test_marginals_of_successive_draws() -> None:
    """What the tests above compare with: by hand, for two draws of weights 1, 2, 3."""
    chances = successive([1, 2, 3], 2)
    assert chances[0, 1] == pytest.approx(1 / 6 * 2 / 5 + 2 / 6 * 1 / 4)
    first = marginal(chances, lambda chosen: 0 in chosen)
    assert first[True] == pytest.approx(1 / 6 + 2 / 6 * 1 / 4 + 3 / 6 * 1 / 3)
