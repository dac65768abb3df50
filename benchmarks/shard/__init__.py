"""The parts of `bench_shard.py`, a module a question (`bytes`, `memory`, `layer_time`, `check`,
`counts`, `model`), and what these share: graphs and cuts (`work`, `partition_graphs`), compiled
programs and their collectives, the arithmetic of `machines`. `bench_partition.py` uses its graphs.
"""
