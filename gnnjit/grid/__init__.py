"""Graphs larger than the device's memory: their stores, their edge grid, what streams over it."""

from gnnjit.grid.disk import DiskStore
from gnnjit.grid.store import HostStore, VertexStore
from gnnjit.grid.streamed import StreamedGraph, VertexArray

__all__ = ["DiskStore", "HostStore", "StreamedGraph", "VertexArray", "VertexStore"]
