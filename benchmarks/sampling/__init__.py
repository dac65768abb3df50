"""Sampled batches: gnnjit's and PyTorch Geometric's, each in processes of its own."""
