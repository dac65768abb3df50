"""How much faster is a step on several devices when a learned cost decides where to cut?

    python benchmarks/bench_partition.py --smoke
    python benchmarks/bench_partition.py --json benchmarks/results/partition.jsonl

ROC's question (section 7.6), and FlexGraph's (7.6). Devices are simulated: the local step of every
shard, forward and backward of one layer over its vertices and their in-edges, runs alone, one after
the other, on the one device there is. A step takes as long as its slowest shard; what travels
between devices is counted (`cut_share`, `halo`), not timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import measure
from rich import box
from rich.console import Console
from rich.table import Table
from shard.partition_graphs import Network, SkippedError, local_graph, makers

import gnnjit
from gnnjit.cost.partition_model import PartitionModel
from gnnjit.partition.migrate import measured_costs, rebalance
from gnnjit.partition.partition import (
    Partition,
    balanced,
    cut_edges,
    equal_edges,
    equal_vertices,
    halo_rows,
)
from gnnjit.partition.vertex_features import vertex_features

HIDDEN = 16
"""Width of the network on the edges."""
BASELINES = ("vertices", "edges", "hash")
CHOSEN = ("seen", "unseen", "adapted", "rebalanced")
"""Cuts by costs learned on the same graph (*seen*); on the others (*unseen*); on the same graph and
scaled in each shard to what it took last (*adapted*); and equal vertices, rebalanced by the costs
of the first."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is measured, and how often.

    rounds: how often a graph that is trained on is cut by what was learned on it, and measured.
    """

    models: tuple[str, ...] = ("gcn", "gat", "edge-mlp")
    widths: tuple[int, ...] = (64,)
    graphs: tuple[str, ...] = ("by degree", "crawled", "web-NotreDame", "ego-twitter")
    shards: int = 4
    vertices: int = 100_000
    edges: int = 2_000_000
    rounds: int = 2
    repeats: int = 5
    passes: int = 2
    fill: float = 0.02


SMOKE = Setting(
    models=("gcn",), widths=(8,), graphs=("crawled",), shards=2, vertices=200,
    edges=800, rounds=1, repeats=1, passes=1, fill=0.0,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """A step with one cut.

    step_ms: of the slowest shard. imbalance: that over the mean of the shards. predicted: the
    imbalance that the model expected, of learned cuts. over_vertices, over_edges: speedup over
    these cuts. cut_share: of the edges, those between shards. halo: rows that the shard that needs
    most is sent.
    """

    model: str
    width: int
    graph: str
    cut: str
    step_ms: float
    imbalance: float
    predicted: float | None
    over_vertices: float
    over_edges: float
    cut_share: float
    halo: int


@gnnjit.layer
def gcn(v: Any, e: Any, p: Any) -> Any:
    return jax.nn.relu(gnnjit.sum(e.src) @ p["w"])


@gnnjit.layer
def gat(v: Any, e: Any, p: Any) -> Any:
    def z(h: Any) -> Any:
        return h @ p["w"]

    score = jax.nn.leaky_relu(z(e.src) @ p["a_src"] + z(v) @ p["a_dst"], 0.2)
    return gnnjit.sum(gnnjit.softmax(score) * z(e.src))


@gnnjit.layer
def edge_mlp(v: Any, e: Any, p: Any) -> Any:
    hidden = jax.nn.relu(e.src @ p["src"] + v @ p["dst"])
    return gnnjit.sum(jax.nn.relu(hidden @ p["hidden"])) @ p["out"]


LAYERS = {"gcn": gcn, "gat": gat, "edge-mlp": edge_mlp}


def parameters(width: int) -> dict[str, jax.Array]:
    shapes = {
        "w": (width, width), "a_src": (width,), "a_dst": (width,), "src": (width, HIDDEN),
        "dst": (width, HIDDEN), "hidden": (HIDDEN, HIDDEN), "out": (HIDDEN, width),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    return {
        k: jnp.asarray(rng.standard_normal(s, np.float32) / s[0] ** 0.5) for k, s in shapes.items()
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Lesson:
    """One layer on one graph, to be cut: the graph, and the features of its vertices."""

    model: str
    width: int
    network: Network
    shards: int
    features: np.ndarray

    @classmethod
    def of(cls, model: str, width: int, network: Network, shards: int) -> Lesson:
        n = network.num_nodes
        features = vertex_features(network.src, network.dst, n, width)
        return cls(model, width, network, shards, features)

    def baselines(self) -> dict[str, Partition]:
        n, p = self.network.num_nodes, self.shards
        drawn = np.random.default_rng(0).integers(0, p, n)
        return {
            "vertices": equal_vertices(n, p),
            "edges": equal_edges(self.network.in_degree, p),
            "hash": Partition.of_assignment(drawn, p, "hash"),
        }

    def learned(self, model: PartitionModel) -> Partition:
        return balanced(model.vertex_cost(self.features), self.shards)

    def steps(self, partition: Partition) -> list[Callable[[], Any]]:
        """The local step of each shard: forward, and backward to features and parameters."""
        return [self._step(local_graph(self.network, partition, p)) for p in range(self.shards)]

    def _step(self, graph: gnnjit.Graph) -> Callable[[], Any]:
        rng = np.random.default_rng(0)

        def rows(n: int) -> jax.Array:
            return jnp.asarray(rng.standard_normal((n, self.width), np.float32))

        x = gnnjit.Bipartite(src=rows(graph.num_src), dst=rows(graph.num_dst))
        layer, params = LAYERS[self.model], parameters(self.width)

        def loss(x: Any, params: Any, graph: Any) -> Any:
            return (layer(graph, x, params) ** 2).mean()

        args = x, params, graph
        compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*args).compile()
        return lambda: compiled(*args)

    def teach(self, model: PartitionModel, cut: Partition, seconds: Sequence[float]) -> None:
        for features, took in zip(cut.totals(self.features), seconds, strict=True):
            model.observe(features, took)


Points = list[tuple[Partition, list[float]]]


def study(lesson: Lesson, setting: Setting) -> tuple[PartitionModel, Points]:
    """Learn costs by cutting a graph, as ROC trains: equal cuts first, then learned ones."""
    model, points = PartitionModel(), []
    cuts = list(lesson.baselines().values())[:2]
    for turn in range(len(cuts) + setting.rounds):
        cut = cuts[turn] if turn < len(cuts) else lesson.learned(model)
        seconds = measure.in_turn(lesson.steps(cut), setting.repeats, fill=setting.fill)
        lesson.teach(model, cut, seconds)
        points.append((cut, seconds))
    return model, points


def compare(model: str, width: int, networks: Sequence[Network], setting: Setting) -> Iterator[Row]:
    """All graphs, each with the baselines and the cuts of `CHOSEN`."""
    lessons = [Lesson.of(model, width, network, setting.shards) for network in networks]
    studied = [study(lesson, setting) for lesson in lessons]
    for lesson, (seen, own) in zip(lessons, studied, strict=True):
        unseen = PartitionModel()
        for other, (_, points) in zip(lessons, studied, strict=True):
            for cut, seconds in points if other is not lesson else ():
                other.teach(unseen, cut, seconds)
        yield from _rows(lesson, {"seen": seen, "unseen": unseen}, own, setting)
        jax.clear_caches()


def _rows(
    lesson: Lesson, models: dict[str, PartitionModel], points: Points, setting: Setting
) -> list[Row]:
    """All cuts of a graph, measured in turn."""
    cuts = lesson.baselines()
    cuts |= {name: lesson.learned(model) for name, model in models.items()}
    network = lesson.network
    cost = models["seen"].vertex_cost(lesson.features)
    cuts["adapted"] = balanced(measured_costs(cost, *points[-1]), lesson.shards)
    cuts["rebalanced"] = rebalance(network.src, network.dst, cuts["vertices"], cost)
    steps = [lesson.steps(cut) for cut in cuts.values()]
    runs = [run for some in steps for run in some]
    times = measure.in_passes([runs], setting.repeats, setting.passes, fill=setting.fill)[0]
    shards = np.reshape(times, (len(cuts), lesson.shards))
    step = dict(zip(cuts, shards.max(1), strict=True))
    return [
        Row(
            lesson.model, lesson.width, network.name, name, 1e3 * float(took.max()),
            float(took.max() / took.mean()), _predicted(lesson, cut, models.get(name)),
            float(step["vertices"] / took.max()), float(step["edges"] / took.max()),
            cut_edges(network.src, network.dst, cut) / len(network.src),
            int(halo_rows(network.src, network.dst, cut).sum(0).max()),
        )
        for (name, cut), took in zip(cuts.items(), shards, strict=True)
    ]  # fmt: skip


def _predicted(lesson: Lesson, cut: Partition, model: PartitionModel | None) -> float | None:
    if model is None:
        return None
    seconds = [model.predict(total) for total in cut.totals(lesson.features)]
    return float(max(seconds) / np.mean(seconds))


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Speedups of the learned cuts and of the rebalanced one."""
    for name in CHOSEN:
        some = [r for r in rows if r.cut == name]
        step = {(r.model, r.width, r.graph, r.cut): r.step_ms for r in rows}
        for base in BASELINES:
            ratios = [step[r.model, r.width, r.graph, base] / r.step_ms for r in some]
            yield (
                f"{name} over {base}: {np.exp(np.mean(np.log(ratios))):.2f} in the geometric mean, "
                f"{min(ratios):.2f} to {max(ratios):.2f}"
            )
        yield f"{name}: measured imbalance {np.mean([r.imbalance for r in some]):.2f} in the mean"


