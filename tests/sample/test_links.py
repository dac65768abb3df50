"""Negatives by their exact chances; links as seeds, and what must not leak."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from graph.strategies import edge_lists
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.errors import SampleError
from gnnjit.graph import Graph
from gnnjit.sample import (
    FrontierSampler,
    HopSampler,
    LinkSample,
    LinkSampler,
    NegativeSampler,
    NeighborSampler,
    Sample,
    Workers,
)
from gnnjit.sample.links import without_edges
from sample.exact import (
    DIRECTED,
    KITE,
    check_chances,
    check_sample,
    edges_of,
    random_graph,
    same_bits,
)

# ---- negatives


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    return set(zip(np.asarray(graph.src).tolist(), np.asarray(graph.dst).tolist(), strict=True))


def tried(chances: dict[int, float], u: int, graph: Graph, tries: int) -> dict[Any, float]:
    """The chance of (vertex, false) after at most `tries` draws by `chances`."""
    edges = edge_set(graph)
    bad = {v: v == u or (u, v) in edges for v in chances}
    again = sum(chance for v, chance in chances.items() if bad[v])
    return {
        (v, bad[v]): chance
        * (again ** (tries - 1) if bad[v] else sum(again**t for t in range(tries)))
        for v, chance in chances.items()
    }


@pytest.mark.parametrize("tries", [1, 2, 10])
@pytest.mark.parametrize("by", ["uniform", "degree", "batch"])
@pytest.mark.parametrize("graph", [KITE, DIRECTED], ids=["symmetric", "directed"])
def test_negatives_have_their_chances(graph: Graph, by: Any, tries: int) -> None:
    n = graph.num_nodes
    weights = np.ones(n)
    src, dst = np.full(6000, 3), np.zeros(6000, np.int64)
    if by == "degree":
        weights = np.bincount(graph.dst, minlength=n) ** 0.75
    elif by == "batch":
        dst = np.arange(6000) % 4
        weights = np.bincount(dst, minlength=n)
    sampler = NegativeSampler(graph, by=by, tries=tries)
    got = sampler.sample(src, dst, seed=4)
    draws = zip(got.dst[:, 0].tolist(), got.false[:, 0].tolist(), strict=True)
    chances = dict(enumerate((weights / weights.sum()).tolist()))
    check_chances(draws, tried(chances, 3, graph, tries))
    assert got.left == got.false.sum()


def test_negatives_of_a_link_are_drawn_each_for_itself() -> None:
    got = NegativeSampler(KITE, count=2, tries=40).sample(
        np.full(5000, 4), np.zeros(5000, np.int64)
    )
    chances = {(a, b): 1 / 9 for a in (0, 1, 2) for b in (0, 1, 2)}
    check_chances(map(tuple, got.dst.tolist()), chances)


@given(edge_lists(masked=False), st.integers(1, 3), st.integers(0, 9))
def test_what_is_marked_is_an_edge_and_the_rest_is_none(edges, count, seed) -> None:
    graph = Graph.from_edges(edges.src, edges.dst, edges.num_dst)
    src = np.arange(graph.num_nodes)
    got = NegativeSampler(graph, count=count, tries=2).sample(src, src, seed)
    known = edge_set(graph)
    for u, row, false in zip(src.tolist(), got.dst.tolist(), got.false.tolist(), strict=True):
        assert [v == u or (u, v) in known for v in row] == false


def test_negatives_are_of_the_destinations() -> None:
    sampler = NegativeSampler(KITE, destinations=[1, 4], count=4)
    got = sampler.sample([0, 1], [1, 0])
    assert set(got.dst[1].tolist()) == {4}
    assert set(np.unique(got.dst)) <= {1, 4}
    assert not got.false[0, got.dst[0] == 4].any()


# ---- links

LINKS = np.array([[1, 0], [3, 4], [2, 2], [1, 0]]).T


def test_pairs_are_the_links_and_the_negatives() -> None:
    negatives = NegativeSampler(KITE, count=2)
    sampler = LinkSampler(NeighborSampler(KITE, (2, 1)), *LINKS, negatives=negatives)
    sample = sampler.sample([3, 1], 7)
    assert (sampler.num_seeds, sampler.num_layers) == (4, 2)
    src, dst = sample.vertices[sample.link_src], sample.vertices[sample.link_dst]
    assert src.tolist() == [1, 3, 1, 1, 3, 3]
    assert dst[:2].tolist() == [0, 4]
    assert sample.label.tolist() == [1, 1, 0, 0, 0, 0]
    known = edge_set(KITE)
    wrong = [u == v or (u, v) in known for u, v in zip(src.tolist(), dst.tolist(), strict=True)]
    assert wrong[2:] == sample.false[2:].tolist()
    assert not sample.false[:2].any()
    check_sample(KITE, sample)


def test_negatives_are_of_the_same_graph() -> None:
    with pytest.raises(SampleError) as raised:
        LinkSampler(HopSampler(KITE), *LINKS, negatives=NegativeSampler(DIRECTED))
    assert str(raised.value) == (
        "LinkSampler: negatives are of a graph of 6 sources and 6 destinations, expected 5 and 5: "
        "make the NegativeSampler of the graph that the links are of"
    )


def test_without_negatives_there_are_the_links_alone() -> None:
    sample = LinkSampler(HopSampler(KITE, hops=0), *LINKS).sample([0, 1])
    assert sample.label.tolist() == [1, 1]
    assert sample.vertices.tolist() == [1, 3, 0, 4]
    assert sample.is_subgraph


def leaks(sample: Sample, links: Any) -> set[tuple[int, int]]:
    return {(u, v) for u, v, _ in edges_of(sample)} & {tuple(link) for link in links}


@pytest.mark.parametrize("make", [lambda g: NeighborSampler(g, (-1, -1)), HopSampler])
@pytest.mark.parametrize("exclude", ["both", "links", "nothing"])
def test_links_that_are_predicted_carry_no_messages(make: Any, exclude: Any) -> None:
    graph = random_graph(40, 100)
    ends = np.stack([np.asarray(graph.src), np.asarray(graph.dst)])[:, :30]
    inner = make(graph)
    sample = LinkSampler(inner, *ends, exclude=exclude).sample(np.arange(30), 3)
    check_sample(graph, sample)
    there, back = leaks(sample, ends.T.tolist()), leaks(sample, ends[::-1].T.tolist())
    assert bool(there) == (exclude == "nothing")
    assert bool(back - set(map(tuple, ends.T.tolist()))) == (exclude != "both")
    # And all others do.
    whole = inner.sample(np.concatenate(ends), 3)
    gone = set(map(tuple, ends.T.tolist() if exclude != "nothing" else []))
    gone |= set(map(tuple, ends[::-1].T.tolist() if exclude == "both" else []))
    wanted = [edge for edge in edges_of(whole) if edge[:2] not in gone]
    assert list(edges_of(sample)) == wanted
    assert len(sample.graphs()) == (2 if sampler_has_blocks(sample) else 1)


def sampler_has_blocks(sample: Sample) -> bool:
    return not sample.is_subgraph


def test_taking_edges_out_keeps_the_weights_of_the_others() -> None:
    sample = HopSampler(KITE, hops=0).sample(np.arange(5))
    weights = np.arange(10, dtype=np.float32)
    less = without_edges(
        dataclasses.replace(sample, edge_weight=weights), np.array([0]), np.array([2]), 5
    )
    gone = next(i for i, edge in enumerate(edges_of(sample)) if edge[:2] == (0, 2))
    assert less.edge_weight is not None
    assert less.edge_weight.tolist() == np.delete(weights, gone).tolist()
    assert list(edges_of(less)) == [e for i, e in enumerate(edges_of(sample)) if i != gone]


@given(st.lists(st.integers(0, 9), min_size=10, max_size=10), st.integers(0, 99))
def test_links_see_nothing_later_than_they_are(link_times, seed) -> None:
    graph = random_graph(12, 40)
    edge_times = np.arange(80) % 10
    inner = NeighborSampler(graph, (3, 2), edge_times=edge_times)
    ends = np.asarray(graph.src)[:10], np.asarray(graph.dst)[:10]
    sampler = LinkSampler(
        inner, *ends, times=link_times, negatives=NegativeSampler(graph), exclude="nothing"
    )
    chosen = [3, 9, 1, 3]
    sample = sampler.sample(chosen, seed)
    own = np.array(link_times)[chosen]
    of_tree = np.concatenate([own, own, own])
    rows = np.repeat(np.arange(len(sample.indptr) - 1), np.diff(sample.indptr))
    assert sample.tree is not None
    assert (edge_times[sample.edge] <= of_tree[sample.tree[rows]]).all()
    assert sample.tree[sample.link_src].tolist() == [0, 1, 2, 3] * 2
    assert sample.vertices[sample.link_dst[:4]].tolist() == ends[1][chosen].tolist()


def test_threads_give_the_same_bits() -> None:
    graph = random_graph(20_000, 60_000, hubs=2)
    ends = np.asarray(graph.src), np.asarray(graph.dst)
    negatives = NegativeSampler(graph, by="degree", count=2)
    sampler = LinkSampler(NeighborSampler(graph, (3, 2)), *ends, negatives=negatives)
    first = sampler.sample(np.arange(5000), 3)
    with Workers(3) as workers:
        assert same_bits(first, sampler.sample(np.arange(5000), 3, workers=workers))
    assert isinstance(first, LinkSample)
    assert not same_bits(first, sampler.sample(np.arange(5000), 4))


TIMED = NeighborSampler(KITE, (2,), edge_times=np.arange(10))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: NegativeSampler(KITE, by="in-batch"),  # type: ignore[arg-type]
            "NegativeSampler: by is 'in-batch', expected one of uniform, degree, batch",
        ),
        (
            lambda: NegativeSampler(KITE, tries=0),
            "NegativeSampler: tries is 0, expected a number from 1 to 2147483647",
        ),
        (
            lambda: NegativeSampler(KITE, by="degree", power=np.nan),
            "NegativeSampler: power is nan, expected a finite number",
        ),
        (
            lambda: NegativeSampler(KITE, by="batch", destinations=[1]),
            "NegativeSampler: got destinations with by='batch', expected none: those of the "
            "batch's links are drawn",
        ),
        (
            lambda: NegativeSampler(Graph.from_edges([], [], 0)),
            "NegativeSampler: there are 0 destinations in a graph of 0 vertices, expected at least "
            "one to draw",
        ),
        (
            lambda: NegativeSampler(Graph.from_edges([], [], 3), by="degree"),
            "NegativeSampler: no entry of degrees to the power, of 3, is above 0, expected at "
            "least one: nothing can be drawn",
        ),
        (
            lambda: NegativeSampler(KITE).sample([0, 1], [2]),
            "NegativeSampler.sample: src has 2 entries and dst has 1, expected one of each per "
            "link",
        ),
        (
            lambda: NegativeSampler(KITE).sample([0, 5], [2, 2]),
            "NegativeSampler.sample: src[1] is 5, expected a vertex from 0 to 4: number vertices "
            "as the graph does",
        ),
        (
            lambda: LinkSampler(TIMED, *LINKS),
            "LinkSampler: times is missing, expected the time of each link where, and only where, "
            "the sampler has times",
        ),
        (
            lambda: LinkSampler(HopSampler(KITE), *LINKS, times=[1, 2, 3, 4]),
            "LinkSampler: times was given, expected the time of each link where, and only where, "
            "the sampler has times",
        ),
        (
            lambda: LinkSampler(TIMED, *LINKS, times=[1, 2]),
            "LinkSampler: times has shape (2,), expected (4,): one time per link",
        ),
        (
            lambda: LinkSampler(TIMED, *LINKS, exclude="all"),  # type: ignore[arg-type]
            "LinkSampler: exclude is 'all', expected one of both, links, nothing",
        ),
        (
            lambda: LinkSampler(HopSampler(KITE), *LINKS).sample([4]),
            "LinkSampler.sample: seeds[0] is 4, expected a link from 0 to 3",
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(SampleError) as caught:
        make()
    assert str(caught.value) == message


def test_samplers_without_vertex_seeds_are_refused() -> None:
    sampler: Any = FrontierSampler(KITE, frontier=2, vertices=4)
    with pytest.raises(SampleError, match=r"^LinkSampler: sampler is .*, expected one whose seeds"):
        LinkSampler(sampler, *LINKS)
