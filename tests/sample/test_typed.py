"""Samples of typed graphs, against exact chances, samples of each relation by hand, and the graph
itself; batches of them, and training on those."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from gnnjit import TypedGraph, nn
from gnnjit.errors import GraphError, SampleError
from gnnjit.sample import Loader, NeighborSampler, TypedNeighborSampler, TypedSample, Workers
from sample.exact import check_chances, check_same, check_stream, random_graph, typed_edges_of

DRAWS = 3000
SIZES = {"author": 12, "paper": 20, "venue": 4, "alone": 3}
RNG = np.random.default_rng(0)


def ends(first: str, last: str, count: int) -> np.ndarray:
    """Edges with duplicates; the last vertex of each type has none, vertex 0 is a hub."""
    out = np.stack([RNG.integers(0, SIZES[t] - 1, count) for t in (first, last)])
    out[1, : count // 3] = 0
    return out


EDGES = {
    ("author", "writes", "paper"): ends("author", "paper", 40),
    ("paper", "cites", "paper"): ends("paper", "paper", 40),
    ("venue", "prints", "paper"): ends("venue", "paper", 25),
    ("paper", "by", "author"): ends("paper", "author", 30),
}
GRAPH = TypedGraph.from_edges(EDGES, SIZES)
SCHEMA: Any = {"types": GRAPH.types, "relations": GRAPH.relations}


@pytest.mark.parametrize("disjoint", [False, True])
def test_what_is_drawn(disjoint: bool) -> None:
    fanouts = {"writes": (3, 1), "cites": (2, -1), "prints": (0, 4), "by": (5, 5)}
    sampler = TypedNeighborSampler(GRAPH, fanouts, seed_type="paper", disjoint=disjoint)
    seeds = [0, 7, 19, 7]
    sample = sampler.sample(seeds, 3)
    assert sample.vertices["paper"][sample.seeds].tolist() == seeds
    assert len(set(sample.seeds.tolist())) == (4 if disjoint else 3)
    for t, found in sample.vertices.items():
        trees = np.zeros(len(found)) if sample.tree is None else sample.tree[t]
        assert len(set(zip(trees, found, strict=True))) == len(found)
        assert sample.vertex_counts[t][-1] == len(found)
    for key in GRAPH.relations:
        src, dst = EDGES[key]
        assert all((src[e], dst[e]) == (u, v) for u, v, e in typed_edges_of(sample, key))
        degree = np.bincount(dst, minlength=SIZES[key[2]])
        count, counts = np.diff(sample.drawn[key].indptr), sample.vertex_counts[key[2]]
        assert len(count) == counts[1]  # what the last hop finds draws nothing
        for row, got in enumerate(count):
            fanout = fanouts[key[1]][0 if row < counts[0] else 1]
            held = degree[sample.vertices[key[2]][row]]
            assert got == (held if fanout < 0 else min(fanout, held))
        if sample.tree is not None:
            rows = np.repeat(np.arange(len(count)), count)
            of_sources = sample.tree[key[0]][sample.drawn[key].neighbor]
            assert np.array_equal(of_sources, sample.tree[key[2]][rows])
    assert sample.sizes[3] == 0  # no relation ends or begins there


KINDS = {
    "rgcn": lambda widths, out: nn.RGCN(widths, out, **SCHEMA, rngs=nnx.Rngs(0)),
    "hgt": lambda widths, out: nn.HGT(widths, out, heads=2, **SCHEMA, rngs=nnx.Rngs(0)),
}
BOTH = ["rgcn", pytest.param("hgt", marks=pytest.mark.long)]
WIDTHS = {"author": 3, "paper": 4, "venue": 2, "alone": 2}
X = {t: RNG.normal(size=(n, WIDTHS[t])).astype(np.float32) for t, n in SIZES.items()}


@pytest.mark.parametrize("kind", BOTH)
def test_all_neighbours_give_the_numbers_of_the_whole_graph(kind: str) -> None:
    first, second = KINDS[kind](WIDTHS, 6), KINDS[kind](6, 4)

    @jax.jit
    def model(graph: Any, x: Any) -> Any:
        return second(graph, {t: jnp.tanh(h) for t, h in first(graph, x).items()})["paper"]

    sample = TypedNeighborSampler(GRAPH, (-1, -1), seed_type="paper").sample([0, 19, 4, 4])
    want = model(GRAPH, X)[np.array([0, 19, 4, 4])]
    rows = {t: X[t][found] for t, found in sample.vertices.items()}
    graph = sample.graph(tuple(n + 7 for n in sample.sizes))
    padded = {
        t: np.concatenate([r, np.full((7, r.shape[1]), np.nan, np.float32)])
        for t, r in rows.items()
    }
    got = model(jax.device_put(graph), padded)[sample.seeds]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


STAR = TypedGraph.from_edges(
    {
        ("a", "r", "b"): ([0, 1, 2], [0, 0, 0]),
        ("b", "s", "b"): ([1, 2, 3, 4], [0, 0, 0, 0]),
        ("b", "t", "a"): ([1, 2, 1, 3, 4], [0, 0, 1, 1, 2]),
    },
    {"a": 3, "b": 5},
)


def test_relations_are_drawn_from_independently() -> None:
    sampler = TypedNeighborSampler(STAR, (2,), seed_type="b")
    draws = (sampler.sample([0], seed).edge for seed in range(DRAWS))
    got = [tuple(tuple(sorted(draw[key].tolist())) for key in STAR.relations[:2]) for draw in draws]
    sets = [list(itertools.combinations(range(n), 2)) for n in (3, 4)]
    check_chances(got, dict.fromkeys(itertools.product(*sets), 1 / 18))


def test_two_hops_have_the_chances_of_a_walk() -> None:
    """`b <- r - a <- t - b`: what the second hop draws depends on the first alone."""
    sampler = TypedNeighborSampler(STAR, {"r": (1, 0), "s": (0, 0), "t": (0, 1)}, seed_type="b")
    draws = (sampler.sample([0], seed).edge for seed in range(DRAWS))
    got = [(int(d["a", "r", "b"][0]), int(d["b", "t", "a"][0])) for d in draws]
    chances = {(0, 0): 1 / 6, (0, 1): 1 / 6, (1, 2): 1 / 6, (1, 3): 1 / 6, (2, 4): 1 / 3}
    check_chances(got, chances)


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"weights": True}], ids=str)
def test_each_relation_is_as_its_graph_sampled_by_hand(options: dict[str, bool]) -> None:
    parts = {name: random_graph(9, 14, seed) for seed, name in enumerate(("one", "two"))}
    graph = TypedGraph.from_graphs({("n", name, "n"): part for name, part in parts.items()})
    weights = {name: RNG.random(part.num_edges) for name, part in parts.items()}
    replace = options.get("replace", False)
    given = weights if "weights" in options else None
    sampler = TypedNeighborSampler(graph, (2,), seed_type="n", replace=replace, weights=given)
    samples = [sampler.sample([0, 5], seed) for seed in range(DRAWS // 2)]
    for name, part in parts.items():
        of_one = None if given is None else given[name]
        by_hand = NeighborSampler(part, (2,), replace=replace, weights=of_one)
        want = [tuple(sorted(by_hand.sample([0, 5], s).edge.tolist())) for s in range(DRAWS // 2)]
        check_same([tuple(sorted(s.edge["n", name, "n"].tolist())) for s in samples], want)


def test_threads_give_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    sizes = {"a": 8000, "b": 9000}
    keys = [("a", "r", "b"), ("b", "s", "b"), ("b", "t", "a")]
    edges = {k: np.stack([rng.integers(0, sizes[t], 40_000) for t in (k[0], k[2])]) for k in keys}
    sampler = TypedNeighborSampler(TypedGraph.from_edges(edges, sizes), (4, 3), seed_type="b")
    seeds = rng.permutation(9000)[:4000]

    def leaves(sample: TypedSample) -> list[np.ndarray]:
        drawn = [(d.indptr, d.neighbor, d.slots) for d in sample.drawn.values()]
        return jax.tree.leaves((sample.vertices, sample.seeds, drawn))

    first = leaves(sampler.sample(seeds, 1))
    with Workers(3) as workers:
        again = leaves(sampler.sample(seeds, 1, workers=workers))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, leaves(sampler.sample(seeds, 2))))


def test_nothing_is_later_than_its_seed() -> None:
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    when = {cites: RNG.integers(0, 50, 40), writes: RNG.integers(0, 50, 40)}
    born = RNG.integers(0, 50, SIZES["author"])
    sampler = TypedNeighborSampler(
        GRAPH, (-1, -1), seed_type="paper", edge_times={"cites": when[cites], writes: when[writes]},
        vertex_times={"author": born},
    )  # fmt: skip
    seeds, times = [0, 0, 1, 2], np.array([50, 20, 30, 10])
    sample = sampler.sample(seeds, times=times)
    assert sampler.disjoint
    assert sample.tree is not None
    for key in GRAPH.relations:
        rows = np.repeat(
            np.arange(sample.vertex_counts[key[2]][1]), np.diff(sample.drawn[key].indptr)
        )
        latest = times[sample.tree[key[2]][rows]]
        if key in when:
            assert (when[key][sample.edge[key]] <= latest).all()
        if key[0] == "author":
            assert (born[sample.vertices["author"][sample.drawn[key].neighbor]] <= latest).all()
    for number, (seed, time) in enumerate(zip(seeds, times, strict=True)):
        src, dst = EDGES[writes]
        there = (dst == seed) & (when[writes] <= time) & (born[src] <= time)
        row = sample.drawn[writes].indptr[number : number + 2]
        assert row[1] - row[0] == there.sum()


# --------------------------------------------------------------------------------------- the loader

SAMPLER = TypedNeighborSampler(GRAPH, (3, 2), seed_type="paper")
Y = np.arange(SIZES["paper"]) % 3


def loader(**options: Any) -> Loader:
    data = {"writes": np.arange(40), "cites": {"w": np.arange(40.0)}}
    arguments: dict[str, Any] = {"batch_size": 6, "shapes": 2, "edges": data} | options
    return Loader(SAMPLER, X, Y, **arguments)


@pytest.mark.parametrize("shapes", [2, None])
def test_rows_belong_to_their_vertices_and_edges(shapes: Any) -> None:
    seen = []
    for batch in loader(shapes=shapes, threads=0):
        (graph,) = batch.graphs
        for t, count in graph.num_nodes.items():
            real = int(batch.num_real[t][-1])
            assert np.array_equal(batch.x[t][:real], X[t][batch.vertices[t][:real]])
            assert not np.any(batch.x[t][real:])
            assert (np.asarray(batch.vertices[t][real:]) == SIZES[t]).all()
            assert len(batch.x[t]) == len(batch.vertices[t]) == count
        for key, (src, dst) in EDGES.items():
            part = graph[key]
            mask = np.ones(part.num_edges, bool) if part.mask is None else np.asarray(part.mask)
            if key[1] not in ("writes", "cites"):
                continue
            data = batch.edges_of(0)[key]
            number = np.asarray(data if key[1] == "writes" else data["w"]).astype(int)
            assert np.array_equal(src[number][mask], batch.vertices[key[0]][part.src][mask])
            assert np.array_equal(dst[number][mask], batch.vertices[key[2]][part.dst][mask])
        mask = np.asarray(batch.mask)
        papers = np.asarray(batch.vertices["paper"])[np.asarray(batch.seeds)[mask]]
        assert np.array_equal(np.asarray(batch.y)[mask], Y[papers])
        seen += papers.tolist()
    assert sorted(seen) == list(range(SIZES["paper"]))


def test_threads_and_resuming_do_not_change_the_stream() -> None:
    check_stream(loader)


def test_batches_that_fit_no_shape_are_split() -> None:
    shapes = loader().shapes
    assert shapes is not None
    few = type(shapes)((tuple(n // 2 for n in shapes[-1]),), shapes.cost)
    some = loader(shapes=few)
    seen = [int(v) for b in some for v in np.asarray(b.vertices["paper"])[b.seeds[b.mask]]]
    assert sorted(seen) == list(range(SIZES["paper"]))
    assert some.report().splits > 0


@pytest.mark.parametrize("kind", BOTH)
def test_a_sampled_model_trains(kind: str) -> None:
    """The label of a paper is that of most of its authors, who show it."""
    rng = np.random.default_rng(2)
    authors, papers = 60, 200
    kinds, labels = rng.integers(0, 2, authors), rng.integers(0, 2, papers)
    dst = np.repeat(np.arange(papers), 5)
    src = np.where(rng.random(len(dst)) < 0.85, labels[dst], 1 - labels[dst])
    src = np.array([rng.choice(np.flatnonzero(kinds == k)) for k in src])
    graph = TypedGraph.from_edges(
        {("author", "writes", "paper"): (src, dst)}, {"author": authors, "paper": papers}
    ).with_reverse()
    schema: Any = {"types": graph.types, "relations": graph.relations}
    x = {"author": np.eye(2, dtype=np.float32)[kinds], "paper": np.ones((papers, 2), np.float32)}
    make = nn.RGCN if kind == "rgcn" else nn.HGT
    module = make(2, 2, **schema, rngs=nnx.Rngs(0))
    definition, params = nnx.split(module)
    optimizer = optax.adam(0.05)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = nnx.merge(definition, params)(batch.graphs[0], batch.x)["paper"][batch.seeds]
            each = optax.softmax_cross_entropy_with_integer_labels(logits, batch.y)
            return jnp.where(batch.mask, each, 0).sum() / batch.mask.sum()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    sampler = TypedNeighborSampler(graph, (4,), seed_type="paper")
    batches = Loader(sampler, x, labels, seeds=np.arange(150), batch_size=50, shapes=1)
    for _ in range(12):
        for batch in batches:
            params, state = step(params, state, batch)
    logits = nnx.merge(definition, params)(graph, x)["paper"]
    most = np.bincount(dst[kinds[src] == 1], minlength=papers) > 2  # what can be known
    assert (np.asarray(logits.argmax(1)) == most)[150:].mean() > 0.95


PAPER = {"seed_type": "paper"}


def make(fanouts: Any = (2,), graph: Any = GRAPH, **options: Any) -> TypedNeighborSampler:
    return TypedNeighborSampler(graph, fanouts, **PAPER | options)


WHERE = "TypedNeighborSampler"
ONE = TypedGraph.from_edges({("a", "to", "b"): ([0], [0])})
MISTAKES: dict[str, tuple[Any, str]] = {
    "a graph of one type": (
        lambda: make(graph=random_graph(3, 3)),
        f"{WHERE}: got Graph(3 vertices, 6 edges), expected a gnnjit.TypedGraph: a gnnjit.Graph is "
        "sampled by NeighborSampler",
    ),
    "no relations": (
        lambda: make(graph=GRAPH.select([])),
        f"{WHERE}: the graph has no relations, expected one at least: without any there is nothing "
        "to draw",
    ),
    "the sampler of one type": (
        lambda: NeighborSampler(ONE, (2,)),  # type: ignore[arg-type]
        f"NeighborSampler: got {ONE}, expected a gnnjit.Graph: a TypedGraph is sampled by "
        "TypedNeighborSampler alone",
    ),
    "a type": (
        lambda: make(seed_type="papers"),
        "'papers' is no vertex type of the graph; it has 'author', 'paper', 'venue', 'alone': pass "
        "one of these",
    ),
    "a fan-out": (
        lambda: make((2, 0)),
        f"{WHERE}: fanouts[1] is 0, expected a whole number >= 1, or -1 for all neighbours: "
        "without neighbours, leave the hop out",
    ),
    "a fan-out of a relation": (
        lambda: make({"writes": (2, -3)}),
        f"{WHERE}: ('author', 'writes', 'paper'): fanouts[1] is -3, expected a whole number >= 0, "
        "or -1 for all neighbours",
    ),
    "a relation without fan-outs": (
        lambda: make({"writes": (2,), "cites": (2,), "by": (1,)}),
        f"{WHERE}: fanouts has none for ('venue', 'prints', 'paper'), expected a number for each "
        "hop of every relation: write (0, 0) for one that is not drawn from in two hops",
    ),
    "hops": (
        lambda: make({"writes": (2, 1), "cites": (2,), "by": (1,), "prints": (1,)}),
        f"{WHERE}: fanouts have 1 and 2 hops, expected as many for each relation: write 0 for a "
        "hop that draws nothing from one",
    ),
    "a relation twice": (
        lambda: make({"writes": (2,), ("author", "writes", "paper"): (1,)}),
        f"{WHERE}: fanouts has ('author', 'writes', 'paper') twice, by its name too, expected it "
        "once: leave one out",
    ),
    "weights of all": (
        lambda: make(weights=np.ones(40)),
        f"{WHERE}: weights is ndarray of shape (40,), expected a dictionary from relations: pass "
        "{relation: ...}",
    ),
    "a weight": (
        lambda: make(weights={"writes": -np.ones(40)}),
        f"{WHERE}: ('author', 'writes', 'paper'): weights holds -1, expected finite numbers >= 0: "
        "what has weight 0 is never drawn",
    ),
    "kinds of times": (
        lambda: make(edge_times={"writes": np.arange(40), "cites": np.arange(40.0)}),
        f"{WHERE}: times are whole numbers and floats (('author', 'writes', 'paper'): int64, "
        "('paper', 'cites', 'paper'): float64), expected one kind",
    ),
    "shared trees": (
        lambda: make(edge_times={"writes": np.arange(40)}, disjoint=False),
        f"{WHERE}: disjoint=False with times, expected trees of their own: seeds of different "
        "times see different neighbours; leave disjoint out",
    ),
    "a seed": (
        lambda: SAMPLER.sample([20]),
        f"{WHERE}.sample: seeds[0] is 20, expected a vertex from 0 to 19: number vertices of type "
        "'paper' as the graph does",
    ),
    "times of none": (
        lambda: SAMPLER.sample([1], times=[1]),
        f"{WHERE}.sample: got times, and the sampler has none: pass edge_times or vertex_times to "
        f"{WHERE}",
    ),
    "a small shape": (
        lambda: SAMPLER.sample([19]).graph((1,) * 7),
        "TypedSample.graph: shape is (1, 1, 1, 1, 1, 1, 1), expected at least (0, 1, 0, 0, 0, 0, "
        "0, 0): nothing is cut off, so pass a larger one",
    ),
    "features of one type": (
        lambda: Loader(SAMPLER, X["paper"]),
        "Loader: x is ndarray of shape (20, 4), expected a dictionary from vertex types to "
        "features: pass {'paper': x, ...}",
    ),
    "rows of a type": (
        lambda: Loader(SAMPLER, {"venue": X["paper"]}),
        "Loader: x['venue'] has shape (20, 4), expected (4, ...): one row for each, in the graph's "
        "numbering",
    ),
    "kept rows": (
        lambda: Loader(SAMPLER, X, hot_rows=3),
        "Loader: got hot_rows with a TypedNeighborSampler, expected none: rows are kept on the "
        "device for graphs of one type alone; leave hot_rows out",
    ),
    "labels of all": (
        lambda: Loader(SAMPLER, X, labelled=[3]),
        "Loader: got labelled with a TypedNeighborSampler, expected seeds: their labels are those "
        "that count",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_messages(name: str) -> None:
    call, message = MISTAKES[name]
    with pytest.raises((SampleError, GraphError)) as caught:
        call()
    assert str(caught.value) == message
