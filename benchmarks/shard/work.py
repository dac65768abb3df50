"""What the benchmark of sharded graphs runs: graphs, cuts, layers; and what must travel."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from common import workloads

from gnnjit.cost.partition_model import PartitionModel
from gnnjit.partition.locality import order_vertices
from gnnjit.partition.partition import Partition, balanced, equal_vertices, halo_rows
from gnnjit.partition.vertex_features import vertex_features
from gnnjit.sharding.exchange import runs_of
from gnnjit.sharding.send_blocks import HaloLayout
from gnnjit.sharding.vertex_cover import rows_that_travel
from shard.partition_graphs import CIRCLES, WEB, Network, SkippedError, crawled, stored

EXCHANGES = ("all_gather", "halo", "cover", "ring")
CUTS = ("crawl", "rcm", "learned")
"""Equal numbers of vertices as they are numbered; along reverse Cuthill-McKee; and along the
latter, equal costs by what a model of costs knows before it has learned anything."""
LAYERS = ("gcn", "gat", "gin", "gatedgcn")
COVERED = ("gcn", "gin", "gatedgcn")
"""Layers for which a sum, and what of its destination it needs, is as wide as a row."""
DEGREE = 16
NEAR = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is measured, and how often.

    Attributes:
        graphs: "web-NotreDame", "ego-twitter" (of SNAP); "crawled", a power law numbered by a
            crawl; "mesh", a square of cells with 8 neighbours each, numbered by rows.
        counts, memory_counts, time_counts: devices.
        all_layers: at which counts of devices all layers are compiled, the first graph by crawl.
        vertices: of the graphs that are made, DEGREE edges each (the mesh: half of these).
        targets: devices that are predicted.
        grown: vertices of the graphs of `families` from which larger ones are extrapolated; the
            last is not fitted to.
    """

    graphs: tuple[str, ...] = ("web-NotreDame", "ego-twitter", "crawled", "mesh")
    cuts: tuple[str, ...] = CUTS
    counts: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    all_layers: tuple[int, ...] = (8, 64)
    memory_counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    memory_graphs: tuple[str, ...] = ("web-NotreDame", "mesh")
    time_counts: tuple[int, ...] = (1, 2, 4, 8)
    time_graphs: tuple[str, ...] = ("crawled", "mesh")
    models: tuple[str, ...] = ("gcn", "gat")
    features: int = 64
    vertices: int = 100_000
    targets: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    grown: tuple[int, ...] = (20_000, 40_000, 80_000, 160_000)
    families: tuple[str, ...] = ("crawled", "web-NotreDame", "mesh")
    repeats: int = 3
    passes: int = 2
    fill: float = 0.02
    data: str | None = None


SMOKE = Setting(
    graphs=("mesh",), cuts=("crawl",), counts=(2,), all_layers=(), memory_counts=(1, 2),
    memory_graphs=("mesh",), time_counts=(2,), time_graphs=("mesh",), models=("gcn",), features=32,
    vertices=400, targets=(2, 4, 8), grown=(100, 200, 400), families=("mesh",), repeats=1, passes=1,
    fill=0.0,
)  # fmt: skip


def mesh(side: int) -> Network:
    """`side * side` cells, each with an edge from its up to 8 neighbours."""
    row, column = np.divmod(np.arange(side * side), side)
    pairs = []
    for down, right in NEAR:
        r, c = row + down, column + right
        inside = (r >= 0) & (r < side) & (c >= 0) & (c < side)
        pairs.append((r[inside] * side + c[inside], np.flatnonzero(inside)))
    src, dst = (np.concatenate(x) for x in zip(*pairs, strict=True))
    return Network("mesh", src, dst, side * side)


@functools.cache
def network(name: str, setting: Setting) -> Network:
    """Raises SkippedError where the data are not there."""
    folder = setting.data and pathlib.Path(setting.data)
    n = setting.vertices
    makers: dict[str, Callable[[], Network]] = {
        "web-NotreDame": lambda: stored(folder or None, WEB),
        "ego-twitter": lambda: stored(folder or None, CIRCLES),
        "crawled": lambda: crawled(n, n * DEGREE),
        "mesh": lambda: mesh(int(n**0.5)),
    }
    return makers[name]()


def grown(name: str, vertices: int, setting: Setting) -> Network:
    """A graph of a family with about so many vertices; of a stored one, those that come first."""
    if name in ("crawled", "mesh"):
        return network(name, dataclasses.replace(setting, vertices=vertices))
    whole = network(name, setting)
    inside = (whole.src < vertices) & (whole.dst < vertices)
    return Network(name, whole.src[inside], whole.dst[inside], min(vertices, whole.num_nodes))


def networks(names: Sequence[str], setting: Setting) -> Iterator[Network]:
    for name in names:
        try:
            yield network(name, setting)
        except SkippedError as error:
            print(f"skipped: {error}", file=sys.stderr)


@functools.cache
def locality(found: Network) -> np.ndarray:
    return order_vertices(found.src, found.dst, found.num_nodes, method="rcm").vertex


def cut(found: Network, name: str, shards: int, features: int = 64) -> Partition:
    if name == "crawl":
        return equal_vertices(found.num_nodes, shards)
    along = locality(found)
    if name == "rcm":
        return equal_vertices(found.num_nodes, shards, along)
    known = vertex_features(found.src, found.dst, found.num_nodes, features)
    return balanced(PartitionModel().vertex_cost(known), shards, along)


