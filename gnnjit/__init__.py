"""gnnjit: a compiler for graph neural networks in JAX."""

from gnnjit import readout as readout
from gnnjit.compiler.check import check
from gnnjit.compiler.explain import explain
from gnnjit.compiler.layer import layer, reference
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
    "autotuning",
    "check",
    "degree",
    "dropout",
    "explain",
    "keep_memory",
    "layer",
    "logsumexp",
    "max",
    "mean",
    "memory_budget",
    "min",
    "portable",
    "random_uniform",
    "rebalance",
    "reference",
    "shard",
    "softmax",
    "std",
    "stream",
    "sum",
    "var",
]
