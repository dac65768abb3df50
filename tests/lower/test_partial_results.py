"""Partial results of the first chunk are those of no chunk, merged with it."""

from __future__ import annotations

import numpy as np
import pytest

from gnnjit.frontend.capture import capture
from gnnjit.ir.program import Aggregate, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.partial_results import empty, first, merge

F32 = np.dtype(np.float32)
DEGREE = np.array([2, 0, 1, 3, 1, 1], np.int32)
SCORES = np.array([0.5, 0.0, np.inf, -np.inf, np.nan, -3e38], np.float32)
ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32) * (DEGREE > 0)[:, None]

CASES = {
    "sum": ([Reduce("sum", Space.DST)], [ROWS]),
    "max": ([Reduce("max", Space.DST)], [ROWS]),
    "min": ([Reduce("min", Space.DST)], [ROWS]),
    "softmax": ([Reduce("max", Space.DST), Reduce("exp_sum", Space.DST, 0)], [SCORES, ROWS]),
    "all edges": (
        [Reduce("max", Space.SHARED), Reduce("sum", Space.SHARED), None],
        [ROWS[0], ROWS[1], ROWS],
    ),
}


@pytest.mark.parametrize("degree", [DEGREE, 0 * DEGREE], ids=["edges", "none"])
@pytest.mark.parametrize("name", CASES)
def test_the_first_chunk(name, degree):
    reductions, outs = CASES[name]
    shapes = [x.shape[1:] if r and r.into is Space.DST else ROWS.shape[1:]
              for x, r in zip(outs, reductions, strict=True)]  # fmt: skip
    values = [Value(shape, F32, Space.EDGE) for shape in shapes]
    op = Aggregate(capture(lambda *xs: list(xs), values).program, tuple(reductions))
    want = merge(op, empty(op, len(DEGREE)), outs, degree)
    got = first(op, outs, degree)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
