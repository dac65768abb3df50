"""gnnjit: a compiler for graph neural networks in JAX."""

from gnnjit.frontend.vocabulary import (
    degree,
    dropout,
    logsumexp,
    max,
    mean,
    min,
    random_uniform,
    softmax,
    std,
    sum,
    var,
)
from gnnjit.graph import Bipartite, Graph
from gnnjit.layer import layer

__all__ = [
    "Bipartite",
    "Graph",
    "degree",
    "dropout",
    "layer",
    "logsumexp",
    "max",
    "mean",
    "min",
    "random_uniform",
    "softmax",
    "std",
    "sum",
    "var",
]
