"""The parts of `bench_gpu.py`: what is measured and in which order (`plan`), the processes that
run it until the deadline (`processes`), and the tables of its JSON lines (`report`)."""
