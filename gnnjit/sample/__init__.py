"""Parts of a graph, drawn on the host: what mini-batches are made of.

A sampler enters with a `Graph`; a `Sample` leaves it, and from that the graphs that layers run on.
Every sample is a function of the graph, the seeds and a seed. Training calls this room; it knows
graphs alone.
"""

from gnnjit.sample.frontier import FrontierSampler
from gnnjit.sample.induced import InducedSampler
from gnnjit.sample.neighbor import NeighborSampler
from gnnjit.sample.sample import Sample, Sampler
from gnnjit.sample.subgraph import EdgeSampler, VertexSampler, WalkSampler
from gnnjit.sample.workers import Workers

__all__ = [
    "EdgeSampler",
    "FrontierSampler",
    "InducedSampler",
    "NeighborSampler",
    "Sample",
    "Sampler",
    "VertexSampler",
    "WalkSampler",
    "Workers",
]