# -- what must travel ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Travel:
    """Rows between shards: `counts[q, p]` of shard q are used by shard p. What the program moves
    for them is in blocks, padded to the same size on all devices."""

    counts: np.ndarray
    num_rows: int

    @property
    def shards(self) -> int:
        return len(self.counts)

    @functools.cached_property
    def blocks(self) -> HaloLayout:
        return HaloLayout(self.shards, self.num_rows, lambda p: np.empty(0, np.int64), self.counts)

    @property
    def most(self) -> int:
        """Rows that the shard that receives most, or sends most, must."""
        return int(max(self.counts.sum(0).max(), self.counts.sum(1).max()))

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def sent(self) -> int:
        """Like `most`, padding included."""
        return int(self._each([block.height for block in self.blocks.blocks]).max(initial=0))

    @property
    def moved(self) -> float:
        """Rows that the average device receives, padding included."""
        return self.blocks.moved / self.shards

    @property
    def messages(self) -> int:
        """Collectives that move them: those in which the device that receives or sends most often
        does so. The others do not wait for it."""
        if self.blocks.at_once:
            return 1
        return int(self._each([1] * len(self.blocks.blocks)).max(initial=0))

    def _each(self, amounts: Sequence[int]) -> np.ndarray:
        """`int[2, P]`: the sum of these amounts, of the blocks that each shard gets or gives."""
        found = np.zeros((2, self.shards), np.int64)
        if self.blocks.at_once:
            return found + sum(amounts[1:])
        for block, amount in zip(self.blocks.blocks, amounts, strict=True):
            readers = np.asarray(block.readers, np.int64)
            found[0, readers] += amount
            found[1, (readers + block.distance) % self.shards] += amount
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """A graph that is cut: what its exchanges depend on.

    Attributes:
        edges: `int[P]`, that end at each shard.
        halo: rows that are used; `rows`, `sums`: of a minimum vertex cover.
        path: edges on which a ring waits: of each stop, those of the shard that has most.
        hops: of a ring.
    """

    partition: Partition
    edges: np.ndarray
    halo: Travel
    rows: Travel
    sums: Travel
    path: int
    hops: int

    @property
    def count(self) -> int:
        return self.partition.num_shards

    @property
    def num_rows(self) -> int:
        return int(self.partition.sizes.max())


def shards(found: Network, partition: Partition) -> Shards:
    count, n = partition.num_shards, found.num_nodes
    shard = partition.assignment()
    src, dst = found.src, found.dst
    rows = max(1, int(partition.sizes.max()))
    crosses = np.flatnonzero(shard[src] != shard[dst])
    s, d = src[crosses], dst[crosses]
    by_row = rows_that_travel(shard[d] * n + s, shard[s] * n + d)
    between = np.bincount(shard[dst] * count + shard[src], minlength=count * count)
    between = between.reshape(count, count)
    here = np.arange(count)
    by_distance = between[here[:, None], (here[:, None] + here) % count].max(axis=0)
    runs = runs_of((np.flatnonzero(by_distance[1:]) + 1).tolist())
    return Shards(
        partition,
        between.sum(1),
        Travel(halo_rows(src, dst, partition), rows),
        Travel(_distinct(s[by_row], shard[d[by_row]], shard, count), rows),
        Travel(_distinct(d[~by_row], shard[s[~by_row]], shard, count), rows),
        int(by_distance.sum()),
        sum(run.count for run in runs),
    )


def _distinct(vertex: np.ndarray, to: np.ndarray, shard: np.ndarray, count: int) -> np.ndarray:
    """`int64[P, P]`: at [q, p], the different vertices of shard q that go with shard p."""
    pairs = np.unique(vertex * count + to)
    owner, other = shard[pairs // count], pairs % count
    return np.bincount(owner * count + other, minlength=count * count).reshape(count, count)


def row_scalars(layer: str, features: int, heads: int = workloads.HEADS) -> tuple[int, int]:
    """What edges need of a source, and what is added up for it as a gradient."""
    width = {"gat": features + heads, "gatedgcn": 2 * features}.get(layer, features)
    return width, width


# -- processes with devices ------------------------------------------------------------------------


class ChildError(RuntimeError):
    """A process failed; the message has its command and output."""


QUICK = "--xla_backend_optimization_level=0"
"""For programs that are read, not run: the machine code is not optimised."""


def in_child(devices: int, module: str, job: dict[str, Any], flags: str = "") -> Iterator[Any]:
    """What `module.child(job)` yields in a process with so many virtual devices: JSON objects."""
    force = f"--xla_force_host_platform_device_count={devices}"
    some = " ".join([os.environ.get("XLA_FLAGS", ""), force, flags])
    variables = {**os.environ, "XLA_FLAGS": some.strip(), "JAX_PLATFORMS": "cpu"}
    benchmarks = pathlib.Path(__file__).parents[1]
    roots = [str(benchmarks), str(benchmarks.parent), os.environ.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(roots)
    command = [sys.executable, "-m", "shard.child", module]
    done = subprocess.run(
        command, input=json.dumps(job), env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ChildError(f"{' '.join(command)} with {devices} devices failed:\n{done.stderr}")
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def job(setting: Setting, **fields: Any) -> dict[str, Any]:
    return {"setting": dataclasses.asdict(setting), **fields}


def setting_of(found: dict[str, Any]) -> Setting:
    """The setting that `job` put into JSON."""
    fields = found["setting"].items()
    return Setting(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields})
