"""A layer, from the call to the lowered program: `layer`, `explain` and `check` start here.

In: the user's function, a graph and arrays. Out: arrays, through one JAX primitive that plans when
it is differentiated. It joins `frontend`, `passes`, `planner` and `lower`, which do not know it.
"""
