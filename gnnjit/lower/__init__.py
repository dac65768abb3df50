"""Turns an optimised program into code: the floor between the passes and the planner.

In: a program whose edge work is inside aggregates, a graph, arrays. Out: arrays. `run_program` runs
a program; its aggregates are binds of one primitive (`aggregate`, closed under differentiation),
which `dispatch` turns into code when it is lowered: on one device, or on shards (`sharded/`).

An aggregate is first optimised as a program of its own (`choose.traversals`). Each traversal in it
goes to the first lowering of `choose.LOWERINGS` that has no reason against it. A lowering answers
`why_not(request)` and runs a request (`lowering.py` defines both): Pallas on GPUs (`pallas/`),
generated machine code on CPUs (`cpu/`), XLA's operations everywhere (`xla/`), both for edge
networks on GPUs (`xla/staged.py`). `accumulate` does the
same for a chunk of the edges, merged with earlier chunks (`partial_results`), for streaming.

The planner, the compiler and streaming call this room; it knows nothing of layers or plans.
"""
