"""The kernel of rows against NumPy: lanes, hubs, empty rows, every reduction. Interpreted without a
GPU, compiled with one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pallas import INTERPRET, numeric

from gnnjit.graph.row_tasks import build_tasks
from pallas_kernels import rows
from pallas_kernels.traversal import TileOperand, TileOutput, TileProgram

F32 = np.dtype(np.float32)
pytestmark = numeric
SCORE, F = (), 3


def body(tiles):
    near, far, x, w = tiles
    score = near + far
    wide = jnp.broadcast_to(score[:, None], x.shape)
    return enumerate([score, w[:, None] * x, x, x, jnp.ones_like(score), wide * x])


TRAVERSAL = TileProgram(
    body,
    (
        TileOperand("row", SCORE, F32),
        TileOperand("neighbor", SCORE, F32),
        TileOperand("neighbor", (F,), F32),
        TileOperand("edge", SCORE, F32),
    ),
    (
        TileOutput("max", SCORE, F32),
        TileOutput("sum", (F,), F32),
        TileOutput("min", (F,), F32),
        TileOutput("exp_sum", (F,), F32, score=0),
        TileOutput("exp_sum", SCORE, F32, score=0),
        TileOutput(None, (F,), F32),
    ),
)


def graph(degrees, seed=0):
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
    count = int(indptr[-1])
    neighbor = rng.integers(0, len(degrees), count).astype(np.int32)
    return indptr, neighbor, rng.permutation(count).astype(np.int32)


def plan(indptr, short, piece):
    t = build_tasks(indptr, short, piece)
    return rows.TaskPlan(rows.Tasks(*t.long), rows.Tasks(*t.short), rows.Tasks(*t.hubs), t.pieces)


def by_numpy(indptr, neighbor, edge, s, x, w):
    n = len(indptr) - 1
    row = np.repeat(np.arange(n), np.diff(indptr))
    score = s[row] + s[neighbor]
    many = np.diff(indptr) > 0

    def reduce(how, values, first):
        out = np.full((n, *values.shape[1:]), first)
        how.at(out, row, values)
        return np.where(many.reshape(-1, *(1,) * (out.ndim - 1)), out, 0)

    top = reduce(np.maximum, score, -np.inf)
    weight = np.exp(score - top[row])
    on_edges = np.zeros((len(neighbor), F))
    on_edges[edge] = score[:, None] * x[neighbor]
    return [
        top,
        reduce(np.add, w[edge][:, None] * x[neighbor], 0.0),
        reduce(np.minimum, x[neighbor], np.inf),
        reduce(np.add, weight[:, None] * x[neighbor], 0.0),
        reduce(np.add, weight, 0.0),
        on_edges,
    ]


def check(degrees, short, piece, lanes, scale=1.0):
    indptr, neighbor, edge = graph(degrees)
    rng = np.random.default_rng(1)
    n = len(degrees)
    s = (scale * rng.normal(size=n)).astype(F32)
    x = rng.normal(size=(n, F)).astype(F32)
    w = rng.normal(size=len(edge)).astype(F32)
    run = jax.jit(
        lambda *arrays: rows.run(
            TRAVERSAL,
            plan(indptr, short, piece),
            neighbor,
            edge,
            arrays,
            n,
            rows.RowTiles.alike(rows.TileConfig(lanes=lanes)),
            interpret=INTERPRET,
        )
    )
    have, again = run(s, s, x, w), run(s, s, x, w)
    with np.errstate(under="ignore"):
        want = by_numpy(indptr, neighbor, edge, s.astype(np.float64), x, w)
    for a, b, c in zip(have, want, again, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * max(1, scale))
        np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize(
    ("short", "piece"),
    [(0, 100), (100, 100), (2, 5), (0, 1)],
    ids=["long", "short", "hubs", "an edge a piece"],
)
@pytest.mark.parametrize("lanes", [1, 16])
def test_every_kind_of_task(short, piece, lanes):
    check([0, 1, 2, 3, 0, 17, 5, 40, 1, 0], short, piece, lanes)


@given(st.lists(st.sampled_from([0, 0, 1, 2, 7, 30]), min_size=1, max_size=6), st.integers(0, 3))
@settings(max_examples=6)
def test_degrees(degrees, short):
    check(degrees, short, 4, 4)


def test_scores_that_overflow_alone():
    check([3, 40, 0, 9], 4, 16, 8, scale=1e4)


@pytest.mark.parametrize("piece", [100, 4], ids=["whole", "in pieces"])
def test_scores_of_minus_infinity(piece):
    """Such edges weigh nothing; a row of nothing else is 0, as softmax has it."""
    indptr, neighbor, edge = graph([6, 6])
    s = np.array([-np.inf, -np.inf], F32)
    t = TileProgram(
        lambda tiles: enumerate([tiles[0] + tiles[1], jnp.ones_like(tiles[0] + tiles[1])]),
        (TileOperand("row", (), F32), TileOperand("neighbor", (), F32)),
        (TileOutput("max", (), F32), TileOutput("exp_sum", (), F32, score=0)),
    )
    for scores, want in ((s, [0, 0]), (np.array([1.0, 1.0], F32), [6, 6])):
        out = rows.run(
            t,
            plan(indptr, 0, piece),
            neighbor,
            edge,
            [scores, scores],
            2,
            rows.RowTiles.alike(rows.TileConfig(lanes=4)),
            interpret=INTERPRET,
        )
        np.testing.assert_allclose(out[1], want)


def test_padding_slots_write_zeros_on_the_edges():
    t = TileProgram(
        lambda tiles: enumerate([tiles[0]]),
        (TileOperand("neighbor", (), F32),),
        (TileOutput(None, (), F32),),
    )
    indptr = np.array([0, 2], np.int32)
    arrays = np.zeros(4, np.int32), np.array([3, 1, 0, 2], np.int32)
    (out,) = rows.run(
        t, plan(indptr, 0, 9), *arrays, [np.array([5.0], F32)], 1,
        rows.RowTiles.alike(rows.TileConfig(lanes=2)),
        interpret=INTERPRET, clear_edges=True,
    )  # fmt: skip
    np.testing.assert_array_equal(out, [0, 5, 0, 5])


def test_half_precision_is_summed_in_float32():
    t = TileProgram(
        lambda tiles: enumerate([tiles[0].astype(jnp.float32)]),
        (TileOperand("edge", (), np.dtype(jnp.bfloat16)),),
        (TileOutput("sum", (), np.dtype(jnp.bfloat16)),),
    )
    count = 1000
    slots = np.arange(count, dtype=np.int32)
    ones = jnp.ones(count, jnp.bfloat16)
    (out,) = rows.run(
        t, plan(np.array([0, count], np.int32), 0, 2000), slots, slots, [ones], 1,
        rows.RowTiles.alike(rows.TileConfig(lanes=4)), interpret=INTERPRET,
    )  # fmt: skip
    assert out.dtype == jnp.bfloat16
    assert float(out[0]) == 1000


@pytest.mark.parametrize("n", [0, 3])
def test_without_edges(n):
    none = np.zeros(0, np.int32)
    out = rows.run(
        TRAVERSAL,
        plan(np.zeros(n + 1, np.int32), 0, 9),
        none,
        none,
        [np.ones(n, F32), np.ones(n, F32), np.ones((n, F), F32), np.ones(0, F32)],
        n,
        rows.RowTiles(),
        interpret=INTERPRET,
    )
    assert [o.shape for o in out] == [(n,), (n, F), (n, F), (n, F), (n,), (0, F)]
    assert not any(np.asarray(o).any() for o in out)
