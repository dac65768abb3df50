"""Graphs of other libraries: SciPy sparse matrices and jraph's `GraphsTuple`, to and from `Graph`.

In: an object of the other library, checked before it is believed. Out: a `Graph`, with the
features that came along; and back. Users call it as `gnnjit.interop.scipy` and
`gnnjit.interop.jraph`; nothing else in gnnjit does.
"""
