"""Graphs larger than the device's memory: their stores, their edge grid, what streams over it."""

from gnnjit.store.collective import CrewStore
from gnnjit.store.disk import DiskStore
from gnnjit.store.memory import HostStore
from gnnjit.store.store import VertexStore
from gnnjit.streaming.grid.arrays import EdgeArray, VertexArray
from gnnjit.streaming.grid.streamed_graph import StreamedGraph

__all__ = [
    "CrewStore",
    "DiskStore",
    "EdgeArray",
    "HostStore",
    "StreamedGraph",
    "VertexArray",
    "VertexStore",
]
