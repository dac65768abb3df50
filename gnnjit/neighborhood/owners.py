"""Which part of an HDG each root belongs to, so that parts cost the same.

Wang et al., "FlexGraph" (2021), section 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph.reading import read_on_host
from gnnjit.neighborhood.hdg import HDG
from gnnjit.shapes import HostArray


def owners(hdg: HDG, count: int, partition: Any = None) -> HostArray:
    """`int[roots]`, the part of each: as given, or else cut as roots are numbered, where the sums
    of their costs are equal. A root costs as many as it has edges in all levels.

    Raises GraphError where `partition` has another shape.
    """
    if partition is not None:
        own = read_on_host("partition", partition)
        if own.shape != (hdg.num_roots,):
            raise GraphError(
                f"partition has shape {own.shape}, expected ({hdg.num_roots},): pass the shard of "
                f"each root"
            )
        return own
    cost = np.ones(hdg.num_roots)
    for level, roots in zip(hdg.levels, hdg.roots(), strict=True):
        degree = np.asarray(level.in_degree)
        at = np.arange(hdg.num_roots) if roots is None else roots
        cost += np.bincount(at, degree, hdg.num_roots)
    total = np.cumsum(cost)
    middle = total - cost / 2  # whoever has the middle of a root has the root
    return (middle * count / max(1.0, cost.sum())).astype(np.int64)
