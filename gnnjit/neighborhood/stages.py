"""What models take and say beside layers: any form of an HDG, and a stage of its last level."""

from __future__ import annotations

from typing import Any

import jax

from gnnjit.graph import Bipartite
from gnnjit.neighborhood.hdg import HDG
from gnnjit.neighborhood.sharded import ShardedHDG
from gnnjit.neighborhood.streamed import StreamedHDG
from gnnjit.shapes import PyTree

AnyHDG = HDG | ShardedHDG | StreamedHDG
"""In memory, over several devices, or in parts from a store."""


def side_by_side(level: Any, ends: Bipartite) -> PyTree:
    """A stage of the level from (root, type) to roots: the values of all types of a root side by
    side, `[roots, types, ...]`, for the update to choose from. It copies nothing."""
    return jax.tree.map(lambda a: a.reshape(level.num_dst, -1, *a.shape[1:]), ends.src)
