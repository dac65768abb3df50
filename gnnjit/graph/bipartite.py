"""Features of two vertex sets."""

from __future__ import annotations

import dataclasses
import functools

import jax

from gnnjit.shapes import PyTree


@functools.partial(jax.tree_util.register_dataclass, data_fields=["src", "dst"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class Bipartite:
    """Features of two vertex sets: pytrees of `[num_src, ...]` and `[num_dst, ...]` (or None)."""

    src: PyTree = None
    dst: PyTree = None
