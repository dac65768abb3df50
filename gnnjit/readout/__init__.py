"""Readouts: reductions over the vertices, or the edges, of each graph of a batch.

What a layer says beside `gnnjit.sum` and its like. In: a value of vertices or of edges, in a layer.
Out: one value for each graph, as `e.globals` is. `gnnjit.frontend.readout` says how it is meant.
"""

from gnnjit.frontend.readout import max, mean, min, softmax, std, sum

__all__ = ["max", "mean", "min", "softmax", "std", "sum"]
