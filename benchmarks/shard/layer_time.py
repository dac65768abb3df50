"""How long does a layer take on virtual devices that share the cores? (`bench_shard.py`)"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shard import work

CLOSE = 1e-3
"""How far results may differ from one device's, of the largest number."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer, forward and backward, over all vertices. over_one: the time of all devices over that
    of one, on the same cores: what sharding costs. alone: likewise, of the shards' own layers over
    their own edges, one after the other, with all rows there; `slowest`: of the longest of these,
    times the devices, over one: what the cut costs where devices have cores of their own."""

    graph: str
    layer: str
    devices: int
    exchange: str
    milliseconds: float
    over_one: float
    alone: float
    slowest: float


@functools.cache
def rows(setting: work.Setting) -> Sequence[Row]:
    """The rows, measured once: `time` and `check` both read them."""
    jobs = [(count, work.job(setting, devices=count)) for count in setting.time_counts]
    return [Row(**f) for count, job in jobs for f in work.in_child(count, "shard.layer_time", job)]


def child(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    setting, count = work.setting_of(job), job["devices"]
    for found in work.networks(setting.time_graphs, setting):
        for layer in setting.models:
            times, alone = _measured(found, layer, count, setting)
            one = times["one device"]
            head = {"graph": found.name, "layer": layer, "devices": count}
            for exchange, seconds in times.items():
                shared = {"alone": sum(alone) / one, "slowest": max(alone) * count / one}
                took = {"milliseconds": 1e3 * seconds, "over_one": seconds / one}
                yield head | {"exchange": exchange} | took | shared


def _measured(
    found: Any, layer: str, count: int, setting: work.Setting
) -> tuple[dict[str, float], list[float]]:
    """Seconds of each exchange, and of the layer of each shard alone."""
    import numpy as np
    from common import measure

    from shard import programs
    from shard.partition_graphs import local_graph

    features, n = setting.features, found.num_nodes
    partition = work.cut(found, "learned", count, features)
    graphs = {"one device": programs.one_device(found)}
    if count > 1:
        graphs |= {e: programs.sharded(found, partition, e) for e in work.EXCHANGES}
    runs = {e: _run(programs.layer(layer, "both", g, n, features)) for e, g in graphs.items()}
    want = np.asarray(runs["one device"]()[0])
    for exchange, run in list(runs.items())[1:]:
        got = graphs[exchange].get(run()[0])
        off = np.abs(got - want).max() / np.abs(want).max()
        if not off < CLOSE:
            raise ValueError(f"{exchange} differs by {off:.2g} from one device: {layer}")
    locals_ = [local_graph(found, partition, p) for p in range(count)] if count > 1 else []
    alone = [_run(programs.local_layer(layer, g, features)) for g in locals_]
    groups = [list(runs.values()), alone]
    times, own = measure.in_passes(groups, setting.repeats, setting.passes, fill=setting.fill)
    by_exchange = dict(zip(runs, times, strict=True))
    return by_exchange, own or [by_exchange["one device"]]


def _run(program: Any) -> Callable[[], Any]:
    from shard import programs

    ready = programs.compiled(program)
    return lambda: ready(*program[1])


def notes(rows: Sequence[Row]) -> Iterator[str]:
    for exchange in work.EXCHANGES:
        some = [r for r in rows if r.exchange == exchange]
        if some:
            ratios = [r.over_one for r in some]
            yield f"{exchange}: {min(ratios):.2f} to {max(ratios):.2f} times the time of one device"
