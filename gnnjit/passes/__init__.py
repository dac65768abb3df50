"""Rewrites of programs that keep their meaning, one a file; the file has the name of the pass.

In and out: a `gnnjit.ir.program`. `pipeline` lists the passes in the order in which they run, and
runs them; `analysis` is what they ask of a program first. Passes know no graph and no costs: what
to do where it depends on these is decided by the planner, which hands them its `Choices`. The
planner and the compiler run them on a layer, the lowerings on each traversal.
"""
