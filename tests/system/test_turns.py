"""Short turns of Python's threads, and the usual ones after them."""

from __future__ import annotations

import sys

import pytest

from gnnjit.system import turns


def test_turns_are_short_within():
    before = sys.getswitchinterval()
    with turns.short():
        assert sys.getswitchinterval() == pytest.approx(turns.SHORT)
        with turns.short():
            pass
        assert sys.getswitchinterval() == pytest.approx(turns.SHORT)
    assert sys.getswitchinterval() == before


def test_turns_that_are_shorter_stay():
    before = sys.getswitchinterval()
    sys.setswitchinterval(turns.SHORT / 2)
    try:
        with turns.short():
            assert sys.getswitchinterval() == pytest.approx(turns.SHORT / 2)
        assert sys.getswitchinterval() == pytest.approx(turns.SHORT / 2)
    finally:
        sys.setswitchinterval(before)


def test_turns_end_with_an_error():
    before = sys.getswitchinterval()
    with pytest.raises(KeyError), turns.short():
        raise KeyError
    assert sys.getswitchinterval() == before


def test_what_somebody_else_sets_stays():
    before = sys.getswitchinterval()
    try:
        with turns.short():
            sys.setswitchinterval(before / 4)
        assert sys.getswitchinterval() == pytest.approx(before / 4)
    finally:
        sys.setswitchinterval(before)
