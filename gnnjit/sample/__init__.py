"""Parts of a graph, drawn on the host: what mini-batches are made of.

A sampler enters with a `Graph`; a `Sample` leaves it, and from that the graphs that layers run on.
Every sample is a function of the graph, the seeds and a seed. Training calls this room; it knows
graphs alone.
"""

from gnnjit.sample.batch import Batch
from gnnjit.sample.features import Stored
from gnnjit.sample.grain import BatchSource, iter_dataset
from gnnjit.sample.loader import Loader, Report
from gnnjit.sample.neighbor import NeighborSampler
from gnnjit.sample.padding import Padding, Shapes, plan_graph_shapes, plan_shapes
from gnnjit.sample.sample import Sample
from gnnjit.sample.timeline import Event, plot_timeline
from gnnjit.sample.workers import Workers

__all__ = [
    "Batch",
    "BatchSource",
    "Event",
    "Loader",
    "NeighborSampler",
    "Padding",
    "Report",
    "Sample",
    "Shapes",
    "Stored",
    "Workers",
    "iter_dataset",
    "plan_graph_shapes",
    "plan_shapes",
    "plot_timeline",
]
