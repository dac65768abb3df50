"""When only the used rows are sent."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.errors import PlanError
from gnnjit.streaming.grid.selective import Rates, seconds, selects, threshold

pytestmark = pytest.mark.once

RATES = st.integers(1, 1000)


@pytest.mark.parametrize(
    ("copy", "transfer", "expected"),
    [(6e9, 12e9, 1 / 3), (12e9, 12e9, 0.5), (30e9, 10e9, 0.75), (1, 9, 0.1)],
)
def test_the_threshold(copy, transfer, expected):
    assert math.isclose(threshold(copy, transfer), expected)
    assert Rates(copy, transfer).threshold == threshold(copy, transfer)


def test_slow_copies_select_less():
    """As many devices share the copies of one host."""
    shared = [threshold(8e9 / devices, 12e9) for devices in range(1, 9)]
    assert shared == sorted(shared, reverse=True)
    assert shared[0] == 0.4


def test_predicted_seconds():
    """100 rows of 40 bytes: 4000 bytes at 1000 a second; a quarter of them, copied at 500."""
    assert seconds(25, 100, 40, 500, 1000, False) == 4.0
    assert seconds(25, 100, 40, 500, 1000, True) == 2.0 + 1.0
    both = seconds([25, 50], 100, 40, 500, 1000, [[False], [True]])
    np.testing.assert_array_equal(both, [[4.0, 4.0], [3.0, 6.0]])
    assert seconds(0, 0, 40, 500, 1000, True) == 0.0


def test_the_threshold_itself_sends_the_whole_chunk():
    chosen = selects([[0.0, 0.2], [0.25, 1.0]], 1, 3)
    np.testing.assert_array_equal(chosen, [[True, True], [False, False]])
    assert chosen.dtype == bool
    assert selects(0.1, 1, 3).shape == ()


@given(st.integers(1, 50), st.data(), st.integers(1, 64), RATES, RATES)
def test_selective_is_chosen_where_it_is_faster(rows, data, row_bytes, copy, transfer):
    used = data.draw(st.integers(0, rows))
    whole = Fraction(rows * row_bytes, transfer)
    selective = Fraction(used * row_bytes, copy) + Fraction(used * row_bytes, transfer)
    args = (used, rows, row_bytes, copy, transfer)
    assert math.isclose(seconds(*args, False), whole, rel_tol=1e-14)
    assert math.isclose(seconds(*args, True), selective, rel_tol=1e-14)
    if whole != selective:
        assert selects(used / rows, copy, transfer) == (selective < whole)


class Clock:
    """Time passes only while something runs."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def takes(self, *durations: float):
        """A call that takes each of these in turn."""
        left = iter(durations)

        def run() -> None:
            self.now += next(left)

        return run


def test_rates_are_those_of_the_fastest_run():
    clock = Clock()
    copy, transfer = clock.takes(4.0, 0.5, 1.0), clock.takes(8.0, 8.0, 2.0)
    assert Rates.measure(copy, transfer, bytes=1000, clock=clock) == Rates(2000.0, 500.0)
    with pytest.raises(StopIteration):
        copy()


def test_rates_of_this_machine():
    """Real calls and the real clock tell no more than that it is some rate."""
    block = np.ones(1 << 16, np.uint8)
    rates = Rates.measure(block.copy, block.copy, bytes=block.nbytes)
    assert 0 < rates.threshold < 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: threshold(0, 1),
            "the copy rate is 0 bytes per second, expected a positive number",
        ),
        (
            lambda: threshold(1, -2.0),
            "the transfer rate is -2.0 bytes per second, expected a positive number",
        ),
        (
            lambda: selects(0.5, math.nan, 1),
            "the copy rate is nan bytes per second, expected a positive number",
        ),
        (
            lambda: seconds(1, 2, 4, 1, math.inf, True),
            "the transfer rate is inf bytes per second, expected a positive number",
        ),
        (
            lambda: Rates(1, 0),
            "the transfer rate is 0 bytes per second, expected a positive number",
        ),
        (
            lambda: selects([0.5, 1.5], 1, 1),
            "used_fraction holds 1.5, expected fractions of the rows, 0 to 1: divide the rows in "
            "use by the rows of the chunk",
        ),
        (
            lambda: selects(math.nan, 1, 1),
            "used_fraction holds nan, expected fractions of the rows, 0 to 1: divide the rows in "
            "use by the rows of the chunk",
        ),
        (
            lambda: seconds([1, 3], 2, 4, 1, 1, True),
            "rows_used is [1, 3], expected 0 to rows=2: count each row once",
        ),
        (
            lambda: Rates.measure(list, list, bytes=0),
            "bytes=0, expected at least 1",
        ),
        (
            lambda: Rates.measure(list, list, bytes=1, repeats=0),
            "repeats=0, expected at least 1",
        ),
        (
            lambda: Rates.measure(list, list, bytes=8, clock=Clock()),
            "the copy of 8 bytes took no time that the clock can tell: measure with more bytes",
        ),
        (
            lambda: Rates.measure((c := Clock()).takes(1, 1, 1), list, bytes=8, clock=c),
            "the transfer of 8 bytes took no time that the clock can tell: measure with more bytes",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
        call()
