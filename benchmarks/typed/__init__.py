"""Both sides of `bench_typed.py`: models on typed graphs, in gnnjit and in PyTorch Geometric."""
