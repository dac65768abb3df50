"""Layers whose matrices multiply every message, in gnnjit's vocabulary and in plain JAX.

`network` says what a network is and makes graphs, features, parameters and losses; `simulators`,
`molecules` and `convolutions` hold the networks, `table.NETWORKS` lists them. `bench_edge_networks`
measures two stacked blocks of each in processes of their own (`child`, `with_pyg`)
and prints them (`report`); `bench_compile` takes one block.
"""

FORMS = ("layer", "plain", "split", "checkpoint", "pyg")
