"""Measured points that the cost model learns from: kernels in isolation and random layers.

`gnnjit calibrate` runs it on this machine; `ship_weights` makes the weights that are shipped.
"""
