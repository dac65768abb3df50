"""Graphs of other libraries: SciPy sparse matrices, jraph's `GraphsTuple`, PyG's `Data`, networkx,
igraph and rustworkx, to and from `Graph`; PyG's `HeteroData` and DGL's heterographs, to and from
`TypedGraph`; neighbour lists of jax-md to `Graph`.

In: an object of the other library, checked before it is believed. Out: a `Graph`, with the
features that came along; and back. Users call it as `gnnjit.interop.scipy`, `jraph`, `pyg`, `dgl`,
`networkx`, `igraph`, `rustworkx` and `jax_md`; `gnnjit.data.read_edges` does too.
"""
