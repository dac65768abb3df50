"""Neighbourhoods that are not edges: selected once, then aggregated level by level.

A `Graph` or `TypedGraph` enters a selection function; an `HDG` leaves it, a pytree of levels that
are graphs, for layers and for training. Selection runs on the host, with what `sample` draws by.
Wang et al., "FlexGraph" (2021), call these neighbour selection, aggregation and update.
"""

from gnnjit.neighborhood.anchors import anchors
from gnnjit.neighborhood.direct import direct
from gnnjit.neighborhood.hdg import HDG
from gnnjit.neighborhood.hops import hops
from gnnjit.neighborhood.metapaths import metapaths
from gnnjit.neighborhood.random_walks import random_walks
from gnnjit.neighborhood.report import Report
from gnnjit.neighborhood.select import Records, select
from gnnjit.neighborhood.sharded import ShardedHDG, shard
from gnnjit.neighborhood.stages import side_by_side
from gnnjit.neighborhood.streamed import StreamedHDG, stream
from gnnjit.neighborhood.take import take

__all__ = [
    "HDG",
    "Records",
    "Report",
    "ShardedHDG",
    "StreamedHDG",
    "anchors",
    "direct",
    "hops",
    "metapaths",
    "random_walks",
    "select",
    "shard",
    "side_by_side",
    "stream",
    "take",
]
