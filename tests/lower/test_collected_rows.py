"""On a GPU, rows of what XLA computes are reduced by a kernel: the same numbers in any chunks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.ir.program import Aggregate, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower import choose
from gnnjit.lower.xla import segment

N, E, F = 30, 400, 5


@pytest.mark.parametrize("rows", [Space.DST, Space.SRC])
@pytest.mark.parametrize("limit", [None, 64 * F])
@pytest.mark.parametrize("padded", [False, True])
def test_collected_rows_are_those_of_the_scatter(rows, limit, padded):
    rng = np.random.default_rng(1)
    graph = gnnjit.Graph.from_edges(rng.integers(0, N // 2, E), rng.integers(0, N, E), N)
    if padded:
        graph = graph.pad(num_nodes=N + 3, num_edges=E + 50)
    x = Value((F,), np.dtype(np.float32), Space.EDGE)
    count = Value((), np.dtype(np.int32), Space.EDGE)
    kinds = ("sum", "max", "min")
    reductions = (*(Reduce(kind, rows) for kind in kinds), Reduce("sum", rows), None)
    op = Aggregate(Program((x, count), (), (x, x, x, count, x), "body"), reductions)
    request = choose.requested(op, graph, "cpu", limit)
    edges = graph.num_edges
    operands = [
        jnp.asarray(rng.normal(size=(edges, F)), jnp.float32),
        jnp.asarray(rng.integers(0, 9, edges), jnp.int32),
    ]
    assert segment.collected(request) == {0, 1, 2}
    run = [
        jax.jit(functools.partial(segment.run, request, collect=collect))(operands)
        for collect in (False, True)
    ]
    for want, have in zip(*run, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)
