"""Threads that share the work of one sampler call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gnnjit.errors import SampleError
from gnnjit.graph.validate import as_count

T = TypeVar("T")

SMALLEST = 2048
"""Elements that are worth a thread."""


class Workers:
    """`count` threads, this one included, for functions that hold no lock while they work.

    Numba's own threads are not used: of its three ways to start them, the one that is always there
    cannot be entered from two threads at once, and the loader's threads do that.
    """

    def __init__(self, count: int = 1) -> None:
        count = as_count("threads", count)
        if count < 1:
            raise SampleError(f"threads is {count}, expected at least 1")
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "gnnjit-sample") if count > 1 else None

    def run(self, work: Callable[[int, int], Any], size: int) -> None:
        """`work(begin, end)` over ranges that make up `range(size)`; what it raises is raised."""
        parts = 1 if self._pool is None else max(1, min(self.count, size // SMALLEST))
        bounds = [size * i // parts for i in range(parts + 1)]
        ranges = list(itertools.pairwise(bounds))
        rest = [self._pool.submit(work, *r) for r in ranges[1:]] if self._pool else []
        try:
            work(*ranges[0])
        finally:
            for future in rest:
                future.result()

    def map(self, work: Callable[[int], T], size: int) -> list[T]:
        """`work(i)` for each of `range(size)`, which is worth a thread each; what it raises is
        raised."""
        pool = self._pool
        if pool is None:
            return [work(i) for i in range(size)]
        rest = {i: pool.submit(work, i) for i in range(size) if i % self.count}
        try:
            own = {i: work(i) for i in range(0, size, self.count)}
        finally:
            others = {i: future.result() for i, future in rest.items()}
        return [own[i] if i in own else others[i] for i in range(size)]

    def close(self) -> None:
        """End the threads; those at work finish first."""
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


ALONE = Workers()
"""The calling thread."""
