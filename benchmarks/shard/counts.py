"""How many rows travel on up to 1024 devices, and on graphs that do not fit here?

Graphs are really cut and counted; of three families also at several sizes, from which larger ones
are extrapolated. (`bench_shard.py`)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shard import work
from shard.machines import Sent

CUT = "learned"
LEAST = 8
"""Vertices of a shard, at least, on the average."""
COUNTED = (
    "rows", "edges", "path", "hops", "halo", "halo_least", "cover", "cover_least", "messages",
    "cover_messages",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """Rows of one table. used: of other shards, on the average; halo, cover: of the device that
    must send or receive most, padding included; _most: without. messages: collectives that move a
    halo, of the device that takes part in most.
    fitted, off: the largest error of what was fitted to the smaller graphs of the family, and what
    it is of; of the graph that was kept apart."""

    graph: str
    vertices: int
    edges: int
    devices: int
    rows: int
    used: float
    halo: int
    halo_most: int
    cover: int
    cover_most: int
    all_gather: int
    messages: int
    off: float | None = None
    what: str | None = None


@functools.cache
def counted(name: str, vertices: int | None, devices: int, setting: work.Setting) -> work.Shards:
    """`vertices`: of a family's graph; the graph as it is where None."""
    found = _network(name, vertices, setting)
    return work.shards(found, work.cut(found, CUT, devices, setting.features))


@functools.cache
def _network(name: str, vertices: int | None, setting: work.Setting) -> work.Network:
    if vertices is None:
        return work.network(name, setting)
    return work.grown(name, vertices, setting)


def sent(known: work.Shards) -> Sent:
    halo, cover = known.halo.sent, known.rows.sent + known.sums.sent
    most = known.rows.most + known.sums.most
    messages = known.rows.messages + known.sums.messages
    return Sent(
        known.count,
        known.num_rows,
        int(known.edges.max()),
        known.partition.num_nodes,
        int(known.edges.sum()),
        known.path,
        known.hops,
        halo,
        known.halo.most,
        min(cover, halo),  # a halo is taken where it moves less
        min(most, known.halo.most),
        known.halo.messages,
        messages if cover < halo else known.halo.messages,
        known.halo.blocks.at_once,
        known.halo.moved,
        known.rows.moved + known.sums.moved if cover < halo else known.halo.moved,
    )


def fit(name: str, setting: work.Setting) -> Callable[[float, int], Sent]:
    """A function from vertices and devices to what is sent.

    The logarithm of each number is linear in those of vertices and devices and in the square of
    the latter, fitted to all sizes but the last.
    """
    points = list(_points(name, setting.grown[:-1], setting))
    x = np.asarray([_terms(s.all_rows, s.devices) for s in points])
    weights = {}
    for field in COUNTED:
        y = np.log([max(getattr(s, field), 1) for s in points])
        weights[field] = np.linalg.lstsq(x, y, rcond=None)[0]
    degree = points[-1].all_edges / points[-1].all_rows

    def predicted(vertices: float, devices: int) -> Sent:
        found = {k: float(np.exp(_terms(vertices, devices) @ w)) for k, w in weights.items()}
        edges = degree * vertices
        # No more than there are, no less than the mean.
        found["edges"] = min(max(found["edges"], edges / devices), edges)
        found["path"] = min(max(found["path"], found["edges"]), edges)
        found["rows"] = max(found["rows"], vertices / devices)
        everything = (devices - 1) * found["rows"]
        for field in ("halo", "halo_least", "cover", "cover_least"):
            found[field] = min(found[field], everything)
        found["hops"] = min(found["hops"], devices - 1)
        found["messages"] = min(found["messages"], devices - 1)
        found["cover_messages"] = min(found["cover_messages"], 2 * (devices - 1))
        return Sent(devices=devices, all_rows=vertices, all_edges=edges, **found)

    return predicted


def _points(name: str, sizes: Sequence[int], setting: work.Setting) -> Iterator[Sent]:
    for vertices in sizes:
        for devices in setting.targets:
            if vertices >= LEAST * devices:
                yield sent(counted(name, vertices, devices, setting))


def _terms(vertices: float, devices: int) -> np.ndarray:
    n, p = np.log(vertices), np.log(devices)
    return np.asarray([1.0, n, p, p * p])


def rows(setting: work.Setting) -> Iterator[Row]:
    for found in work.networks(setting.graphs, setting):
        for devices in setting.targets:
            yield _row(counted(found.name, None, devices, setting), found.name)
    for name in families(setting):
        predicted = fit(name, setting)
        for devices in setting.targets:
            known = counted(name, setting.grown[-1], devices, setting)
            real, guess = sent(known), predicted(known.partition.num_nodes, devices)
            ratios = {k: getattr(guess, k) / max(getattr(real, k), 1) for k in COUNTED}
            worst = max(ratios, key=lambda k: abs(np.log(ratios[k])))
            row = _row(known, f"{name}, kept apart")
            yield dataclasses.replace(row, off=ratios[worst], what=worst)


def families(setting: work.Setting) -> list[str]:
    """Those whose data are there."""
    return [n.name for n in work.networks(setting.families, setting)]


def _row(known: work.Shards, name: str) -> Row:
    found = sent(known)
    return Row(
        name, known.partition.num_nodes, int(found.all_edges), known.count, known.num_rows,
        known.halo.total / known.count, int(found.halo), int(found.halo_least), int(found.cover),
        int(found.cover_least), (known.count - 1) * known.num_rows,
        int(found.messages),
    )  # fmt: skip


def notes(rows: Sequence[Row]) -> Iterator[str]:
    for name in dict.fromkeys(r.graph for r in rows):
        some = [r for r in rows if r.graph == name]
        last = some[-1]
        yield (
            f"{name}: on {last.devices} devices a halo with padding is "
            f"{last.halo / max(last.used, 1):.1f} times what is used on the average, "
            f"{last.halo / max(last.halo_most, 1):.1f} times the most of any device"
        )
        off = [r.off for r in some if r.off is not None]
        if off:
            yield (
                f"{name}: predicted from smaller ones, the worst of {len(COUNTED)} numbers is "
                f"{min(off):.2f} to {max(off):.2f} times what was counted"
            )
