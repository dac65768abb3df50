"""Which sweeps a function becomes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnnjit
from gnnjit.ir.array_program import Array, ArrayEquation, Rows
from gnnjit.streaming.compile import StreamedArguments
from gnnjit.streaming.grid.streamed_graph import StreamedGraph
from gnnjit.streaming.program.min_cut import SweepCut, source_side
from gnnjit.streaming.program.operations import traversals
from gnnjit.streaming.program.rowwise import Rule
from gnnjit.streaming.program.sweeps import RowWise, Sweep, SweepProgram
from gnnjit.streaming.stream import stream
from streaming.functions import PerVertex, on_graph, random_edges

N, F = 12, 5


def graph() -> StreamedGraph:
    return random_edges(N, 40).streamed()


def planned(fn: Any, *args: Any) -> SweepProgram:
    g = graph()
    arguments = StreamedArguments(((g, *on_graph(g, args)), {}))
    return stream(fn, memory_budget="1GiB", parts=2).trace(arguments).executables.streamed


def show(sweep: Sweep) -> str:
    """`side stages: aggregates by stage; what is loaded -> what is stored`"""

    def names(arrays: Iterable[Array]) -> str:
        return " ".join(sorted("x".join(["N", *map(str, x.shape)]) for x in arrays)) or "nothing"

    gathers = "+".join(str(len(g)) for _, g in sweep.stages[:-1]) or "0"
    return f"{sweep.side} {gathers}: {names(sweep.loads)} -> {names(sweep.stores)}"


def written(streamed: SweepProgram) -> list[str]:
    return [show(s) for s in streamed.sweeps]


# ---------------------------------------------------------------------------------- golden texts


@gnnjit.layer
def convolution(v, e, w):
    return gnnjit.sum(e.src * jnp.float32(0.5)) @ w


@gnnjit.layer
def attention(v, e, w, a):
    z_u, z_v = e.src @ w, v @ w
    return gnnjit.sum(gnnjit.softmax(jax.nn.leaky_relu(z_u @ a + z_v @ a)) * z_u)


def loss_of(layer: Any, *shared: Any) -> Any:
    """The loss and the gradients of the weights of two layers."""

    def loss(weights: Any, g: Any, x: Any, y: Any) -> Any:
        h = jax.nn.relu(layer(g, x, weights[0], *shared))
        return jnp.mean((layer(g, h, weights[1], *shared)[:, 0] - y) ** 2)

    def step(g: Any, x: Any, y: Any, weights: Any) -> Any:
        return jax.value_and_grad(loss)(weights, g, x, y)

    return step


X = PerVertex(np.ones((N, F), np.float32))
Y = PerVertex(np.ones(N, np.float32))
WEIGHTS = [np.ones((F, 3), np.float32), np.ones((3, 3), np.float32)]


CONVOLUTIONS = loss_of(convolution)
ATTENTIONS = loss_of(attention, np.ones(3, np.float32))


def test_training_convolutions():
    """The sums over neighbours are kept for the gradients of the weights, nothing else of it: the
    second layer's input is computed again. Gradients of the sources go by rows."""
    assert written(planned(CONVOLUTIONS, X, Y, WEIGHTS)) == [
        "None 0: Nx5 -> Nx5",
        "dst 1: nothing -> Nx3 Nx5",
        "dst 1: N -> Nx3",
        "src 1: Nx5 -> nothing",
    ]


def test_training_attention():
    """A softmax is one sweep; the two gradients of a layer, by sources and by destinations, are in
    two sweeps, of which the second is one with that of the layer below."""
    assert written(planned(ATTENTIONS, X, Y, WEIGHTS)) == [
        "None 0: N Nx5 -> N N N Nx3",
        "dst 1: N N -> N N N Nx3 Nx3",
        "dst 1+1: N N N -> N N N Nx3",
        "src 1: N N N Nx3 -> N Nx3",
        "src 1: Nx3 -> N Nx3",
        "dst 1: N N N N Nx3 Nx3 Nx5 -> nothing",
    ]


@gnnjit.layer
def pooling(v, e, w):
    return gnnjit.max(jax.nn.relu(e.src @ w + v @ w))


