"""Arrays that travel between devices as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np


def together(move: Callable[[Any], Any], arrays: Sequence[Any]) -> list[Any]:
    """What `move` makes of each, in the same shape. Rows of one dtype go side by side, since a
    collective takes time to start."""
    moved: list[Any] = list(arrays)
    for dtype in dict.fromkeys(x.dtype for x in arrays):
        at = [i for i, x in enumerate(arrays) if x.dtype == dtype]
        if len(at) == 1:
            moved[at[0]] = move(arrays[at[0]])
            continue
        widths = [math.prod(arrays[i].shape[1:]) for i in at]
        flat = [arrays[i].reshape(len(arrays[i]), w) for i, w in zip(at, widths, strict=True)]
        ends = np.cumsum(widths)[:-1].tolist()
        parts = jnp.split(move(jnp.concatenate(flat, axis=1)), ends, axis=1)
        for i, x in zip(at, parts, strict=True):
            moved[i] = x.reshape(arrays[i].shape)
    return moved
