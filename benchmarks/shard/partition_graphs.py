"""Graphs that are cut, numbered so that equal shards are not equally costly, and local graphs."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
from collections.abc import Callable

import numpy as np
import scipy.sparse
from common import workloads
from scipy.sparse.csgraph import breadth_first_order

import gnnjit
from gnnjit.partition.partition import Partition

WEB = "snap-web-NotreDame/web-NotreDame.txt.gz"
TRUST = "snap-soc-Epinions1/soc-Epinions1.txt.gz"
CIRCLES = "snap-ego-twitter/ego-twitter-undirected.jlg"


class SkippedError(Exception):
    """A graph is not there; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """Edges between vertices in the order that is cut."""

    name: str
    src: np.ndarray
    dst: np.ndarray
    num_nodes: int

    @property
    def in_degree(self) -> np.ndarray:
        return np.bincount(self.dst, minlength=self.num_nodes)

    def ordered(self, vertex: np.ndarray) -> Network:
        """The same with vertex `vertex[k]` as number k."""
        rank = np.empty(self.num_nodes, np.int64)
        rank[vertex] = np.arange(self.num_nodes)
        return dataclasses.replace(self, src=rank[self.src], dst=rank[self.dst])


def by_degree(num_nodes: int, num_edges: int) -> Network:
    """Power law, hubs first, as stores that compress numbers keep it."""
    found = _power_law("by degree", num_nodes, num_edges, seed=0)
    return found.ordered(np.argsort(-found.in_degree, kind="stable"))


def crawled(num_nodes: int, num_edges: int) -> Network:
    """Power law, in the order in which a crawl from the largest hub finds the vertices."""
    found = _power_law("crawled", num_nodes, num_edges, seed=1)
    ones = np.ones(num_edges, np.int8)
    graph = scipy.sparse.csr_array((ones, (found.src, found.dst)), shape=(num_nodes,) * 2)
    start = int(found.in_degree.argmax())
    order = breadth_first_order(graph, start, directed=False, return_predecessors=False)
    rest = np.setdiff1d(np.arange(num_nodes), order)
    return found.ordered(np.concatenate([order, rest]))


def _power_law(name: str, num_nodes: int, num_edges: int, seed: int) -> Network:
    rng = np.random.default_rng(seed)
    return Network(name, *workloads.power_law_edges(num_nodes, num_edges, rng), num_nodes)


def stored(folder: pathlib.Path | None, file: str) -> Network:
    """A graph of SNAP as it is numbered. Raises SkippedError where there is no such file."""
    path = None if folder is None else folder / file
    name = pathlib.Path(file).parent.name.removeprefix("snap-")
    if path is None or not path.exists():
        raise SkippedError(f"{name}: {folder or 'GNNJIT_DATA_DIR'} has no {file}")
    julia = path.suffix == ".jlg"  # a header, then vertices from 1, each edge in one direction
    with gzip.open(path, "rt") as lines:
        src, dst = np.loadtxt(
            lines, np.int64, comments="#", unpack=True, delimiter="," if julia else None,
            skiprows=int(julia),
        )  # fmt: skip
    if julia:
        src, dst = np.concatenate([src, dst]) - 1, np.concatenate([dst, src]) - 1
    return Network(name, src, dst, int(max(src.max(), dst.max())) + 1)


def makers(
    vertices: int, edges: int, folder: pathlib.Path | None
) -> dict[str, Callable[[], Network]]:
    """Functions that make a graph, by the name that `--graphs` takes."""
    return {
        "by degree": lambda: by_degree(vertices, edges),
        "crawled": lambda: crawled(vertices // 2, edges * 3 // 4),
        "web-NotreDame": lambda: stored(folder, WEB),
        "soc-Epinions1": lambda: stored(folder, TRUST),
        "ego-twitter": lambda: stored(folder, CIRCLES),
    }


def local_graph(network: Network, partition: Partition, p: int) -> gnnjit.Graph:
    """What shard p works on: the edges into its vertices. Sources are its own vertices, then its
    halo, both in the order that was cut; destinations are its own."""
    own = partition.order[partition.bounds[p] : partition.bounds[p + 1]]
    mine = np.zeros(network.num_nodes, bool)
    mine[own] = True
    into = mine[network.dst]
    src, dst = network.src[into], network.dst[into]
    halo = np.zeros(network.num_nodes, bool)
    halo[src] = True
    sources = np.concatenate([own, np.flatnonzero(halo & ~mine)])
    at = np.empty(network.num_nodes, np.int64)
    at[sources] = np.arange(len(sources))
    return gnnjit.Graph.from_edges(at[src], at[dst], num_src=len(sources), num_dst=len(own))
