"""Which neighbourhoods a model aggregates over: selected before the first epoch, and where they are
drawn at random, anew every so many epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gnnjit import neighborhood
from gnnjit.graph import Graph, TypedGraph
from gnnjit.neighborhood import HDG
from gnnjit.training.config import TrainConfig
from gnnjit.training.errors import TrainError

Watch = Callable[[int, int], Any]


def _hops(dataset: Any, graph: Graph, config: TrainConfig, seed: int, watch: Watch | None) -> HDG:
    return neighborhood.hops(graph, config.layers, watch=watch)


def _metapaths(
    dataset: Any, graph: TypedGraph, config: TrainConfig, seed: int, watch: Watch | None
) -> HDG:
    return neighborhood.metapaths(graph, there_and_back(dataset), seed=seed, watch=watch)


def _walks(dataset: Any, graph: Graph, config: TrainConfig, seed: int, watch: Watch | None) -> HDG:
    return neighborhood.random_walks(graph, seed=seed, watch=watch)


def _anchors(
    dataset: Any, graph: Graph, config: TrainConfig, seed: int, watch: Watch | None
) -> HDG:
    return neighborhood.anchors(graph, seed=seed)


SELECTED_FOR: dict[str, Callable[..., HDG]] = {
    "jknet": _hops,
    "magnn": _metapaths,
    "pinsage": _walks,
    "pgnn": _anchors,
}
"""Models whose neighbours are no edges, and how theirs are selected."""

DRAWN = ("pinsage", "pgnn")
"""Those whose neighbours are drawn at random, so that they can be drawn anew."""


def select(dataset: Any, config: TrainConfig, watch: Watch) -> HDG | None:
    """The neighbourhoods of the configured model: rings of as many hops as it has layers, random
    walks and anchor sets with the defaults of their functions, and `there_and_back`. None for a
    model of edges.

    Raises:
        TrainError: there is no metapath.
    """
    found = SELECTED_FOR.get(config.model)
    if found is None:
        return None
    return found(dataset, _graph_of(dataset), config, config.seed, watch)


def _graph_of(dataset: Any) -> Any:
    graph = dataset.graph
    return graph() if callable(graph) else graph


class Anew:
    """The neighbourhoods of an epoch: those that were selected first, or drawn anew by the seed of
    the run and the epoch, padded to the most that there can be, so that nothing is compiled again.
    """

    def __init__(self, dataset: Any, config: TrainConfig, first: Any) -> None:
        """`first`: an HDG, or the graph of a model of edges, which stays."""
        self._first, self._config, self._dataset = first, config, dataset
        self._graph = _graph_of(dataset) if config.select_every else None
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, seed: int, epoch: int) -> Any:
        """`epoch` counts from 1; 0 is a look at what batches are."""
        every = self._config.select_every
        if not every:
            return self._first
        drawn = seed, -(-epoch // every)
        if self._last[0] != drawn:
            number = int(np.random.SeedSequence(drawn).generate_state(1, np.uint64)[0])
            select = SELECTED_FOR[self._config.model]
            hdg = select(self._dataset, self._graph, self._config, number, None)
            # A root has one neighbour of each anchor set, or as many as are kept of walks.
            most = hdg.num_types if hdg.selected.cap is None else hdg.selected.cap
            self._last = drawn, hdg.pad(hdg.num_roots * most)
        return self._last[1]


def there_and_back(dataset: Any) -> list[list[tuple[str, str, str]]]:
    """The metapaths from the target to another type and back, by all relations each way: those of
    MAGNN on IMDB, by director and by actor (Fu et al. 2020, table 1).

    Raises:
        TrainError: there is none.
    """
    graph, target = dataset.graph, dataset.target
    paths = [
        [there, back]
        for back in graph.into(target)
        if back[0] != target
        for there in graph.relations
        if there[0] == target and there[2] == back[0]
    ]
    if not paths:
        raise TrainError(
            f"{dataset.name}: magnn got no metapath from {target} to another type and back, "
            f"expected relations both ways among {', '.join(graph.types)}: take a graph whose "
            "other types are vertices (imdb: --option metapaths=False), add the reverse relations "
            "(TypedGraph.with_reverse), or choose han"
        )
    return paths