def table(rows: Sequence[Row]) -> Table:
    """One line a row; the names of its fields above."""
    out = Table(box=box.SIMPLE)
    for field in dataclasses.fields(Row):
        text = field.name in ("model", "graph", "cut")
        justify = "left" if text else "right"
        out.add_column(field.name.replace("_", " "), justify=justify, no_wrap=text)
    for row in rows:
        out.add_row(*map(_text, dataclasses.astuple(row)))
    return out


def _text(x: Any) -> str:
    return "–" if x is None else f"{x:.3g}" if isinstance(x, float) else str(x)


def made(setting: Setting, folder: pathlib.Path | None) -> Iterator[Network]:
    found = makers(setting.vertices, setting.edges, folder)
    for name in setting.graphs:
        try:
            yield found[name]()
        except SkippedError as error:
            print(f"skipped: {error}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--models", help=f"of {','.join(LAYERS)} (default: all)")
    add("--widths", help="features in and out (default: 64)")
    add("--graphs", help=f"default: {','.join(Setting.graphs)}; besides: soc-Epinions1")
    for name in ("shards", "vertices", "edges", "rounds", "repeats", "passes"):
        add(f"--{name}", type=int, help=f"default: {getattr(Setting, name)}")
    data = os.environ.get("GNNJIT_DATA_DIR")
    add("--data", type=pathlib.Path, metavar="DIR", default=data and pathlib.Path(data),
        help="where the graphs of SNAP are (default: GNNJIT_DATA_DIR)")  # fmt: skip
    add("--json", type=pathlib.Path, metavar="FILE", help="append JSON lines")
    add("--smoke", action="store_true", help="tiny sizes: does it run?")
    args = parser.parse_args(argv)
    names = {f.name for f in dataclasses.fields(Setting)}
    given = {k: v for k, v in vars(args).items() if k in names and v is not None}
    for name, kind in (("models", str), ("widths", int), ("graphs", str)):
        if name in given:
            given[name] = tuple(map(kind, given[name].split(",")))
    setting = dataclasses.replace(SMOKE if args.smoke else Setting(), **given)
    facts = {"kept": gnnjit.keep_memory(), "machine": measure.machine(measure.usable_cpus())}
    facts |= {"versions": measure.versions(), "setting": dataclasses.asdict(setting)}
    networks = list(made(setting, args.data))
    rows = [
        row
        for model in setting.models
        for width in setting.widths
        for row in compare(model, width, networks, setting)
    ]
    said = list(notes(rows))
    console = Console()
    console.width = max(console.width, 140)
    console.print(table(rows))
    print(*said, sep="\n")
    for line in (*map(dataclasses.asdict, rows), {"notes": said, **facts}):
        measure.append(args.json, {"benchmark": "partition", **line})
    return 0


if __name__ == "__main__":
    sys.exit(main())
