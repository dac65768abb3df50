"""The edge grid: vertices in contiguous chunks, edges in blocks of two chunks (NeuGraph, 3.1).

In: edges and vertex data, in any order. Out: a `StreamedGraph` over a store, its chunks of edges
(`EdgeBlocks`) and handles of its arrays. Imports nothing else of `streaming`; all of it calls it.
"""
