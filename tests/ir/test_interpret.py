"""The interpreter against loops over the edges in plain NumPy."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.parse import parse
from gnnjit.ir.program import Program
from gnnjit.ir.space import Space

EDGES = [(0, 0), (0, 0), (1, 0), (2, 3), (1, 3)]  # 0 -> 0 twice; 3, and 1, 2, 4 are isolated
NUM_SRC, NUM_DST = 4, 5
GRAPHS = {
    "duplicates": (EDGES, None),
    "no edges": ([], None),
    "padded": ([*EDGES, (0, 0), (3, 4)], [True] * 5 + [False] * 2),
    "one edge masked": (EDGES, [True, False, True, True, True]),
}


def incidence(name: str) -> tuple[Incidence, list[tuple[int, int]]]:
    """The graph, and the edges that count."""
    edges, mask = GRAPHS[name]
    src, dst = np.array(edges, np.int32).reshape(-1, 2).T
    keep = [True] * len(edges) if mask is None else mask
    flags = None if mask is None else jnp.array(mask)
    graph = Incidence(jnp.array(src), jnp.array(dst), NUM_SRC, NUM_DST, flags)
    return graph, [e for e, k in zip(edges, keep, strict=True) if k]


def rows(n: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(-4, 5, (n, 2)).astype(np.float32)


def program(body: str, inputs: str = "x: f32[src, 2], y: f32[dst, 2]") -> Program:
    return parse(f"layer f({inputs})\n  {body}\n  return a")


REDUCE = {"sum": np.sum, "max": np.max, "min": np.min}


@pytest.mark.parametrize("kind", REDUCE)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("space", ["dst", "src", "shared"])
def test_reductions(kind: str, name: str, space: str) -> None:
    graph, edges = incidence(name)
    x = rows(NUM_SRC, 0)
    over = {"dst": "(u -> v)", "src": "(v <- u)", "shared": "all edges"}[space]
    owner = "" if space == "shared" else f"{space}, "
    (got,) = interpret(
        program(f"a: f32[{owner}2] = {kind} over {over} of x[u]"),
        graph, [x, rows(NUM_DST, 1)],
    )  # fmt: skip
    n = {"dst": NUM_DST, "src": NUM_SRC, "shared": 1}[space]
    want = np.zeros((n, 2), np.float32)
    for i in range(n):
        mine = [x[u] for u, v in edges if {"dst": v, "src": u, "shared": 0}[space] == i]
        if mine:
            want[i] = REDUCE[kind](mine, axis=0)
    np.testing.assert_array_equal(got, want[0] if space == "shared" else want)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("flat", [True, False], ids=["equation", "traversal"])
def test_sums_of_exponentials(name: str, flat: bool) -> None:
    graph, edges = incidence(name)
    s, x = rows(NUM_SRC, 0)[:, 0] * 1e3, rows(NUM_SRC, 1)
    s[1] = -np.inf
    line = "a: f32[dst, 2] = sum over (u -> v) of exp(s[u] - max s[u]) * x[u]"
    if not flat:
        line = f"for each edge (u -> v) of s[u], x[u]\n    {line}\n"
        line += "    b: f32[dst] = max over (u -> v) of s[u]"
    (got,) = interpret(program(line, "s: f32[src], x: f32[src, 2]"), graph, [s, x])
    for v in range(NUM_DST):
        mine = [u for u, w in edges if w == v]
        top = max((s[u] for u in mine), default=0)
        shift = top if np.isfinite(top) else 0
        want = sum((np.exp(s[u] - shift) * x[u] for u in mine), np.zeros(2))
        np.testing.assert_allclose(got[v], want, rtol=1e-6)


@pytest.mark.parametrize("name", GRAPHS)
def test_an_edge_value_reads_both_ends(name: str) -> None:
    graph, edges = incidence(name)
    x, y = rows(NUM_SRC, 0), rows(NUM_DST, 1)
    (got,) = interpret(
        program("m: f32[edge, 2] = x[u] - y[v]\n  a: f32[dst, 2] = sum over (u -> v) of m"),
        graph, [x, y],
    )  # fmt: skip
    want = np.zeros((NUM_DST, 2), np.float32)
    for u, v in edges:
        want[v] += x[u] - y[v]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_vertex_value_is_summed_once_per_edge(name: str) -> None:
    graph, edges = incidence(name)
    x, y = rows(NUM_SRC, 0), rows(NUM_DST, 1)
    (got,) = interpret(program("a: f32[dst, 2] = sum over (u -> v) of y[v]"), graph, [x, y])
    degree = np.bincount([v for _, v in edges], minlength=NUM_DST)
    np.testing.assert_array_equal(got, y * degree[:, None])


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("letter", "space", "n"), [("v", "dst", NUM_DST), ("u", "src", NUM_SRC)])
def test_degree_and_index(name: str, letter: str, space: str, n: int) -> None:
    graph, edges = incidence(name)
    ends = [v if letter == "v" else u for u, v in edges]
    (degree,) = interpret(program(f"a: i32[{space}] = degree of {letter}", ""), graph, [])
    np.testing.assert_array_equal(degree, np.bincount(np.array(ends, int), minlength=n))
    (index,) = interpret(program(f"a: i32[{space}] = index of {letter}", ""), graph, [])
    np.testing.assert_array_equal(index, np.arange(n))


@pytest.mark.parametrize("name", GRAPHS)
def test_a_traversal_with_several_outputs(name: str) -> None:
    graph, edges = incidence(name)
    x, y = rows(NUM_SRC, 0), rows(NUM_DST, 1)
    text = """layer f(x: f32[src, 2], y: f32[dst, 2])
      for each edge (u -> v) of x[u], y[v]
        m: f32[edge, 2] = x[u] * y[v]
        a: f32[dst, 2] = sum over (u -> v) of m
        b: f32[src, 2] = max over (v <- u) of m
        c: f32[2] = sum over all edges of m
        d: f32[edge, 2] = on each edge m
      return a, b, c, d"""
    a, b, c, d = interpret(parse(text), graph, [x, y])
    want_a, want_b = np.zeros((NUM_DST, 2)), np.zeros((NUM_SRC, 2))
    for i in range(NUM_SRC):
        mine = [x[u] * y[v] for u, v in edges if u == i]
        want_b[i] = np.max(mine, axis=0) if mine else 0
    for u, v in edges:
        want_a[v] += x[u] * y[v]
    np.testing.assert_array_equal(a, want_a)
    np.testing.assert_array_equal(b, want_b)
    np.testing.assert_array_equal(c, want_a.sum(0))
    every, mask = GRAPHS[name]
    keep = np.array(mask if mask is not None else [True] * len(every), bool)
    want_d = np.array([x[u] * y[v] for u, v in every], np.float32).reshape(-1, 2)
    np.testing.assert_array_equal(d, np.where(keep[:, None], want_d, 0))


def test_nan_in_padding_reaches_no_reduction() -> None:
    graph, _ = incidence("padded")
    x = rows(NUM_SRC, 0)
    x[3] = np.nan  # read by the padding edge 3 -> 4 alone
    for kind in REDUCE:
        (got,) = interpret(
            program(f"a: f32[dst, 2] = {kind} over (u -> v) of x[u]"), graph, [x, rows(NUM_DST, 1)]
        )
        assert np.isfinite(got).all()


@pytest.mark.parametrize("dtype", ["i32", "u8", "f16", "bf16"])
def test_extremes_of_any_dtype_are_zero_where_there_are_no_edges(dtype: str) -> None:
    graph, _ = incidence("duplicates")
    p = program(f"a: {dtype}[dst] = max over (u -> v) of x[u]", f"x: {dtype}[src]")
    x = jnp.array([3, 1, 2, 9], p.inputs[0].dtype)
    (got,) = interpret(p, graph, [x])
    assert got.dtype == x.dtype
    assert got.astype(jnp.float32).tolist() == [3, 0, 0, 2, 0]


def test_a_constant_above_its_space_has_one_row_per_element() -> None:
    graph, _ = incidence("duplicates")
    (got,) = interpret(program("a: f32[dst] = 1.0 + 2.0"), graph, [rows(4, 0), rows(5, 1)])
    assert got.tolist() == [3.0] * NUM_DST


def test_reading_outside_the_space_is_refused() -> None:
    graph, _ = incidence("duplicates")
    with pytest.raises(ValueError, match="a value of src cannot be read in dst"):
        graph.read(jnp.zeros(4), Space.SRC, Space.DST)
