"""Periodic boxes, and what their sides may be."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph.validate import is_traced, shown
from gnnjit.shapes import ArrayLike


def displacement(a: ArrayLike, b: ArrayLike, box: ArrayLike | None = None) -> jax.Array:
    """`a - b`, in a periodic box the shortest of its images.

    Args:
        a, b: `[..., D]`, positions.
        box: the box's sides, a number or `[D]`; 0 or infinity where a side is open.
    """
    difference = jnp.asarray(a) - jnp.asarray(b)
    if box is None:
        return difference
    sides = jnp.asarray(box, difference.dtype)
    open_side = (sides == 0) | jnp.isinf(sides)
    safe = jnp.where(open_side, 1, sides)
    return difference - jnp.where(open_side, 0, safe * jnp.round(difference / safe))


def read_box(box: Any, dimensions: int) -> tuple[float, ...] | None:
    """The sides of a concrete box, 0 where open. Raises GraphError where they are none."""
    if box is None:
        return None
    try:
        sides = np.asarray(box, np.float64)
    except (TypeError, ValueError):
        sides = np.full(1, np.nan)
    if sides.shape not in ((), (dimensions,)) or np.isnan(sides).any() or (sides < 0).any():
        raise GraphError(
            f"box is {shown(box)}, expected a side, or {dimensions} of them, >= 0 (0: open): pass "
            "the sides of an orthogonal box; triclinic boxes are not known here"
        )
    return tuple(0.0 if np.isinf(s) else float(s) for s in np.broadcast_to(sides, dimensions))


def read_positions(positions: ArrayLike) -> jax.Array:
    """Raises GraphError unless they are `[N, D]` of floats and, where known, finite."""
    found = jnp.asarray(positions)
    if found.ndim != 2 or not jnp.issubdtype(found.dtype, jnp.floating):
        raise GraphError(
            f"positions are {found.dtype} of shape {tuple(found.shape)}, expected floats of shape "
            "[vertices, dimensions]"
        )
    if not is_traced(found) and not np.isfinite(np.asarray(found)).all():
        row = int(np.argwhere(~np.isfinite(np.asarray(found)))[0, 0])
        raise GraphError(
            f"position {row} is {shown(np.asarray(found[row]).tolist())}, expected finite numbers: "
            "mark padding with mask= and give it any finite position"
        )
    return found