def test_training_with_maxima():
    """Ties are counted in the sweep that finds the maxima; the gradients of the sources then read
    of each destination what the edges compare, the maximum and the cotangent, scaled already."""
    assert written(planned(loss_of(pooling), X, Y, WEIGHTS)) == [
        "None 0: Nx5 -> Nx3",
        "dst 1+1: Nx3 -> Nx3 Nx3 Nx3",
        "dst 1+1+1: N Nx3 -> Nx3 Nx3 Nx3",
        "src 1: Nx3 Nx3 Nx3 -> Nx3",
        "src 1: Nx3 -> Nx3",
        "dst 1: Nx3 Nx3 Nx3 Nx5 -> nothing",
    ]


def test_what_is_only_copied_is_one_array():
    largest = gnnjit.layer(lambda v, e: gnnjit.max(e.src))
    least = gnnjit.layer(lambda v, e: gnnjit.min(e.src))

    def fn(g: Any, x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        copied = jax.lax.stop_gradient(jax.lax.optimization_barrier(h))
        return largest(g, h), least(g, copied)

    assert written(planned(fn, X, WEIGHTS[0])) == [
        "None 0: Nx5 -> Nx3",
        "dst 2: nothing -> Nx3 Nx3",
    ]


def test_inference_of_several_layers_stores_only_what_the_next_one_reads():
    def logits(g: Any, x: Any, weights: Any) -> Any:
        for w in weights:
            x = jnp.tanh(convolution(g, x, w))
        return x

    weights = [np.ones((F, 3), np.float32), *[np.ones((3, 3), np.float32)] * 2]
    assert written(planned(logits, X, weights)) == [
        "None 0: N Nx5 -> Nx3",
        "dst 1: nothing -> Nx3",
        "dst 1: nothing -> Nx3",
        "dst 1: nothing -> Nx3",
    ]


def test_a_sum_over_all_vertices_that_is_read_by_row():
    assert written(planned(lambda g, x: (x - x.mean(0)) ** 2, X)) == [
        "None 0: Nx5 -> nothing",
        "None 0: Nx5 -> Nx5",
    ]


@gnnjit.layer
def network(v, e, w, w2):
    hidden = jax.nn.relu(e.src @ w - v @ w)
    return gnnjit.sum(jax.nn.relu(hidden @ w2))


@gnnjit.layer
def network_of_sources(v, e, w, w2):
    hidden = jax.nn.relu(e.src @ w - jax.lax.stop_gradient(v[:3]))
    return gnnjit.sum(jax.nn.relu(hidden @ w2))


@pytest.mark.parametrize(("layer", "side"), [(network, "dst"), (network_of_sources, "src")])
def test_sums_over_all_edges_come_with_those_by_row(layer, side):
    """The gradient of a matrix on the edges needs the work there that one of the vertices needs,
    and both are done at once."""

    def step(g: Any, x: Any, y: Any, weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.mean((layer(g, x, *weights)[:, 0] - y) ** 2)

        return jax.value_and_grad(loss)(weights)

    streamed = planned(step, X, Y, [np.ones((F, 3), np.float32), np.ones((3, 3), np.float32)])
    found = [
        (sweep.side, len(gathers), len(traversals(gathers)))
        for sweep in streamed.sweeps
        for _, gathers in sweep.stages
        if any(g.totals for g in gathers)
    ]
    assert found == [(side, 2, 1)]


def test_gradients_of_sources_go_by_rows():
    streamed = planned(CONVOLUTIONS, X, Y, WEIGHTS)
    assert [s.side for s in streamed.sweeps if s.gathers] == ["dst", "dst", "src"]
    for sweep in streamed.sweeps:
        assert all(g.side == sweep.side for g in sweep.gathers)


@pytest.mark.parametrize("fn", [CONVOLUTIONS, ATTENTIONS], ids=["convolutions", "attention"])
def test_everything_stored_is_read_later_or_a_result(fn):
    streamed = planned(fn, X, Y, WEIGHTS)
    for number, sweep in enumerate(streamed.sweeps):
        read = set(streamed.function.outputs)
        for later in streamed.sweeps[number + 1 :]:
            read.update((*later.loads, *later.edge_loads))
            read.update(x for g in later.gathers for _, x in g.operands(g.other))
        assert read.issuperset(sweep.stores)


@pytest.mark.parametrize("fn", [CONVOLUTIONS, ATTENTIONS], ids=["convolutions", "attention"])
def test_what_a_sweep_reads_of_other_rows_is_complete_before_it(fn):
    streamed = planned(fn, X, Y, WEIGHTS)
    stored = set(streamed.function.inputs)
    for sweep in streamed.sweeps:
        assert stored.issuperset(sweep.loads)
        assert stored.issuperset(x for g in sweep.gathers for _, x in g.operands(g.other)
                                 if isinstance(x, Array))  # fmt: skip
        stored.update(sweep.stores)


# --------------------------------------------------------------------------------- minimum cuts


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[tuple[int, int, float]], int]:
    size = draw(st.integers(3, 6))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(
        lambda p: p[0] != p[1] and p[0] != 1 and p[1] != 0
    )
    costs = st.sampled_from([0.5, 1.0, 3.0, 8.0, 100.0, math.inf])
    found = draw(st.lists(st.tuples(pairs, costs), min_size=1, max_size=14))
    return [(a, b, c) for (a, b), c in found], size


def cost_of(edges: list[tuple[int, int, float]], inside: Any) -> float:
    return sum(c for a, b, c in edges if inside[a] and not inside[b])


@given(networks())
def test_thesource_side_is_a_minimum_cut(network):
    edges, size = network
    every = [(True, False, *rest) for rest in itertools.product([False, True], repeat=size - 2)]
    best = min(cost_of(edges, inside) for inside in every)
    if best == math.inf:
        return  # no sweep has such a cut
    kept = source_side(edges, size)
    assert kept[0]
    assert not kept[1]
    assert cost_of(edges, kept) == pytest.approx(best)


class Named:
    def __init__(self, name: str) -> None:
        self.name = name


@st.composite
def row_wise(draw: st.DrawFn) -> tuple[SweepCut, list[Array]]:
    """Equations in earlier sweeps and in this one (number 2), and some of their results."""
    arrays: list[Array] = []
    birth: dict[Array, int] = {}
    makes: dict[Any, Any] = {}
    stored: list[dict[Array, None]] = [{}, {}, {}]
    for k in range(draw(st.integers(2, 6))):
        width = draw(st.sampled_from([1, 2, 5, 40]))
        x = Array((width,), np.dtype(np.float32), Rows.VERTEX)
        if k == 0 or draw(st.integers(0, 4)) == 0:
            birth[x] = -1
        else:
            read = draw(st.lists(st.sampled_from(arrays), min_size=1, max_size=3, unique=True))
            primitive = Named(draw(st.sampled_from(["add", "dot_general"])))
            eqn = ArrayEquation(primitive, {}, tuple(read), (x,), "?")
            birth[x] = draw(st.integers(max([0, *(birth[y] for y in read)]), 2))
            makes[x] = RowWise(eqn, Rule(lambda block, args: []), Rows.VERTEX)
            if birth[x] < 2 and draw(st.booleans()):
                stored[birth[x]][x] = None
        arrays.append(x)
    targets = draw(st.lists(st.sampled_from(arrays), min_size=1, max_size=3, unique=True))
    return SweepCut(2, birth, makes, stored), targets


def cheapest(cut: SweepCut, targets: list[Array]) -> float:
    """By trying every set of arrays to load."""

    def cost(loads: set[Array]) -> float:
        there, total = set(loads), sum(map(cut.load_cost, loads))
        queue = [x for x in targets if x not in there]
        while queue:
            x = queue.pop()
            if x in there:
                continue
            there.add(x)
            total += cut.work_cost(x)
            if total == math.inf:
                return total
            queue += cut.needs(x)
        return total

    every = cut.reachable(targets)
    sets = (itertools.combinations(every, n) for n in range(len(every) + 1))
    return min(cost(set(loads)) for loads in itertools.chain.from_iterable(sets))


@given(row_wise())
def test_what_is_loaded_and_computed_again_costs_the_least(case):
    cut, targets = case
    loads, computed = cut.least(targets)
    assert computed.isdisjoint(loads)
    for x in targets:
        assert x in computed or x in loads
    for x in computed:
        assert all(y in computed or y in loads for y in cut.needs(x))
    cost = sum(map(cut.load_cost, loads)) + sum(map(cut.work_cost, computed))
    assert cost == pytest.approx(cheapest(cut, targets), rel=1e-3)
