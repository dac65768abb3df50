"""A streamed function as sweeps over the grid, and the executables of its steps.

In: a traced function of whole arrays. Out: sweeps with the fewest bytes (`sweeps`, `min_cut`), what
runs for a block and for a chunk (`executables`), and all of it in order (`steps`). Imports nothing
else of `streaming`; `memory` and `runtime` call it.
"""
