"""The parts of `bench_grid.py`: graphs and steps of training (`training`), bytes of memory plans
(`plans`), and a process that trains within a budget (`child`)."""
