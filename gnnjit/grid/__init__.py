"""Graphs larger than the device's memory: their stores, their edge grid, what streams over it."""

from gnnjit.grid.row_arrays import EdgeArray, VertexArray
from gnnjit.grid.streamed import StreamedGraph
from gnnjit.store.collective import CrewStore
from gnnjit.store.disk import DiskStore
from gnnjit.store.memory import HostStore
from gnnjit.store.store import VertexStore

__all__ = [
    "CrewStore",
    "DiskStore",
    "EdgeArray",
    "HostStore",
    "StreamedGraph",
    "VertexArray",
    "VertexStore",
]
