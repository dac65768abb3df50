"""Calls are compared with each other, whatever else slows the machine."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.system import timing


def test_what_slows_a_turn_slows_all():
    """A call that takes 1.1 times as long as another one, while the machine gets three times as
    slow: the least of each would say 1.65."""
    slow = np.array([1.0, 1.5, 3.0, 2.0, 1.0])
    found = slow[:, None] * np.array([1.0, 1.1])
    found[4, 1] = 50.0  # a burst, where the machine is fast
    first, second = timing.compared(found)
    assert second / first == pytest.approx(1.1)
    found = np.tile(slow, 4)[:, None] * np.array([1.0, 1.1])
    found[0, 1] = found[4, 1] = 2.2
    first, second = timing.compared(found)
    assert second / first == pytest.approx(1.1)


def test_the_fastest_turn_says_how_long():
    found = np.array([[2.0, 4.0], [1.0, 2.0], [3.0, 6.0]])
    assert timing.compared(found) == pytest.approx([1.0, 2.0])
    assert timing.compared(found[:, :1]) == pytest.approx([1.0])


def test_what_scatters_is_read_again(monkeypatch):
    """The second call is 1.03 times as slow; until the third round it could be the faster."""

    def scattered(turns: int, by: float) -> np.ndarray:
        return np.exp(np.linspace(-by, by, turns)[:, None] * [0.0, 1.0]) * [1.0, 1.03]

    rounds = [scattered(5, 0.4), scattered(5, 0.4), scattered(1001, 0.01), scattered(5, 0.4)]
    asked = iter(rounds)
    monkeypatch.setattr(timing, "readings", lambda *_, **__: next(asked))
    monkeypatch.setattr(timing, "ROUNDS", 10)
    first, second = timing.compare([print, print])
    assert second / first == pytest.approx(1.03, abs=1e-3)
    assert next(asked) is rounds[3]


def test_how_often_what_scatters_is_read(monkeypatch):
    scattered = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]])
    asked = []
    monkeypatch.setattr(timing, "readings", lambda *_, **__: asked.append(1) or scattered)
    monkeypatch.setattr(timing, "ROUNDS", 3)
    timing.compare([print, print])
    assert len(asked) == 3


def test_when_it_is_decided():
    turns = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    exact = turns[:, None] * np.array([1.0, 1.001, 1.0])
    assert timing.decided(exact)
    assert timing.decided(exact[:, :1])
    far = turns[:, None] * np.array([1.0, 3.0])
    far[:, 1] *= np.array([1.0, 1.5, 0.6, 1.2, 0.8])  # scatters, but is not the fastest
    assert timing.decided(far)
    near = turns[:, None] * np.array([1.0, 1.05])
    near[:, 1] *= np.array([1.0, 1.5, 0.6, 1.2, 0.8])
    assert not timing.decided(near)


def test_how_much_slower():
    turns = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    scattered = np.array([0.1, 1.0, 4.0, 4.0, 50.0])
    found = turns[:, None] * np.stack([scattered, np.full(5, 1.0), np.full(5, 0.5)], axis=1)
    mean, error = timing.slower(found, 1)
    np.testing.assert_allclose(np.exp(mean), [4.0**0.6, 0.5], rtol=1e-12)
    # Of 1, 1, 4, 4, 4, of which three count.
    deviation = np.log(4.0) * np.sqrt(5 / 4 * 0.4 * 0.6)
    wanted = timing.ERRORS * deviation / np.sqrt(5) * 4 / 2
    np.testing.assert_allclose(error, [wanted, 0.0], rtol=1e-9, atol=1e-12)
    mean, error = timing.slower(found[2:3], 1)
    np.testing.assert_allclose(np.exp(mean), [4.0, 0.5], rtol=1e-12)
    assert error.tolist() == [0.0, 0.0]


def test_a_call_with_two_speeds():
    """The faster one in 11 of 20 turns: its mean says which is slower, the median does not."""
    other = np.where(np.arange(20) < 11, 0.95, 1.2)
    first, second = timing.compared(np.stack([np.ones(20), other], axis=1))
    assert second / first == pytest.approx(0.95**0.55 * 1.2**0.45)


@pytest.mark.parametrize(
    ("turns", "kept"), [(1, 1), (3, 3), (4, 4), (5, 3), (10, 8), (20, 16), (21, 15)]
)
def test_how_many_ends_are_clipped(turns, kept):
    logs = np.random.default_rng(turns).permutation(turns)[:, None] * [1.0, -2.0]
    found = timing.clipped(logs)
    ends = (turns - kept) // 2
    np.testing.assert_array_equal(found[:, 0], np.clip(logs[:, 0], ends, turns - 1 - ends))
    np.testing.assert_array_equal(found[:, 1], -2.0 * found[:, 0])


def test_nothing_to_compare():
    assert timing.compare([]) == []


def test_small_arrays_lie_elsewhere_in_each_turn():
    places, large = [], []
    arrays = [{"x": jnp.arange(1000.0), "key": jax.random.key(3)}, jnp.zeros(timing.SMALL // 4), 7]

    def run(some, zeros, number):
        np.testing.assert_array_equal(some["x"], np.arange(1000.0))
        assert some["key"] == jax.random.key(3)
        assert number == 7
        places.append(some["x"].unsafe_buffer_pointer())
        large.append(zeros.unsafe_buffer_pointer())
        return some["x"]

    found = timing.readings([run], arrays, fill=0.0, turns=(9, 9))
    assert found.shape == (9, 1)
    turns = [p for p, before in itertools.pairwise(places[::-1]) if p != before]
    assert len(turns) == 9
    assert all(len(set(turns[k : k + 4])) == 4 for k in range(6))
    assert len(set(large)) == 1


def test_calls_take_turns():
    """Every reading follows a call of the same that does not count; who is first changes."""
    called = []
    runs = [lambda i=i: called.append(i) for i in range(3)]
    found = timing.readings(runs, fill=0.0, turns=(3, 3))
    assert found.shape == (3, 3)
    assert (found > 0).all()
    turns = [i for i, before in zip(called, [None, *called], strict=False) if i != before]
    assert turns[:3] == [0, 1, 2]  # how long does each take?
    assert "".join(map(str, turns[2:])).startswith("2012")


def test_more_turns_until_they_fill_the_time(monkeypatch):
    """By a clock that ticks once per reading."""
    ticks = iter(np.arange(1e6) * 1e-3)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert len(timing.readings([lambda: None], fill=10e-3, turns=(2, 400))) == 5  # of two calls
    assert len(timing.readings([lambda: None], fill=0.0, turns=(2, 400))) == 2
    assert len(timing.readings([lambda: None], fill=9.0, turns=(2, 20))) == 20
