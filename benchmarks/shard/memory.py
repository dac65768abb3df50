"""How much memory does each device need for a step of training? (`bench_shard.py`)"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from shard import work


@dataclasses.dataclass(frozen=True)
class Row:
    """MiB of each device, as XLA plans them. of_one: arguments and temporaries over those of the
    step on one device divided by the devices: 1 where memory falls as it should. largest: the
    largest array of floats in the program, and `of_all`, what it is of all vertices' features."""

    graph: str
    model: str
    exchange: str
    devices: int
    arguments_mib: float
    temporaries_mib: float
    of_one: float
    largest: str
    of_all: float


def rows(setting: work.Setting) -> Iterator[Row]:
    one: dict[tuple[str, str], float] = {}
    for count in setting.memory_counts:
        job = work.job(setting, devices=count)
        for fields in work.in_child(count, "shard.memory", job, work.QUICK):
            need = fields["arguments_mib"] + fields["temporaries_mib"]
            base = one.setdefault((fields["graph"], fields["model"]), need * count)
            yield Row(**fields, of_one=need * count / base)


def child(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from shard import programs

    setting, count = work.setting_of(job), job["devices"]
    for found in work.networks(setting.memory_graphs, setting):
        head = {"graph": found.name, "devices": count}
        partition = work.cut(found, "learned", count, setting.features)
        for exchange in ("one device",) if count == 1 else work.EXCHANGES:
            if count == 1:
                graph: Any = programs.one_device(found)
            else:
                graph = programs.sharded(found, partition, exchange)
            for model in setting.models:
                program = programs.training(model, graph, found.num_nodes, setting.features)
                needed = _needed(programs.compiled(program), found.num_nodes * setting.features)
                yield head | {"model": model, "exchange": exchange} | needed


def _needed(compiled: Any, numbers: int) -> dict[str, Any]:
    """`numbers`: of all vertices' features."""
    from shard import collectives

    planned = compiled.memory_analysis()
    widest = collectives.largest(collectives.buffers(compiled.as_text()))
    return {
        "arguments_mib": planned.argument_size_in_bytes / 2**20,
        "temporaries_mib": planned.temp_size_in_bytes / 2**20,
        "largest": str(widest),
        "of_all": widest.bytes / (4 * numbers),
    }


def notes(rows: Sequence[Row]) -> Iterator[str]:
    for exchange in work.EXCHANGES:
        some = [r for r in rows if r.exchange == exchange]
        if some:
            most = max(r.devices for r in some)
            last = [r for r in some if r.devices == most]
            share = max(r.of_all for r in last)
            yield (
                f"{exchange} on {most} devices: {min(r.of_one for r in last):.2f} to "
                f"{max(r.of_one for r in last):.2f} times a share of one device's memory; the "
                f"largest array is {share:.3f} of all vertices' features"
            )
