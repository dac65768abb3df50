"""Graphs of other libraries: SciPy sparse matrices and jraph's `GraphsTuple`, to and from `Graph`;
PyG's `HeteroData` and DGL's heterographs, to and from `TypedGraph`.

In: an object of the other library, checked before it is believed. Out: a `Graph`, with the
features that came along; and back. Users call it as `gnnjit.interop.scipy`, `jraph`,
`pyg` and `dgl`; nothing else in gnnjit does.
"""
