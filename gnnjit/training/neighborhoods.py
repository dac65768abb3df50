"""Which neighbourhoods a model aggregates over: selected before the first epoch, and where they are
drawn at random, anew every so many epochs."""

from __future__ import annotations

import itertools
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
) -> dict[str, HDG]:
    return {
        t: neighborhood.metapaths(graph, paths, seed=seed, watch=watch)
        for t, paths in metapaths_of(dataset, config.layers).items()
    }


def _walks(dataset: Any, graph: Graph, config: TrainConfig, seed: int, watch: Watch | None) -> HDG:
    return neighborhood.random_walks(graph, seed=seed, watch=watch)


def _anchors(
    dataset: Any, graph: Graph, config: TrainConfig, seed: int, watch: Watch | None
) -> HDG:
    return neighborhood.anchors(graph, seed=seed)


SELECTED_FOR: dict[str, Callable[..., Any]] = {
    "jknet": _hops,
    "magnn": _metapaths,
    "pinsage": _walks,
    "pgnn": _anchors,
}
"""Models whose neighbours are no edges, and how theirs are selected."""

DRAWN = ("pinsage", "pgnn")
"""Those whose neighbours are drawn at random, so that they can be drawn anew."""


def select(dataset: Any, config: TrainConfig, watch: Watch) -> Any:
    """The neighbourhoods of the configured model: rings of as many hops as it has layers, random
    walks and anchor sets with the defaults of their functions, and by type `metapaths_of`. None for
    a model of edges.

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


Steps = list[tuple[str, str, str]]


def metapaths_of(dataset: Any, layers: int) -> dict[str, list[Steps]]:
    """By type the metapaths that end there: those of MAGNN's authors on IMDB.

    Of the target (Fu et al. 2020, table 1) they go to another type and back, by all relations each
    way. With one layer there are no others. Layers before the last one give rows to the other types
    too: theirs go to the target and back, and to the target, from there to a third type and back,
    and back.

    Raises:
        TrainError: there is none.
    """
    target = dataset.target
    of_target = _there_and_back(dataset, target)
    if not of_target:
        raise TrainError(
            f"{dataset.name}: magnn got no metapath from {target} to another type and back, "
            f"expected relations both ways among {', '.join(dataset.graph.types)}: take a graph "
            "whose other types are vertices (imdb: --option metapaths=False), add the reverse "
            "relations (TypedGraph.with_reverse), or choose han"
        )
    found = {target: of_target}
    if layers == 1:
        return found
    for t in dict.fromkeys(there[2] for there, _ in of_target):
        short = [path for path in _there_and_back(dataset, t) if path[0][2] == target]
        long = [
            [there, *path, back] for there, back in short for path in of_target if path[0][2] != t
        ]
        found[t] = short + long
    return found


def _there_and_back(dataset: Any, root: str) -> list[Steps]:
    """From the vertices of a type to those of another one and back."""
    graph = dataset.graph
    return [
        [there, back]
        for back in graph.into(root)
        if back[0] != root
        for there in graph.relations
        if there[0] == root and there[2] == back[0]
    ]


def numbered_steps(dataset: Any, paths: list[Steps]) -> list[list[int]]:
    """Metapaths as `nn.MAGNN` takes them in `relations`: `k`, or `-k` the other way. The other way
    of the i-th relation from one type to another is the i-th of those back."""
    types = dataset.graph.types
    number: dict[tuple[str, str, str], int] = {}
    for i, a in enumerate(types):
        for b in types[i + 1 :]:
            ways = (
                [k for k in dataset.graph.relations if (k[0], k[2]) == e] for e in ((a, b), (b, a))
            )
            for there, back in itertools.zip_longest(*ways):
                k = 1 + max(map(abs, number.values()), default=0)
                number |= {key: sign * k for key, sign in ((there, 1), (back, -1)) if key}
    return [[number[step] for step in path] for path in paths]
