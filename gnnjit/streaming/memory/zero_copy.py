"""Which rows an operation reads where the store has them."""

from __future__ import annotations

import jax

from gnnjit.frontend.trace_arrays import Array
from gnnjit.store.array_info import ALIGNED
from gnnjit.store.store import VertexStore

ZERO_COPY_BYTES = 64 << 10
"""Bytes of rows from which on they are used where they lie, rather than copied: a map of a file
takes about as long as to copy so many."""


def shares_memory(x: Array, rows: int) -> bool:
    """Whether so many rows of an array are worth using where they lie: the device reads the host's
    memory."""
    return jax.default_backend() == "cpu" and rows * x.row_bytes >= ZERO_COPY_BYTES


def is_zero_copy(store: VertexStore, x: Array, rows: int) -> bool:
    """Whether so many rows, wherever they begin, are there at once: nothing is loaded ahead."""
    return shares_memory(x, rows) and store.shows_rows and x.row_bytes % ALIGNED == 0
