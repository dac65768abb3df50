"""Sums over relations between the same types that become one sum over the edges of all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.compiler.call import recorded_calls
from gnnjit.compiler.merged import force

F = 3
NAMES = ("r0", "r1", "r2")


def graph_of(kind: str, dtype: Any = np.float32) -> tuple[gnnjit.TypedGraph, Any, Any, Any]:
    """Three relations of one kind, of which one has no edges, and one of another kind."""
    rng = np.random.default_rng(0)
    first = "b" if kind == "two types" else "a"
    sizes = {"a": 7, "b": 5}
    edges: dict[Any, Any] = {
        (first, name, "a"): (rng.integers(0, sizes[first], n), rng.integers(0, 7, n))
        for name, n in zip(NAMES, (9, 0, 6), strict=True)
    }
    edges["a", "other", "b"] = rng.integers(0, 5, (2, 8))

    def draw(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape), dtype)

    graph = gnnjit.TypedGraph.from_edges(edges, sizes)
    data = {name: draw(n, F) for name, n in zip(NAMES, (9, 0, 6), strict=True)}
    w = {name: draw(F, F) for name in (*NAMES, "other", "self")}
    w |= {"vector": {name: draw(F) for name in (*NAMES, "other")}}
    x = {t: draw(n, F) for t, n in sizes.items()}
    if kind == "padded":
        graph = graph.pad({"a": 9, "b": 6}, {"r0": 12, "r1": 2})
        many = graph.pad_edges(data).items()
        data = {key[1]: rows.at[len(data[key[1]]) :].set(jnp.nan) for key, rows in many}
        x = graph.pad_nodes(x)
    return graph, x, w, data


def means(v: Any, e: Any, w: Any) -> Any:
    out = v @ w["self"]
    for r in e.relations:
        out += gnnjit.mean(r.src @ w[r.name])
    return jax.nn.relu(out)


def product_of_means(v: Any, e: Any, w: Any) -> Any:
    """Linear after the sum, with matrices that are computed, and one that is the same for all."""
    out = v
    for r in e.relations:
        own = jnp.outer(w["vector"][r.name], w["vector"]["other"]) + w["self"].T
        out += (gnnjit.mean(r.src) @ own) @ w["self"].T / 3
    return out


def of_both_ends(v: Any, e: Any, w: Any) -> Any:
    """A vertex value of each relation is read on its edges; two sums of the same relations."""
    first, second = v, v
    for r in e.relations:
        a = r.dst * w["vector"][r.name]
        first += gnnjit.sum(jnp.tanh(r.src @ w[r.name] + a))
        second += gnnjit.sum(r.src * (v @ w["self"])[::-1])
    return first, second


def of_the_union(v: Any, e: Any, w: Any) -> Any:
    message = e.map(lambda r: r.src @ w[r.name])
    return gnnjit.mean(message) - gnnjit.sum(message)[::-1]


def with_data(v: Any, e: Any, w: Any) -> Any:
    out = v
    for r in e.relations:
        out += gnnjit.sum(r.src * (r.data if r.name != "other" else w["self"][0]))
    return out


def names_of(call: Any) -> list[str]:
    """The relations of the parts that a call runs."""
    with recorded_calls() as calls:
        call()
    return [c.program.name.rpartition(" ")[2] for c in calls]


def run(layer: Any, given: Any, edges: Any, merging: bool | None) -> Any:
    """Value and gradients, edge by edge without `merging`."""
    graph, x, w, data = given
    keywords = {"edges": data} if edges else {}

    def loss(graph: Any, x: Any, w: Any) -> Any:
        out = layer(graph, x, w, **keywords)
        leaves = jax.tree.leaves(out)
        return sum(jnp.sum(jnp.sin(y + i)) for i, y in enumerate(leaves)), out

    with force(True) if merging else gnnjit.reference():
        return jax.jit(jax.value_and_grad(loss, (1, 2), has_aux=True))(graph, x, w)


CASES = [
    (means, "one type"), (means, "two types"), (means, "padded"), (product_of_means, "two types"),
    (of_both_ends, "one type"), (of_the_union, "one type"), (with_data, "padded"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "kind"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_values_and_gradients(fn, kind):
    layer, given = gnnjit.layer(fn), graph_of(kind)
    edges = fn is with_data
    (_, got), grads = run(layer, given, edges, True)
    (_, expected), slow_grads = run(layer, given, edges, None)
    for a, b in zip(
        jax.tree.leaves((got, grads)), jax.tree.leaves((expected, slow_grads)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    graph, x, w, data = given
    with force(True):
        names = names_of(lambda: layer(graph, x, w, **({"edges": data} if edges else {})))
    assert names == ["m0_3_relations", "r0_other"]


@pytest.mark.long
def test_double_precision_outside_of_jit():
    with jax.enable_x64(True):
        graph, x, w, _ = graph_of("one type", np.float64)
        layer = gnnjit.layer(means)
        with force(True):
            got = [layer(graph, x, w)["a"] for _ in range(2)]
        with gnnjit.reference():
            np.testing.assert_allclose(got[0], layer(graph, x, w)["a"], rtol=1e-12)
        np.testing.assert_array_equal(*got)


def squashed(v: Any, e: Any, w: Any) -> Any:
    return sum((jnp.tanh(gnnjit.sum(r.src @ w[r.name])) for r in e.relations), v)


def attended(v: Any, e: Any, w: Any) -> Any:
    """A reduction of the relation stands inside."""
    weight = [gnnjit.softmax(jnp.sum(r.src)) for r in e.relations]
    return sum((gnnjit.sum(a * r.src) for a, r in zip(weight, e.relations, strict=True)), v)


def largest(v: Any, e: Any, w: Any) -> Any:
    return sum((gnnjit.max(r.src) for r in e.relations), v)


def drawn(v: Any, e: Any, w: Any) -> Any:
    key = jax.random.key(0)
    return sum((gnnjit.sum(gnnjit.dropout(r.src, 0.5, key)) for r in e.relations), v)


def read_twice(v: Any, e: Any, w: Any) -> Any:
    sums = [gnnjit.sum(r.src @ w[r.name]) for r in e.relations]
    return sum(sums, v), sums


def of_unlike_numbers(v: Any, e: Any, w: Any) -> Any:
    return sum((gnnjit.sum(r.src * (2.0 + i)) for i, r in enumerate(e.relations)), v)


def scaled_by_a_sum(v: Any, e: Any, w: Any) -> Any:
    """A factor of a sum depends on a sum."""
    found = [gnnjit.sum(r.src) for r in e.relations]
    return sum((x * jnp.sum(x) for x in found), v)


@pytest.mark.parametrize(
    "fn",
    [squashed, attended, largest, drawn, read_twice, of_unlike_numbers, scaled_by_a_sum],
    ids=lambda f: f.__name__,
)
def test_relations_stay_apart(fn):
    graph, x, w, _ = graph_of("one type")
    with force(True):
        names = names_of(lambda: gnnjit.layer(fn)(graph, x, w))
    assert not any(name.startswith("m") for name in names)
    assert len([name for name in names if name.startswith("r")]) >= 4


def test_sources_of_two_types_are_two_sets():
    edges = {(t, f"{t}{i}", "a"): ([0, 1], [i, 2]) for t in "ab" for i in range(2)}
    graph = gnnjit.TypedGraph.from_edges(edges, {"a": 4, "b": 2})
    x = {"a": jnp.ones((4, F)), "b": jnp.ones((2, F))}
    w = dict.fromkeys(["a0", "a1", "b0", "b1", "self"], jnp.eye(F))
    with force(True):
        names = names_of(lambda: gnnjit.layer(means)(graph, x, w))
    assert names == ["m0_2_relations", "m1_2_relations"]


@pytest.mark.parametrize(("edges", "merged"), [(40, True), (4000, False)])
def test_the_cost_model_decides(edges, merged):
    """Few edges for each vertex and relation multiply matrices edge by edge; many do so for each
    vertex and relation."""
    rng = np.random.default_rng(0)
    names = [f"r{i}" for i in range(8)]
    graph = gnnjit.TypedGraph.from_edges(
        {("a", name, "a"): rng.integers(0, 500, (2, edges)) for name in names}, {"a": 500}
    )
    w = {name: jnp.ones((32, 32)) for name in (*names, "self")}
    x = {"a": jax.ShapeDtypeStruct((500, 32), jnp.float32)}
    found = names_of(lambda: jax.eval_shape(lambda x: gnnjit.layer(means)(graph, x, w), x))
    assert (found == ["m0_8_relations"]) is merged
    assert len(found) == (1 if merged else 8)


def test_nothing_is_merged_where_it_is_forbidden():
    graph, x, w, _ = graph_of("one type")
    with force(False):
        names = names_of(lambda: gnnjit.layer(means)(graph, x, w))
    assert names == ["r0_r0", "r1_r1", "r2_r2", "r0_other"]


def test_known_edges_are_sorted_once():
    graph, x, w, _ = graph_of("one type")
    layer = gnnjit.layer(means)
    with force(True), recorded_calls() as calls:
        layer(graph, x, w)
        layer(graph, x, w)
        layer(dataclasses.replace(graph), x, w)
    first, again, other = (c.graph for c in calls if "m0" in c.program.name)
    assert first is again
    assert first is not other
