"""What `bench_neighborhoods.py` measures: graphs, and the aggregation of PinSage and MAGNN in
gnnjit and in PyTorch Geometric."""
