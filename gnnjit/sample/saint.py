"""GraphSAINT's normalisation: means over samples that are those of the whole graph.

Zeng, Zhou, Srivastava, Kannan & Prasanna, "GraphSAINT: Graph Sampling Based Inductive Learning
Method" (2020), sections 3.2 and 3.3.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph.validate import shown
from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.frontier import at_least_one
from gnnjit.sample.induced import InducedSampler
from gnnjit.sample.random import key_of
from gnnjit.sample.sample import Sample
from gnnjit.sample.workers import ALONE, Workers

_MOST = 2**16 - 1


class Normalized:
    """A sampler of subgraphs whose samples carry weights of vertices and edges.

    Some samples are drawn beforehand and counted: vertex `v` is in `C_v` of S, the edge `u -> v` in
    `C_uv`. A sample then has

    - `weight[v] = S / (N C_v)`, the paper's `1 / lambda_v` (equation 3): the sum over a sample of
      `weight[v] loss[v]` has the mean loss of the N vertices as its expectation. For the mean over
      T training vertices alone, give the others a loss of 0 and multiply by N / T.
    - `edge_weight[u -> v] = (d_v / deg(v)) C_v / C_uv`, with `d_v` the in-edges of `v` in the
      sample and `C_uv / C_v` the paper's `alpha` (equation 2): a mean over the sample's edges of
      weight times feature, as of `gnnjit.nn.SAGE(aggregator="mean")` with these as `edges=`, has
      the mean over the graph's edges as its expectation, given that `v` is in the sample.

    A vertex or edge that was never counted has the weight of one that was counted once, the largest
    there is. The more samples are counted, the fewer of them there are.

    Args:
        sampler: any that takes no seeds.
        samples: S.
        seed: of these samples. Their seeds are derived from it, so that batches of seeds 0, 1, ...
            are others.
        workers: threads that draw them, a sample each; the counts are the same.

    Attributes:
        sampler: as given.
        seeds: the seed of each of the S samples.
        seconds: what drawing and counting them took, to be counted in any time that is reported.
        vertex_count: `uint16[N]`, `C_v`.
        edge_count: `uint16[E]`, `C_uv`, by slot: edges by destination, as in `Sample.slots`.

    Raises:
        SampleError: the sampler takes seeds, or a number is out of range.
    """

    num_seeds = None
    num_layers = None

    def __init__(
        self,
        sampler: InducedSampler,
        samples: int = 50,
        *,
        seed: int = 0,
        workers: Workers = ALONE,
    ) -> None:
        where = "Normalized"
        if not isinstance(sampler, InducedSampler):
            raise SampleError(
                f"{where}: sampler is {shown(sampler)}, expected one that draws from the whole "
                f"graph: a FrontierSampler, VertexSampler, EdgeSampler or WalkSampler"
            )
        samples = at_least_one(where, "samples", samples)
        if samples > _MOST:
            raise SampleError(f"{where}: samples is {samples}, expected at most {_MOST}")
        started = time.perf_counter()
        self.sampler = sampler
        self.seeds = [int(key_of(where, seed, 1 + i)) for i in range(samples)]
        self.vertex_count = np.zeros(sampler.adjacency.num_nodes, np.uint16)
        self.edge_count = np.zeros(sampler.adjacency.num_edges, np.uint16)
        for first in range(0, samples, workers.count):
            some = self.seeds[first : first + workers.count]
            drawn = workers.map(lambda i, some=some: sampler.sample(seed=some[i]), len(some))
            for sample in drawn:
                self.vertex_count[sample.vertices] += 1
                _count(sample.slots, self.edge_count)
        self.seconds = time.perf_counter() - started

    @property
    def adjacency(self) -> Adjacency:
        """The in-edges of the graph that samples are of."""
        return self.sampler.adjacency

    def sample(self, seeds: None = None, seed: int = 0, *, workers: Workers = ALONE) -> Sample:
        """The sampler's sample, with `weight` and `edge_weight`.

        Args, Raises: as of the sampler.
        """
        sample = self.sampler.sample(seeds, seed, workers=workers)
        size, counts = len(sample.vertices), self.vertex_count[sample.vertices]
        weight = len(self.seeds) / (len(self.vertex_count) * np.maximum(counts, 1.0))
        edge_weight = np.empty(len(sample.slots), np.float32)
        workers.run(
            lambda b, e: _weigh(
                sample.indptr, sample.slots, sample.degree, counts, self.edge_count, b, e,
                edge_weight,
            ),
            size,
        )  # fmt: skip
        return dataclasses.replace(
            sample, weight=weight.astype(np.float32), edge_weight=edge_weight
        )


@njit(nogil=True, cache=True)
def _count(slots, counts):  # type: ignore[no-untyped-def]
    for slot in slots:
        counts[slot] += 1


@njit(nogil=True, cache=True)
def _weigh(indptr, slots, degree, counts, edge_counts, begin, end, out):  # type: ignore[no-untyped-def]
    for v in range(begin, end):
        share = max(1, counts[v]) * (indptr[v + 1] - indptr[v]) / max(1, degree[v])
        for i in range(indptr[v], indptr[v + 1]):
            out[i] = share / max(1, edge_counts[slots[i]])
