"""Graphs larger than the device's memory: their stores, their edge grid, what streams over it."""

from gnnjit.grid.crew_store import CrewStore
from gnnjit.grid.disk import DiskStore
from gnnjit.grid.host import HostStore
from gnnjit.grid.row_arrays import EdgeArray, VertexArray
from gnnjit.grid.store import VertexStore
from gnnjit.grid.streamed import StreamedGraph

__all__ = [
    "CrewStore",
    "DiskStore",
    "EdgeArray",
    "HostStore",
    "StreamedGraph",
    "VertexArray",
    "VertexStore",
]
