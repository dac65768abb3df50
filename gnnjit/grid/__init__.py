"""Graphs larger than the device's memory: their stores, their edge grid, what streams over it."""

from gnnjit.grid.disk import DiskStore
from gnnjit.grid.row_arrays import EdgeArray, VertexArray
from gnnjit.grid.shared_store import SharedStore
from gnnjit.grid.store import HostStore, VertexStore
from gnnjit.grid.streamed import StreamedGraph

__all__ = [
    "DiskStore",
    "EdgeArray",
    "HostStore",
    "SharedStore",
    "StreamedGraph",
    "VertexArray",
    "VertexStore",
]
