"""gnnjit: a compiler for graph neural networks in JAX."""

from gnnjit import readout as readout
from gnnjit.compiler.check import check
from gnnjit.compiler.explain import explain
from gnnjit.compiler.layer import layer, reference
from gnnjit.frontend.folding import fold
from gnnjit.frontend.products import all, any, prod
from gnnjit.frontend.ranks import argmax, argmin, median, quantile, sort, top_k
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
from gnnjit.graph import Bipartite, Graph, TypedGraph
from gnnjit.sharding.rebalance import rebalance
from gnnjit.sharding.shard import shard
from gnnjit.streaming.stream import stream
from gnnjit.system.allocator import keep_memory
from gnnjit.system.autotuning import autotuning
from gnnjit.system.memory_budget import memory_budget
from gnnjit.system.portable import portable

__all__ = [
    "Bipartite",
    "Graph",
    "TypedGraph",
    "all",
    "any",
    "argmax",
    "argmin",
    "autotuning",
    "check",
    "degree",
    "dropout",
    "explain",
    "fold",
    "keep_memory",
    "layer",
    "logsumexp",
    "max",
    "mean",
    "median",
    "memory_budget",
    "min",
    "portable",
    "prod",
    "quantile",
    "random_uniform",
    "rebalance",
    "reference",
    "shard",
    "softmax",
    "sort",
    "std",
    "stream",
    "sum",
    "top_k",
    "var",
]
