"""Arrays with a row per vertex or edge, by name: in memory, on disk, or spread over processes.

In: NumPy arrays. Out: rows of them, by range or by index. `streaming` and `training` read and write
stores. A store knows rows and names, no edges.
"""

from gnnjit.store.collective import CollectiveStore
from gnnjit.store.disk import DiskStore
from gnnjit.store.memory import HostStore
from gnnjit.store.store import VertexStore

__all__ = ["CollectiveStore", "DiskStore", "HostStore", "VertexStore"]
