"""What a memory budget allows: how many blocks, and what stays on the device between steps.

In: executables, a graph and a budget. Out: a `Layout`, with the memory plan of its steps and the
headroom that each needs to begin. Imports `grid` and `program`; `runtime` and `compile` call it.
"""
