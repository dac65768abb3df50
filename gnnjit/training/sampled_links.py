"""Link prediction on sampled parts of a knowledge graph; evaluation stays exact, of all of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnjit.data.links import LinkDataset
from gnnjit.sample import plan_shapes
from gnnjit.shapes import HostArray
from gnnjit.training.config import TrainConfig
from gnnjit.training.errors import TrainError
from gnnjit.training.link_prediction import LinkTask, Part, both_ways
from gnnjit.training.path_prediction import PathTask
from gnnjit.training.sampled import SAMPLERS, Sampling

_PLANNED = 64
"""Parts whose sizes tell what parts are padded to."""


class SampledLinkTask(LinkTask):
    """Facts between the vertices of a sampled part of a graph. A step takes as many of them as the
    configuration's `batch_size`, or all; half of these are what messages go along.

    Rows are computed for the vertices of the part alone, and false ends are drawn from these. Where
    each vertex is drawn with the same chance, each fact is taken equally often, and a vertex has
    more facts in a part than among as many facts that are drawn one by one.

    Attributes:
        sampling: how parts are drawn.
        shape: (vertices, facts) of all batches. What exceeds them is left out.
    """

    def __init__(self, dataset: LinkDataset, config: TrainConfig, sampling: Sampling) -> None:
        self.sampling = sampling
        graph = both_ways(dataset, dataset.train)
        self._sampler: Any = SAMPLERS[sampling.sampler](graph, **sampling.options)
        self._train = dataset.train
        vertices, facts = self._planned(config.seed)
        self._unknown = dataset.num_nodes
        self.shape = vertices, min(facts, config.batch_size or facts)
        super().__init__(dataset, config, self.shape[1])

    def _planned(self, seed: int) -> tuple[int, int]:
        rng = np.random.Generator(np.random.PCG64([seed, _PLANNED]))
        sizes = []
        for _ in range(_PLANNED):
            vertices, fact, _ = self._part(rng)
            sizes.append((len(vertices), max(1, len(fact))))
        limits = self._sampler.adjacency.num_nodes, len(self._train)
        ((vertices, facts),) = plan_shapes(sizes, 1, limits=limits).shapes
        return vertices, min(facts, len(self._train))

    def _part(self, rng: np.random.Generator) -> tuple[HostArray, HostArray, HostArray]:
        """The entities of a part, its facts by number, and their ends `int32[facts, 2]`, vertices
        of the part."""
        sample = self._sampler.sample(None, int(rng.integers(0, 2**63)))
        tail = np.repeat(np.arange(len(sample.vertices), dtype=np.int32), np.diff(sample.indptr))
        forward = sample.edge < len(self._train)  # the graph has each fact both ways
        ends = np.stack([sample.neighbor[forward], tail[forward]], axis=1)
        return sample.vertices, sample.edge[forward], ends

    def _drawn(self, rng: np.random.Generator) -> Part:
        entities, fact, ends = self._part(rng)
        room, size = self.shape[0], self._size
        chosen = rng.permutation(np.flatnonzero((ends < room).all(axis=1)))[:size]
        facts = np.zeros((size, 3), np.int32)
        facts[: len(chosen), [0, 2]] = ends[chosen]
        facts[: len(chosen), 1] = self._train[fact[chosen], 1]
        vertices = np.full(room, self._unknown, np.int32)
        count = min(len(entities), room)
        vertices[:count] = entities[:count]
        return Part(facts, len(chosen), vertices, count)

    def figures(self) -> dict[str, Any]:
        """What is reported of the sampling."""
        return {**self.sampling.to_dict(), "vertices": self.shape[0], "facts": self.shape[1]}


def link_task(
    dataset: LinkDataset, config: TrainConfig, sampling: Sampling | None
) -> LinkTask | PathTask:
    """The task of a knowledge graph, whole or sampled, or of a graph of one relation.

    Raises TrainError where a model that scores paths is to see parts of the graph.
    """
    if config.model == "paths" and sampling is not None:
        raise TrainError(
            f"{dataset.name} is trained on the paths of the whole graph, and sampled parts have "
            "others: leave the sampler out"
        )
    if config.model == "paths":
        return PathTask(dataset, config)
    if sampling is None:
        return LinkTask(dataset, config)
    return SampledLinkTask(dataset, config, sampling)
