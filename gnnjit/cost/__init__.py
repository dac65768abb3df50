"""What operations cost: a linear model, learned from measured runs.

In: a program and the sizes of a graph. Out: predicted seconds and bytes, with weights that are
shipped, calibrated on this machine, or learned since. `planner` asks for plans, `sharding` for cuts
and exchanges; unknown operations are an error, never free.
"""
