"""Links of typed graphs as seeds: what is drawn, what must not leak, and batches of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from gnnjit import TypedGraph, nn
from gnnjit.errors import GraphError, SampleError
from gnnjit.sample import (
    LinkSampler,
    Loader,
    NegativeSampler,
    NeighborSampler,
    TypedLinkSample,
    TypedLinkSampler,
    TypedNeighborSampler,
    Workers,
)
from sample.exact import check_chances, check_stream, random_graph, typed_edges_of

RNG = np.random.default_rng(0)
SIZES = {"user": 15, "item": 11, "shop": 4}
RATES = ("user", "rates", "item")
SELLS = ("shop", "sells", "item")
LIKES = ("user", "likes", "user")
BACK = ("item", "rev_rates", "user")


def drawn_edges(key: tuple[str, str, str], count: int) -> np.ndarray:
    return np.stack([RNG.integers(0, SIZES[t], count) for t in (key[0], key[2])])


COUNTS = {RATES: 40, SELLS: 12, LIKES: 30}
EDGES = {key: drawn_edges(key, count) for key, count in COUNTS.items()}
GRAPH = TypedGraph.from_edges(EDGES, SIZES).with_reverse(["rates"])
ALL = TypedNeighborSampler(GRAPH, (-1, -1))


def ends_of(sample: TypedLinkSample) -> np.ndarray:
    """`[2, P]`: both ends of each pair, in numbers of the graph."""
    first, _, last = sample.relation
    return np.stack(
        [sample.vertices[first][sample.link_src], sample.vertices[last][sample.link_dst]]
    )


# ------------------------------------------------------------------------------------- negatives


@pytest.mark.parametrize("by", ["uniform", "degree", "batch"])
def test_negatives_between_two_types_have_their_chances(by: Any) -> None:
    """User 1 rates items 0 and 2; the item of its own number is a negative like any other."""
    src, dst = [1, 1, 0, 0, 2], [0, 2, 1, 3, 3]
    graph = TypedGraph.from_edges({RATES: (src, dst)}, {"user": 3, "item": 4})["rates"]
    links = np.full(5000, 1), np.arange(5000) % 4
    weights = np.bincount(dst, minlength=4) ** 0.75 if by == "degree" else np.ones(4)
    got = NegativeSampler(graph, by=by, tries=50).sample(*links, seed=3)
    free = weights[[1, 3]] / weights[[1, 3]].sum()
    check_chances(got.dst[:, 0].tolist(), {1: free[0], 3: free[1]})
    assert not got.left


@given(st.integers(0, 99))
def test_what_is_marked_is_an_edge_and_the_rest_is_none(seed: int) -> None:
    got = NegativeSampler(GRAPH["rates"], count=3, tries=1).sample(
        np.arange(15), np.zeros(15, int), seed
    )
    known = set(zip(*EDGES[RATES].tolist(), strict=True))
    for u, (row, false) in enumerate(zip(got.dst.tolist(), got.false.tolist(), strict=True)):
        assert [(u, v) in known for v in row] == false
    assert got.dst.max() < SIZES["item"]


# ----------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("disjoint", [False, True])
def test_pairs_are_the_links_and_their_negatives(disjoint: bool) -> None:
    sampler = TypedLinkSampler(
        TypedNeighborSampler(GRAPH, (2, 1), disjoint=disjoint), "rates", *EDGES[RATES],
        negatives=NegativeSampler(GRAPH["rates"], count=2),
    )  # fmt: skip
    chosen = [3, 30, 3, 11]
    sample = sampler.sample(chosen, 7)
    src, dst = ends_of(sample)
    assert (sampler.num_seeds, sampler.relation, sample.relation) == (40, RATES, RATES)
    assert src.tolist() == [*EDGES[RATES][0][chosen], *np.repeat(EDGES[RATES][0][chosen], 2)]
    assert dst[:4].tolist() == EDGES[RATES][1][chosen].tolist()
    assert sample.link.tolist() == [*chosen, *np.repeat(chosen, 2)]
    assert sample.label.tolist() == [1] * 4 + [0] * 8
    known = set(zip(*EDGES[RATES].tolist(), strict=True))
    wrong = [pair in known for pair in zip(src.tolist(), dst.tolist(), strict=True)]
    assert sample.false.tolist() == [False] * 4 + wrong[4:]
    for key in GRAPH.relations:
        want = EDGES[RATES][::-1] if key == BACK else EDGES[key]
        assert all((want[0][e], want[1][e]) == (u, v) for u, v, e in typed_edges_of(sample, key))
    if not disjoint:
        assert sample.tree is None
        assert all(len(set(found)) == len(found) for found in sample.vertices.values())
        return
    assert sample.tree is not None
    assert sample.tree["user"][sample.link_src].tolist() == [0, 1, 2, 3, *np.repeat(range(4), 2)]
    assert sample.tree["item"][sample.link_dst].tolist() == list(range(4, 16))


def plain_edges(sample: TypedLinkSample, key: Any, gone: set[tuple[int, int]]) -> set[Any]:
    """All edges into the vertices that draw (those within one hop), without what is excluded."""
    ends = EDGES[RATES][::-1] if key == BACK else EDGES[key]
    rows = set(sample.vertices[key[2]][: sample.vertex_counts[key[2]][1]].tolist())
    every = zip(*ends.tolist(), range(ends.shape[1]), strict=True)
    return {(u, v, e) for u, v, e in every if v in rows and (u, v) not in gone}


@pytest.mark.parametrize("exclude", ["both", "links", "nothing"])
@pytest.mark.parametrize("key", [RATES, LIKES, SELLS], ids=lambda key: key[1])
def test_links_that_are_predicted_carry_no_messages(key: Any, exclude: Any) -> None:
    sampler = TypedLinkSampler(ALL, key, *EDGES[key], exclude=exclude)
    chosen = np.arange(0, EDGES[key].shape[1], 3)
    sample = sampler.sample(chosen, 3)
    there = {(u, v) for u, v in EDGES[key][:, chosen].T.tolist()}
    back = {(v, u) for u, v in there}
    gone: dict[Any, set[tuple[int, int]]] = {other: set() for other in GRAPH.relations}
    if exclude != "nothing":
        gone[key] = there
    if exclude == "both":
        if key == LIKES:
            gone[key] = there | back
        if key == RATES:
            gone[BACK] = back
    for other in GRAPH.relations:
        assert set(typed_edges_of(sample, other)) == plain_edges(sample, other, gone[other])


def test_the_relation_back_by_any_name() -> None:
    rated = ("item", "rated by", "user")
    graph = TypedGraph.from_edges({RATES: EDGES[RATES], rated: EDGES[RATES][::-1]}, SIZES)
    inner = TypedNeighborSampler(graph, (-1,))
    sample = TypedLinkSampler(inner, "rates", *EDGES[RATES], reverse="rated by").sample(range(40))
    assert sample.sizes[3:] == (0, 0)
    there = TypedLinkSampler(inner, "rates", *EDGES[RATES], exclude="links").sample(range(40))
    assert (there.sizes[3], there.sizes[4] > 0) == (0, True)
    # The links of a relation that `with_reverse` made have that which it was made of.
    items, users = EDGES[RATES][::-1]
    sample = TypedLinkSampler(ALL, BACK, items, users).sample(range(40))
    assert not typed_edges_of(sample, RATES)
    assert not typed_edges_of(sample, BACK)


@given(st.lists(st.integers(0, 9), min_size=10, max_size=10), st.integers(0, 99))
def test_links_see_nothing_later_than_they_are(link_times: list[int], seed: int) -> None:
    when = np.arange(40) % 10
    inner = TypedNeighborSampler(GRAPH, (3, 2), edge_times={"rates": when, BACK: when})
    ends = EDGES[RATES][:, :10]
    negatives = NegativeSampler(GRAPH["rates"])
    sampler = TypedLinkSampler(
        inner, "rates", *ends, times=link_times, negatives=negatives, exclude="nothing"
    )
    chosen = [3, 9, 1, 3]
    sample = sampler.sample(chosen, seed)
    own = np.array(link_times)[chosen]
    of_tree = np.concatenate([own, own, own])
    assert sample.tree is not None
    for key in (RATES, BACK):
        rows = np.repeat(np.arange(len(sample.drawn[key].indptr) - 1),
                         np.diff(sample.drawn[key].indptr))  # fmt: skip
        assert (when[sample.edge[key]] <= of_tree[sample.tree[key[2]][rows]]).all()


@pytest.mark.parametrize("seed", range(5))
def test_of_one_type_and_relation_it_is_the_sampler_of_links(seed: int) -> None:
    """With all neighbours nothing is left to chance but negatives: both see the same edges."""
    graph = random_graph(30, 60, seed)
    typed = TypedGraph.from_graphs({("n", "to", "n"): graph})
    ends = np.asarray(graph.src)[:20], np.asarray(graph.dst)[:20]
    one = LinkSampler(NeighborSampler(graph, (-1, -1)), *ends).sample([3, 4, 19])
    two = TypedLinkSampler(TypedNeighborSampler(typed, (-1, -1)), "to", *ends).sample([3, 4, 19])
    key = ("n", "to", "n")
    assert np.array_equal(one.vertices, two.vertices["n"])
    assert np.array_equal(one.edge, two.edge[key])
    assert np.array_equal(one.indptr, two.drawn[key].indptr)
    for name in ("link", "link_src", "link_dst", "label", "false"):
        assert np.array_equal(getattr(one, name), getattr(two, name))


def test_all_neighbours_give_the_numbers_of_the_graph_without_the_links() -> None:
    widths = {"user": 3, "item": 4, "shop": 2}
    x = {t: RNG.normal(size=(n, widths[t])).astype(np.float32) for t, n in SIZES.items()}
    schema: Any = {"types": GRAPH.types, "relations": GRAPH.relations}
    first = nn.RGCN(widths, 6, **schema, rngs=nnx.Rngs(0))
    second = nn.RGCN(6, 4, **schema, rngs=nnx.Rngs(1))

    @jax.jit
    def model(graph: Any, x: Any) -> Any:
        return second(graph, {t: jnp.tanh(h) for t, h in first(graph, x).items()})

    chosen = [0, 7, 22]
    sample = TypedLinkSampler(ALL, "rates", *EDGES[RATES]).sample(chosen)
    gone = {(u, v) for u, v in EDGES[RATES][:, chosen].T.tolist()}
    left = np.array([(u, v) for u, v in EDGES[RATES].T.tolist() if (u, v) not in gone]).T
    rest = TypedGraph.from_edges(EDGES | {RATES: left}, SIZES).with_reverse(["rates"])
    want = model(rest, x)
    rows = {t: x[t][found] for t, found in sample.vertices.items()}
    got = model(jax.device_put(sample.graph()), rows)
    src, dst = EDGES[RATES][:, chosen]
    np.testing.assert_allclose(
        got["user"][sample.link_src], want["user"][src], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        got["item"][sample.link_dst], want["item"][dst], rtol=1e-4, atol=1e-5
    )


def leaves(sample: TypedLinkSample) -> list[Any]:
    drawn = [(d.indptr, d.neighbor, d.slots) for d in sample.drawn.values()]
    pairs = sample.link, sample.link_src, sample.link_dst, sample.label, sample.false
    return jax.tree.leaves((sample.vertices, drawn, pairs))


def test_threads_give_the_same_bits() -> None:
    rng = np.random.default_rng(1)
    sizes = {"a": 8000, "b": 9000}
    ends = np.stack([rng.integers(0, n, 40_000) for n in sizes.values()])
    graph = TypedGraph.from_edges({("a", "r", "b"): ends}, sizes).with_reverse()
    sampler = TypedLinkSampler(
        TypedNeighborSampler(graph, (4, 3)), "r", *ends,
        negatives=NegativeSampler(graph["r"], count=2, by="degree"),
    )  # fmt: skip
    seeds = rng.permutation(40_000)[:3000]
    first = leaves(sampler.sample(seeds, 1))
    with Workers(3) as workers:
        again = leaves(sampler.sample(seeds, 1, workers=workers))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, leaves(sampler.sample(seeds, 2))))


# ------------------------------------------------------------------------------------ the loader

X = {t: RNG.normal(size=(n, 3)).astype(np.float32) for t, n in SIZES.items()}


def loader(sampler: Any = None, **options: Any) -> Loader:
    sampler = sampler or TypedLinkSampler(
        TypedNeighborSampler(GRAPH, (3, 2)), "rates", *EDGES[RATES],
        negatives=NegativeSampler(GRAPH["rates"], count=2),
    )  # fmt: skip
    arguments: dict[str, Any] = {"batch_size": 7, "shapes": 2} | options
    return Loader(sampler, X, np.arange(40) * 10, **arguments)


@pytest.mark.parametrize("shapes", [2, None])
def test_batches_hold_pairs_and_their_rows(shapes: Any) -> None:
    seen = []
    for batch in loader(shapes=shapes, threads=0):
        rows = 21 if shapes else 3 * (batch.seeds.shape[0] // 3)
        assert batch.seeds.shape == (rows, 2)
        assert batch.label.shape == batch.mask.shape == batch.y.shape == (rows,)
        for t in SIZES:
            real = int(batch.num_real[t][-1])
            assert np.array_equal(batch.x[t][:real], X[t][batch.vertices[t][:real]])
        users = np.asarray(batch.vertices["user"])[np.asarray(batch.seeds)[:, 0]]
        items = np.asarray(batch.vertices["item"])[np.asarray(batch.seeds)[:, 1]]
        real = np.asarray(batch.mask)
        links = np.asarray(batch.y) // 10
        assert np.array_equal(users[real], EDGES[RATES][0][links[real]])
        positive = real & (np.asarray(batch.label) == 1)
        assert np.array_equal(items[positive], EDGES[RATES][1][links[positive]])
        seen += links[positive].tolist()
    assert sorted(seen) == list(range(40))


def test_threads_and_resuming_do_not_change_the_stream() -> None:
    check_stream(loader)


@pytest.mark.parametrize("typed", [True, False])
def test_trees_may_hold_a_vertex_many_times(typed: bool) -> None:
    """As many trees as ends: a batch has more vertices than the graph, and fits a shape. Padding is
    in none of the trees."""
    if typed:
        inner: Any = TypedNeighborSampler(GRAPH, (3, 2), disjoint=True)
        sampler: Any = TypedLinkSampler(
            inner, "rates", *EDGES[RATES], negatives=NegativeSampler(GRAPH["rates"])
        )
        batches = loader(sampler, batch_size=40, shapes=1)
    else:
        graph = random_graph(12, 40)
        ends = np.asarray(graph.src)[:40], np.asarray(graph.dst)[:40]
        inner = NeighborSampler(graph, (3, 2), disjoint=True)
        sampler = LinkSampler(inner, *ends, negatives=NegativeSampler(graph))
        batches = Loader(sampler, batch_size=40, shapes=1)
    assert sampler.disjoint
    (batch,) = batches
    assert batch.shape == 0
    assert batches.report().splits == 0
    trees = batch.tree["user"] if typed else batch.tree
    real = int((batch.num_real["user"] if typed else batch.num_real)[-1])
    assert len(trees) > real > 12
    assert np.asarray(trees)[:real].max() < 120
    assert (np.asarray(trees)[real:] == 120).all()


def test_a_model_of_links_trains() -> None:
    """Users and items are of two kinds, and users rate the items of their own."""
    rng = np.random.default_rng(2)
    users, items = 60, 40
    kinds = rng.integers(0, 2, users), rng.integers(0, 2, items)
    src = np.repeat(np.arange(users), 8)
    dst = np.array([rng.choice(np.flatnonzero(kinds[1] == kinds[0][u])) for u in src])
    graph = TypedGraph.from_edges(
        {RATES: (src, dst)}, {"user": users, "item": items}
    ).with_reverse()
    schema: Any = {"types": graph.types, "relations": graph.relations}
    x = {"user": np.ones((users, 2), np.float32), "item": np.eye(2, dtype=np.float32)[kinds[1]]}
    definition, params = nnx.split(nn.RGCN(2, 8, **schema, rngs=nnx.Rngs(0)))
    optimizer = optax.adam(0.05)
    state = optimizer.init(params)

    def scores(params: Any, graph: Any, x: Any, pairs: Any) -> Any:
        out = nnx.merge(definition, params)(graph, x)
        return (out["user"][pairs[:, 0]] * out["item"][pairs[:, 1]]).sum(-1)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = scores(params, batch.graphs[0], batch.x, batch.seeds)
            each = optax.sigmoid_binary_cross_entropy(logits, batch.label)
            return jnp.where(batch.mask, each, 0).sum() / batch.mask.sum()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    sampler = TypedLinkSampler(
        TypedNeighborSampler(graph, (5,)), "rates", src, dst,
        negatives=NegativeSampler(graph["rates"]),
    )  # fmt: skip
    batches = Loader(sampler, x, batch_size=80, shapes=1)
    for _ in range(15):
        for batch in batches:
            params, state = step(params, state, batch)
    pairs = np.stack(np.meshgrid(np.arange(users), np.arange(items)), -1).reshape(-1, 2)
    found = np.asarray(scores(params, graph, x, pairs))
    alike = kinds[0][pairs[:, 0]] == kinds[1][pairs[:, 1]]
    assert np.median(found[alike]) > np.quantile(found[~alike], 0.95)


WHERE = "TypedLinkSampler"
LINKS = EDGES[RATES]


def made(relation: Any = "rates", links: Any = LINKS, inner: Any = ALL, **options: Any) -> Any:
    return TypedLinkSampler(inner, relation, *links, **options)


def back_unnamed() -> Any:
    rated = ("item", "rated", "user")
    graph = TypedGraph.from_edges({RATES: LINKS, rated: LINKS[::-1]}, SIZES)
    return made(inner=TypedNeighborSampler(graph, (1,)))


BY_TIME = TypedNeighborSampler(GRAPH, (1,), edge_times={"rates": np.arange(40)})
MISTAKES: dict[str, tuple[Any, str]] = {
    "the sampler of one type": (
        lambda: made(inner=NeighborSampler(random_graph(3, 3), (1,))),
        f"{WHERE}: sampler is a NeighborSampler, expected a TypedNeighborSampler: links of a "
        "gnnjit.Graph are sampled by LinkSampler",
    ),
    "a relation": (
        lambda: made("rate"),
        "relation names 'rate', which is no relation of the graph; it has ('user', 'rates', "
        "'item'), ('shop', 'sells', 'item'), ('user', 'likes', 'user'), ('item', 'rev_rates', "
        "'user'): pass one of these",
    ),
    "an end": (
        lambda: made(links=LINKS[::-1]),
        f"{WHERE}: dst[{int(np.argmax(LINKS[0] > 10))}] is "
        f"{LINKS[0][np.argmax(LINKS[0] > 10)]}, expected a vertex from 0 to 10: number vertices as "
        "the graph does",
    ),
    "ends": (
        lambda: made(links=(LINKS[0], LINKS[1][1:])),
        f"{WHERE}: src has 40 entries and dst has 39, expected one of each per link",
    ),
    "negatives of another relation": (
        lambda: made(negatives=NegativeSampler(GRAPH["likes"])),
        f"{WHERE}: negatives are of a graph of 15 sources and 15 destinations, expected 15 and 11: "
        "make the NegativeSampler of the graph that the links are of",
    ),
    "times": (
        lambda: made(inner=BY_TIME),
        f"{WHERE}: times is missing, expected the time of each link where, and only where, the "
        "sampler has times",
    ),
    "kinds of times": (
        lambda: made(inner=BY_TIME, times=np.arange(40.0)).sample([0]),
        f"{WHERE}.sample: times is float64 of shape (2,), expected int64 of shape (2,): one time "
        "per seed",
    ),
    "a word": (
        lambda: made(exclude="all"),
        f"{WHERE}: exclude is 'all', expected one of both, links, nothing",
    ),
    "a relation back without a name": (
        back_unnamed,
        f"{WHERE}: reverse is missing: ('item', 'rated', 'user') leads back from 'item' to 'user', "
        "and if it holds the links of ('user', 'rates', 'item'), what is to be predicted runs "
        "along it: name it as reverse, or pass exclude='links' if none does",
    ),
    "no relation back": (
        lambda: made(reverse="sells"),
        f"{WHERE}: reverse is ('shop', 'sells', 'item'), expected a relation from 'item' to "
        "'user': the ends of ('user', 'rates', 'item') the other way round",
    ),
    "a relation back for nothing": (
        lambda: made(reverse="rev_rates", exclude="links"),
        f"{WHERE}: got reverse with exclude='links', which takes nothing out of it, expected "
        "exclude='both': leave one out",
    ),
    "a link": (
        lambda: made().sample([40]),
        f"{WHERE}.sample: seeds[0] is 40, expected a link from 0 to 39",
    ),
    "vertices as seeds": (
        lambda: ALL.sample([0]),
        "TypedNeighborSampler: seed_type is missing, expected the type of the seeds: pass it, or "
        "the sampler to a TypedLinkSampler",
    ),
    "a loader of vertices": (
        lambda: Loader(ALL, X),
        "TypedNeighborSampler: seed_type is missing, expected the type of the seeds: pass it, or "
        "the sampler to a TypedLinkSampler",
    ),
    "times of a loader": (
        lambda: Loader(made(inner=BY_TIME, times=np.arange(40)), X, times=np.arange(40)),
        f"Loader: got times with a {WHERE}, expected none: pass the times of links to {WHERE}",
    ),
    "kept rows": (
        lambda: Loader(made(), X, hot_rows=3),
        f"Loader: got hot_rows with a {WHERE}, expected none: rows are kept on the device for "
        "graphs of one type alone; leave hot_rows out",
    ),
    "a small shape": (
        lambda: made().sample([0]).graph((1,) * 7),
        "TypedLinkSample.graph: shape is (1, 1, 1, 1, 1, 1, 1), expected at least "
        f"{made().sample([0]).sizes}: nothing is cut off, so pass a larger one",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    call, message = MISTAKES[name]
    with pytest.raises((SampleError, GraphError)) as raised:
        call()
    assert str(raised.value) == message
