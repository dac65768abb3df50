"""The parts of `bench_shard.py` and `bench_partition.py`."""
