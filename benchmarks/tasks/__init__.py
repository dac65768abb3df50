"""What `bench_accuracy.py` trains with `gnnjit.training.train`: links, types, several labels."""
