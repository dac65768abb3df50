"""Names for array shapes in signatures: what each array holds, and its leading axis.

They are plain aliases (nothing is checked at run time); the letters are those of the docstrings:
`E` edges, `N` vertices, `S` source vertices, `D` destination vertices.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import numpy as np

HostArray: TypeAlias = np.ndarray
ArrayLike: TypeAlias = Any
"""What `numpy.asarray` or `jax.numpy.asarray` takes: arrays, lists, tuples, tracers."""

PyTree: TypeAlias = Any

EdgeIndex: TypeAlias = jax.Array
"""`int32[E]` (`int64` past 2**31 - 1): one vertex per edge, in the order the edges were given."""

EdgeMask: TypeAlias = jax.Array
"""`bool[E]`: False on padding."""

EdgeWeight: TypeAlias = jax.Array
"""`float[E]`: one number per edge."""

RowPointer: TypeAlias = jax.Array
"""`int32[rows + 1]`: row `r` owns the slots `indptr[r]` to `indptr[r + 1] - 1`."""

SlotIndex: TypeAlias = jax.Array
"""`int32[E]`: one vertex or edge number per slot, slots sorted by row."""

VertexIndex: TypeAlias = jax.Array
"""`int32[N]`: one number per vertex."""

VertexWeight: TypeAlias = jax.Array
"""`float[N]`: one number per vertex."""
