"""Which of several calls is faster, and by how much.

Three things make that hard for calls of less than a few milliseconds. Other jobs, and a processor
that changes its clock, make everything slower for seconds: so all calls take turns, and are
compared within each turn. Bursts hit single calls: so the highest and the lowest tenth of these
comparisons count as the next one. (Their mean counts: what a loop takes is the mean, and the median
jumps where a call has two speeds, as calls of a millisecond on several threads do.) And where
arrays lie in memory makes one call up to 20 % slower than another for as long as they stay there
(lines of a cache that collide): so they are put elsewhere for each turn.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SAMPLE = 2e-3
"""Seconds that one reading takes at least: shorter calls are repeated."""

FILL = 0.8
"""Seconds that the readings of each call fill."""

TURNS = (5, 400)
"""At least and at most."""

ROUNDS = 8
"""Times that a comparison is read at most, while it is open which call is the fastest."""

MARGIN = 0.02
"""Part of its time by which a call may be slower and yet count as the fastest."""

ERRORS = 4
"""Standard errors of a mean that have to be less than that. The readings of one second are more
alike than those of another: stretches scatter 1.3 to 1.6 times as much as they tell."""

ENDS = 0.1
"""The share of five comparisons or more, at each end, that count as the next one."""

SMALL = 16 << 20
"""Bytes of an array below which its place matters, and a copy is cheap."""

LONG = 0.1
"""Seconds of a call that brings what it needs into the caches itself."""

SPACERS = (3, 100_000)
"""Arrays that lie between the others for a turn, each of at most so many numbers."""

KEPT = 3
"""Turns for which the places of arrays stay taken, so that the next copies go elsewhere."""

Run = Callable[..., Any]
"""A compiled function of the arrays of a comparison."""


def compare(
    runs: Sequence[Run],
    arrays: Sequence[Any] = (),
    *,
    fill: float | None = None,
    turns: tuple[int, int] = TURNS,
) -> list[float]:
    """Seconds of one call of each, on `arrays`: see `compared`. Where it is open which is the
    fastest, because readings scatter, they are read again, up to `ROUNDS` times."""
    if not runs:
        return []
    found = readings(runs, arrays, fill=fill, turns=turns)
    for _ in range(1, ROUNDS):
        if decided(found):
            break
        found = np.concatenate([found, readings(runs, arrays, fill=fill, turns=turns)])
    return compared(found)


def decided(found: np.ndarray) -> bool:
    """Whether readings (turns x calls) tell that the call with the least share of the turns is the
    fastest, within `MARGIN`: none of the others is faster by more, not even by the mean of its
    comparisons less their error."""
    mean, error = slower(found, int(np.argmin(compared(found))))
    return bool(np.all(mean - error >= -MARGIN))


def slower(found: np.ndarray, than: int) -> tuple[np.ndarray, np.ndarray]:
    """How much longer the other calls take than one, of readings (turns x calls): the means of the
    logarithms of these comparisons (see `clipped`), and `ERRORS` standard errors of them (of a
    winsorized mean: Dixon and Tukey, Technometrics 10, 1968)."""
    logs = np.log(found)
    others = clipped(np.delete(logs - logs[:, [than]], than, axis=1))
    turns = len(others)
    if turns == 1:
        return others[0], np.zeros_like(others[0])
    kept = turns - 2 * _ends(turns)
    error = others.std(axis=0, ddof=1) / math.sqrt(turns) * (turns - 1) / (kept - 1)
    return others.mean(axis=0), ERRORS * error


def compared(found: np.ndarray) -> list[float]:
    """Seconds of each call, of readings (turns x calls): what the fastest turn took, shared out by
    the means of what each call took of its turn (see `clipped`)."""
    logs = np.log(found)
    of_turn = logs.mean(axis=1, keepdims=True)
    return np.exp(of_turn.min() + clipped(logs - of_turn).mean(axis=0)).tolist()


def clipped(logs: np.ndarray) -> np.ndarray:
    """Those of the highest and the lowest tenth of each column (`ENDS`) are the next one."""
    turns, ends = len(logs), _ends(len(logs))
    ordered = np.sort(logs, axis=0)
    return np.clip(logs, ordered[ends], ordered[turns - 1 - ends])


def _ends(turns: int) -> int:
    """Rounded up, but three are kept."""
    return max(min(math.ceil(ENDS * turns), (turns - 3) // 2), 0)


def readings(
    runs: Sequence[Run],
    arrays: Sequence[Any] = (),
    *,
    fill: float | None = None,
    turns: tuple[int, int] = TURNS,
) -> np.ndarray:
    """Seconds of one call of each (turns x calls), each the mean of calls that fill `SAMPLE`. So
    many turns that the readings of each fill `fill` seconds (`FILL` where it is None), within
    `turns`."""
    fill = FILL if fill is None else fill
    rng = np.random.default_rng(0)
    arrays = list(arrays)
    once = [_first(run, arrays) for run in runs]
    calls = [math.ceil(min(max(SAMPLE / t, 1), 1000)) for t in once]
    least, most = turns
    longest = max(t * n for t, n in zip(once, calls, strict=True))
    found = np.empty((min(max(math.ceil(fill / longest), least), most), len(runs)))
    before: collections.deque[Any] = collections.deque(maxlen=KEPT)
    for turn in range(len(found)):
        before.append(arrays)
        spacers, arrays = _elsewhere(arrays, rng)
        for i in np.roll(range(len(runs)), turn):
            if once[i] < LONG:
                jax.block_until_ready(runs[i](*arrays))  # another program had the caches
            found[turn, i] = _reading(runs[i], arrays, calls[i])
        del spacers
    return found


def _first(run: Run, arrays: Sequence[Any]) -> float:
    jax.block_until_ready(run(*arrays))
    return _reading(run, arrays, 1)


def _reading(run: Run, arrays: Sequence[Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(run(*arrays))
    return max(time.perf_counter() - start, 1e-9) / calls


def _elsewhere(arrays: list[Any], rng: np.random.Generator) -> tuple[Any, list[Any]]:
    """Arrays to hold as long as the others, and `arrays` with copies of the small ones."""
    number, size = SPACERS
    spacers = [np.empty(n, np.float32) for n in rng.integers(1, size, number)]
    return spacers, jax.block_until_ready(jax.tree.map(_copied, arrays))


def _copied(x: Any) -> Any:
    if not isinstance(x, jax.Array) or x.nbytes >= SMALL or len(x.devices()) > 1:
        return x
    return jnp.array(x, copy=True)
