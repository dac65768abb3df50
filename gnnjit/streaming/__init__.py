"""Graphs larger than the device's memory: the edge grid, and functions streamed over it.

In: a `StreamedGraph` over a store, and any JAX function of one graph (`gnnjit.stream`). Out: the
same numbers, within a memory budget. `runtime` runs what `memory` planned of a `program` over a
`grid`; nothing runs back.
"""

from gnnjit.streaming.grid.arrays import EdgeArray, VertexArray
from gnnjit.streaming.grid.streamed_graph import StreamedGraph
from gnnjit.streaming.typed import StreamedTypedGraph

__all__ = ["EdgeArray", "StreamedGraph", "StreamedTypedGraph", "VertexArray"]
