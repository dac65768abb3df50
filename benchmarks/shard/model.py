"""How long would a step take on 8 to 1024 GPUs? Predicted, not measured. (`bench_shard.py`)"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from shard import counts, work
from shard.machines import CLUSTER, H200, KINDS, Machine, Sent, step

FEATURES, LAYERS = 128, 2
LARGE = 111_059_956
"""Vertices of ogbn-papers100M; its edges are not known here: those of a family are extrapolated."""
EACH = 1_000_000
"""Vertices of each device where the graph grows with the devices."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A step of two GCN layers with 128 features.

    Attributes:
        scaling: "strong", the same graph on more devices; "weak", a graph that grows with them.
        counted: whether the graph was cut and counted, or its numbers are extrapolated.
        efficiency: the time of one device for the whole graph, had it the memory, over that of all
            devices together.
        table_mib: rows of others that a device holds at once.
    """

    scaling: str
    graph: str
    counted: bool
    vertices: int
    devices: int
    exchange: str
    compute_ms: float
    exchange_ms: float
    step_ms: float
    efficiency: float
    table_mib: float


def rows(setting: work.Setting) -> Iterator[Row]:
    for found in work.networks(setting.graphs, setting):
        name = found.name

        def known(vertices: float, devices: int, name: str = name) -> Sent:
            return counts.sent(counts.counted(name, None, devices, setting))

        yield from _scaled("strong", name, True, known, lambda p, n=found.num_nodes: n, setting)
    for name in counts.families(setting):
        predicted = counts.fit(name, setting)
        args = f"like {name}", False, predicted
        yield from _scaled("strong", *args, lambda p: LARGE, setting)
        yield from _scaled("weak", *args, lambda p: EACH * p, setting)


def _scaled(
    scaling: str, name: str, counted: bool, known: Callable[[float, int], Sent],
    vertices: Callable[[int], int], setting: work.Setting,
) -> Iterator[Row]:  # fmt: skip
    machine = dataclasses.replace(CLUSTER, parameters=4 * FEATURES**2)
    for devices in setting.targets:
        n = vertices(devices)
        sent = known(n, devices)
        one = _alone(sent) / devices
        for kind in KINDS:
            yield _row(scaling, name, counted, n, sent, kind, one, machine)


def _alone(sent: Sent) -> float:
    """Seconds of the whole graph on one device, had it the memory."""
    return LAYERS * H200.compute("gcn", FEATURES).seconds(sent.all_edges, sent.all_rows)


def _row(
    scaling: str, name: str, counted: bool, vertices: int, sent: Sent, kind: str, share: float,
    machine: Machine,
) -> Row:  # fmt: skip
    width = 4 * FEATURES
    taken = step(machine, H200.compute("gcn", FEATURES), sent, kind, (width, width))
    held = {"all_gather": (sent.devices - 1) * sent.rows, "ring": sent.rows * (sent.hops > 0)}
    least = kind.replace(", no padding", "_least")
    rows = held.get(kind, getattr(sent, least, 0))
    found = (LAYERS * 1e3 * x for x in (taken.compute, taken.exchange, taken.total))
    return Row(
        scaling, name, counted, vertices, sent.devices, kind, *found,
        share / (LAYERS * taken.total), rows * width / 2**20,
    )  # fmt: skip


def notes(rows: Sequence[Row]) -> Iterator[str]:
    a, b = CLUSTER.within, CLUSTER.between
    yield (
        f"assumed: {H200}; {CLUSTER.node} devices a node; within {a}, between {b}; "
        f"{CLUSTER.message} s a further message"
    )
    for case in dict.fromkeys((r.scaling, r.graph) for r in rows):
        some = [r for r in rows if (r.scaling, r.graph) == case]
        real = [r for r in some if "no padding" not in r.exchange]
        wins: dict[int, Row] = {}
        for r in real:
            best = wins.get(r.devices)
            wins[r.devices] = r if best is None or r.step_ms < best.step_ms else best
        said = ", ".join(
            f"{p}: {r.exchange} {r.step_ms:.2f} ms ({r.efficiency:.0%})" for p, r in wins.items()
        )
        longer = [p for p, r in wins.items() if r.exchange_ms > r.compute_ms]
        dominates = f"exchange takes longer from {min(longer)} on" if longer else "compute longer"
        yield f"{', '.join(case)}: {said}; {dominates}"
