"""GPU kernels over the edges of a graph, in Pallas. Imports JAX alone, nothing of gnnjit.

`rows.py`: each row of a compressed structure is owned by one program, which reduces over its
edges. `edges.py`: all edges, reduced into values shared by the whole graph. Both evaluate a
function of the caller on tiles; `traversal.py` says what such a function takes and gives.
`triton.py` is the only file that names a backend of Pallas.
"""
