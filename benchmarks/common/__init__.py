"""What the benchmarks share.

`measure` times calls in turns and workers in processes of their own, `workloads` makes the graphs,
parameters and layers, `planner_options` the command line of the planner's benchmarks, `report` the
tables of JSON lines. Everything in benchmarks/ may import it.
"""
