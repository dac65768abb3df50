"""Parts of a graph, drawn on the host: what mini-batches are made of.

A sampler enters with a `Graph` or a `TypedGraph`; a `Sample` leaves it, and from that the graphs
that layers run on.
Every sample is a function of the graph, the seeds and a seed. A `Loader` makes padded batches of
samples, some ahead of the one who computes. Training calls this room.
"""

from gnnjit.sample.batch import Batch
from gnnjit.sample.clusters import ClusterSampler, GraphSampler
from gnnjit.sample.features import Stored
from gnnjit.sample.frontier import FrontierSampler
from gnnjit.sample.grain import BatchSource, iter_dataset
from gnnjit.sample.hops import HopSampler
from gnnjit.sample.induced import InducedSampler
from gnnjit.sample.links import LinkSample, LinkSampler
from gnnjit.sample.loader import Loader, Report
from gnnjit.sample.negative import Negatives, NegativeSampler
from gnnjit.sample.neighbor import NeighborSampler
from gnnjit.sample.padding import Padding, Shapes, plan_graph_shapes, plan_shapes
from gnnjit.sample.saint import Normalized
from gnnjit.sample.sample import Sample, Sampler
from gnnjit.sample.subgraph import EdgeSampler, VertexSampler, WalkSampler
from gnnjit.sample.timeline import Event, plot_timeline
from gnnjit.sample.typed import TypedNeighborSampler, TypedSample
from gnnjit.sample.typed_links import TypedLinkSample, TypedLinkSampler
from gnnjit.sample.workers import Workers

__all__ = [
    "Batch",
    "BatchSource",
    "ClusterSampler",
    "EdgeSampler",
    "Event",
    "FrontierSampler",
    "GraphSampler",
    "HopSampler",
    "InducedSampler",
    "LinkSample",
    "LinkSampler",
    "Loader",
    "NegativeSampler",
    "Negatives",
    "NeighborSampler",
    "Normalized",
    "Padding",
    "Report",
    "Sample",
    "Sampler",
    "Shapes",
    "Stored",
    "TypedLinkSample",
    "TypedLinkSampler",
    "TypedNeighborSampler",
    "TypedSample",
    "VertexSampler",
    "WalkSampler",
    "Workers",
    "iter_dataset",
    "plan_graph_shapes",
    "plan_shapes",
    "plot_timeline",
]
