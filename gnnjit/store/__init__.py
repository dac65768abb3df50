"""Arrays with a row per vertex or edge, by name: in memory, on disk, or spread over processes.

In: NumPy arrays. Out: rows of them, by range or by index. `streaming` and `training` read and write
stores; a store knows nothing about graphs.
"""
