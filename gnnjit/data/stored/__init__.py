"""Data sets prepared on disk, for graphs and features that exceed memory.

In: a data set of the registry. Out: a folder with a store, a partition and checksums, which
`training` streams from. `prepare` runs in a process of its own, so that its memory is given back.
"""
