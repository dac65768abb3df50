"""The parts of `bench_grid.py`."""
