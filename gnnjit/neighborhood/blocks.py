"""Work over all roots, block by block, so that somebody can watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnnjit.sample.workers import Workers

BLOCK = 1 << 16
"""Roots of a block."""


def run_in_blocks(
    work: Callable[[int, int], Any],
    roots: int,
    workers: Workers,
    watch: Callable[[int, int], Any] | None = None,
    done: int = 0,
    total: int | None = None,
) -> None:
    """`work(begin, end)` over ranges that make up all roots, in threads; after each block, `watch`
    is told what is done, `done` before it included, and the total."""
    for first in range(0, roots, BLOCK):
        count = min(BLOCK, roots - first)
        workers.run(lambda b, e, first=first: work(first + b, first + e), count)
        if watch is not None:
            watch(done + first + count, roots if total is None else total)
