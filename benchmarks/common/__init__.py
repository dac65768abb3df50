"""What all benchmarks share: timing, workloads, tables."""
