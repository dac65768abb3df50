"""Which neighbourhoods a model aggregates over: selected once a run, before the first epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnnjit import neighborhood
from gnnjit.graph import Graph, TypedGraph
from gnnjit.neighborhood import HDG
from gnnjit.training.config import TrainConfig
from gnnjit.training.errors import TrainError

Watch = Callable[[int, int], Any]


def _hops(dataset: Any, graph: Graph, config: TrainConfig, watch: Watch) -> HDG:
    return neighborhood.hops(graph, config.layers, watch=watch)


def _metapaths(dataset: Any, graph: TypedGraph, config: TrainConfig, watch: Watch) -> HDG:
    return neighborhood.metapaths(graph, there_and_back(dataset), seed=config.seed, watch=watch)


def _walks(dataset: Any, graph: Graph, config: TrainConfig, watch: Watch) -> HDG:
    return neighborhood.random_walks(graph, seed=config.seed, watch=watch)


def _anchors(dataset: Any, graph: Graph, config: TrainConfig, watch: Watch) -> HDG:
    return neighborhood.anchors(graph, seed=config.seed)


SELECTED_FOR: dict[str, Callable[..., HDG]] = {
    "jknet": _hops,
    "magnn": _metapaths,
    "pinsage": _walks,
    "pgnn": _anchors,
}
"""Models whose neighbours are no edges, and how theirs are selected."""


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
    graph = dataset.graph
    return found(dataset, graph() if callable(graph) else graph, config, watch)


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
