"""How many bytes does each exchange move, by the compiled program? (`bench_shard.py`)"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

from shard import work

SCALAR = 4


@dataclasses.dataclass(frozen=True)
class Row:
    """What one layer moves.

    Attributes:
        most_mib, total_mib: of vertices' rows, what the device that receives most gets, and all.
        over_all_gather: `most_mib` over that of all_gather.
        over_halo: `total_mib` over what must travel at least: each row to each shard that uses it,
            and back as a gradient.
        over_cover: likewise over the rows and sums of a minimum vertex cover, of layers for which
            both are as wide.
        by_structure: the forward's bytes over what the structures on the host say.
        collectives: how many instructions.
        rest_kib: what the all-reduces of parameters move per device.
    """

    graph: str
    cut: str
    devices: int
    layer: str
    mode: str
    exchange: str
    most_mib: float
    total_mib: float
    over_all_gather: float
    over_halo: float | None
    over_cover: float | None
    by_structure: float | None
    collectives: int
    rest_kib: float
    lower_s: float
    compile_s: float


def rows(setting: work.Setting) -> Iterator[Row]:
    for count in setting.counts:
        job = work.job(setting, devices=count)
        found = [
            Row(**f, over_all_gather=1.0)
            for f in work.in_child(count, "shard.bytes", job, work.QUICK)
        ]
        base = {_case(r): r.most_mib for r in found if r.exchange == "all_gather"}
        for r in found:
            yield dataclasses.replace(r, over_all_gather=r.most_mib / base[_case(r)])


def _case(row: Row) -> tuple[Any, ...]:
    return row.graph, row.cut, row.layer, row.mode


def child(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from shard import programs

    setting, count = work.setting_of(job), job["devices"]
    for number, found in enumerate(work.networks(setting.graphs, setting)):
        for cut in setting.cuts:
            every = number == 0 and cut == "crawl" and count in setting.all_layers
            partition = work.cut(found, cut, count, setting.features)
            known = work.shards(found, partition)
            for exchange in work.EXCHANGES:
                graph = programs.sharded(found, partition, exchange)
                for layer in work.LAYERS if every else ("gcn",):
                    for mode in ("forward", "both") if every else ("both",):
                        args = graph, found.num_nodes, setting.features
                        program = programs.layer(layer, mode, *args)
                        head = {"graph": found.name, "cut": cut, "devices": count, "layer": layer}
                        head |= {"mode": mode, "exchange": exchange}
                        yield head | _counted(program, known, head, setting.features)


def _counted(program: Any, known: work.Shards, head: dict[str, Any], features: int) -> Any:
    import jax

    from shard import collectives

    started = time.perf_counter()
    lowered = jax.jit(program[0]).lower(*program[1])
    ready = time.perf_counter()
    moved = collectives.moved(lowered.compile().as_text())
    done = time.perf_counter()
    own = [c for c in moved if c.kind != "all-reduce"]
    total = sum(c.total * c.times for c in own)
    layer, exchange = head["layer"], head["exchange"]
    there, back = work.row_scalars(layer, features)
    scalars = there + (back if head["mode"] == "both" else 0)
    halo = SCALAR * scalars * known.halo.total
    cover = SCALAR * scalars * (known.rows.total + known.sums.total)
    planned = structure_rows(known, exchange, layer) * there * SCALAR * known.count
    forward = sum(c.total * c.times for c in own if not c.backward)
    return {
        "most_mib": sum(c.received * c.times for c in own) / 2**20,
        "total_mib": total / 2**20,
        "over_halo": total / halo if halo else None,
        "over_cover": total / cover if cover and layer in work.COVERED else None,
        "by_structure": forward / planned if planned else None,
        "collectives": len(own),
        "rest_kib": sum(c.received * c.times for c in moved if c.kind == "all-reduce") / 2**10,
        "lower_s": ready - started,
        "compile_s": done - ready,
    }


def structure_rows(known: work.Shards, exchange: str, layer: str) -> float:
    """Rows that the average device receives for one table of sources, padding included; 0 if not
    known."""
    if exchange in ("all_gather", "ring"):
        hops = known.hops if exchange == "ring" else known.count - 1
        return hops * known.num_rows
    rows, sums, halo = (x.moved for x in (known.rows, known.sums, known.halo))
    if exchange == "cover" and rows + sums < halo:
        return rows + sums if layer in work.COVERED else 0
    return halo


def notes(rows: Sequence[Row]) -> Iterator[str]:
    for exchange in work.EXCHANGES:
        some = [r for r in rows if r.exchange == exchange]
        slow = max(some, key=lambda r: r.lower_s + r.compile_s)
        yield (
            f"{exchange}: lowering and compiling took at the most {slow.lower_s:.1f} + "
            f"{slow.compile_s:.1f} s ({slow.layer}, {slow.mode}, {slow.devices} devices, "
            f"{slow.collectives} collectives)"
        )
    for exchange in ("halo", "cover"):
        padded = [r.over_halo for r in rows if r.exchange == exchange and r.over_halo]
        if padded:
            yield f"{exchange} moves {min(padded):.2f} to {max(padded):.2f} times the used rows"
    off = [r for r in rows if r.by_structure is not None and abs(r.by_structure - 1) > 0.01]
    for r in off:
        what = f"{r.graph}, {r.cut}, {r.devices} devices, {r.layer}, {r.mode}, {r.exchange}"
        yield f"not what the structures say, {r.by_structure:.2f} times that: {what}"
