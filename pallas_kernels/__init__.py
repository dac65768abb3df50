"""GPU kernels over the edges of a graph, in Pallas. Imports JAX alone, nothing of gnnjit.

`rows.py`: each row of a compressed structure is owned by one program, which reduces over its
edges. `edges.py`: all edges, reduced into values shared by the whole graph. Both evaluate a
function of the caller on tiles; `traversal.py` says what such a function takes and gives.
`triton.py` has the operations of the backend that they are written for, `special.py` functions that
it lacks. `mosaic.py` has a kernel by row on the other backend, Mosaic GPU.
"""
