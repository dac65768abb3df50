"""The choice among plans of a layer: what is stored, in which order it multiplies, where it runs.

In: a program of the frontend and the sizes of a graph. Out: a `Plan`, the fastest predicted or
measured one that fits the memory budget. `compiler` asks when a layer is called or differentiated.
"""
