"""Does the model of time predict what can be run here? (`bench_shard.py`)

The same arithmetic as for GPUs with rates measured here: of layers on one device, fitted to graphs
of several sizes, and of single collectives, fitted to 2 and 4 virtual devices. Virtual devices
share the cores, so what they do adds up. Then single collectives on other counts of devices, and
whole layers, none of which was fitted to, are predicted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shard import counts, layer_time, work
from shard.machines import Compute, Link, Machine, step

COLLECTIVES = ("all_gather", "reduce_scatter", "ppermute", "all_to_all")
FITTED = (2, 4)
SIZES = (1 << 14, 1 << 18, 1 << 21, 1 << 23)
"""Bytes of each device's rows."""


@dataclasses.dataclass(frozen=True)
class Row:
    """ratio: predicted over measured."""

    what: str
    devices: int
    fitted: bool
    measured_ms: float
    predicted_ms: float
    ratio: float


@dataclasses.dataclass(frozen=True)
class Point:
    """A collective: bytes that all devices receive together, and seconds."""

    name: str
    devices: int
    rows: int
    bytes: int
    seconds: float


def rows(setting: work.Setting) -> Iterator[Row]:
    points = []
    for count in setting.time_counts:
        if count > 1:
            job = work.job(setting, devices=count, what="collectives")
            points += [Point(**p) for p in work.in_child(count, "shard.check", job)]
    known = [p for p in points if p.devices in FITTED]
    rates = {name: fit_link([p for p in known if p.name == name]) for name in COLLECTIVES}
    for p in points:
        yield _row(p.name, p.devices, p in known, p.seconds, predict(rates[p.name], p), p.rows)
    found = work.in_child(1, "shard.check", work.job(setting, what="compute"))
    samples: dict[str, list[dict[str, float]]] = {}
    copies = 0.0
    for sample in found:
        copies = sample.pop("copies")
        samples.setdefault(sample.pop("layer"), []).append(sample)
    computes = {layer: fit_compute(some) for layer, some in samples.items()}
    for layer, some in samples.items():
        for s in some:
            guess = computes[layer].seconds(s["edges"], s["rows"])
            yield _row(f"{layer} on one device", 1, True, s["seconds"], guess)
    yield from _steps(setting, computes, rates, copies)


def _row(what: str, devices: int, fitted: bool, got: float, guess: float, size: int = 0) -> Row:
    what = f"{what} of {size >> 10} KiB" if size else what
    return Row(what, devices, fitted, 1e3 * got, 1e3 * guess, guess / got)


def _steps(
    setting: work.Setting, computes: dict[str, Compute], rates: dict[str, np.ndarray], copies: float
) -> Iterator[Row]:
    for r in layer_time.rows(setting):
        if r.exchange != "one device":
            known = _sent(r.graph, r.devices, setting)
            moved = "all_to_all" if known.at_once and r.exchange == "halo" else "ppermute"
            links = {}
            for name in COLLECTIVES:
                start, each, byte = rates[name]
                links[name] = Link(float(start + each * r.devices), float(1 / byte))
            link = links["all_gather" if r.exchange == "all_gather" else moved]
            machine = Machine(
                "here", link, link, 1 << 30, 0.0, copies, True, summed=links["reduce_scatter"]
            )
            there, back = work.row_scalars(r.layer, setting.features)
            arrays = 2 if r.layer in ("gat", "gcn") else 1
            widths = 4 * there, 4 * back
            guess = step(machine, computes[r.layer], known, r.exchange, widths, arrays)
            what = f"{r.layer}, {r.graph}, {r.exchange}"
            yield _row(what, r.devices, False, r.milliseconds / 1e3, guess.total)


@functools.cache
def _sent(name: str, devices: int, setting: work.Setting) -> Any:
    return counts.sent(counts.counted(name, None, devices, setting))


def fit_link(points: Sequence[Point]) -> np.ndarray:
    """Seconds of a collective, of each device in it, and of a byte: by the squares of the relative
    errors, none below 0."""
    from scipy.optimize import nnls

    x = np.asarray([[1.0, p.devices, p.bytes] for p in points])
    return _relative(nnls, x, np.asarray([p.seconds for p in points]))


def predict(rates: np.ndarray, p: Point) -> float:
    return float(rates @ [1.0, p.devices, p.bytes])


def fit_compute(samples: Sequence[dict[str, float]]) -> Compute:
    from scipy.optimize import nnls

    x = np.asarray([[1.0, s["edges"], s["rows"]] for s in samples])
    return Compute(*map(float, _relative(nnls, x, np.asarray([s["seconds"] for s in samples]))))


def _relative(solve: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(0)
    return solve(x / scale / y[:, None], np.ones(len(y)))[0] / scale


# -- in a process with devices --------------------------------------------------------------------


def child(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    setting = work.setting_of(job)
    if job["what"] == "collectives":
        yield from _collectives(setting, job["devices"])
    else:
        yield from _computed(setting)


def _collectives(setting: work.Setting, count: int) -> Iterator[dict[str, Any]]:
    import jax
    import jax.numpy as jnp
    from common import measure
    from jax import lax
    from jax.sharding import NamedSharding, PartitionSpec

    from shard import programs

    mesh = programs.devices(count)
    spec, pairs = PartitionSpec("shard"), [(p, (p + 1) % count) for p in range(count)]
    bodies = {
        "all_gather": (lambda x: lax.all_gather(x, "shard", tiled=True), count - 1),
        "reduce_scatter": (lambda x: lax.psum_scatter(x, "shard", tiled=True), 1 - 1 / count),
        "ppermute": (lambda x: lax.ppermute(x, "shard", pairs), 1),
        "all_to_all": (lambda x: lax.all_to_all(x, "shard", 0, 0, tiled=True), 1 - 1 / count),
    }
    for size in SIZES if setting.vertices > 1000 else SIZES[:2]:
        runs = []
        for body, _ in bodies.values():
            f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))
            x = jax.device_put(jnp.ones((count * size // 256, 64)), NamedSharding(mesh, spec))
            runs.append(functools.partial(f, x))
        times = measure.in_passes([runs], setting.repeats, setting.passes, fill=setting.fill)[0]
        for (name, (_, share)), seconds in zip(bodies.items(), times, strict=True):
            total = int(size * share) * count
            yield dataclasses.asdict(Point(name, count, size, total, seconds))


def _computed(setting: work.Setting) -> Iterator[dict[str, Any]]:
    """Layers on power-law graphs of several sizes and degrees."""
    import jax
    import jax.numpy as jnp
    from common import measure

    from shard import programs
    from shard.partition_graphs import crawled

    add = jax.jit(lambda x: x + 1)
    x = jnp.zeros(max(setting.vertices * setting.features, 1 << 16), jnp.float32)
    copies = 8 * x.size / measure.in_turn([lambda: add(x)], setting.repeats, fill=setting.fill)[0]
    n = setting.vertices
    sizes = [(n, 4), (n // 2, 16), (n // 2, 32), (n // 4, 8), (n // 4, 64), (n // 16, 16)]
    for layer in setting.models:
        graphs = [crawled(2 * m, m * d * 4 // 3) for m, d in sizes]
        runs = []
        for g in graphs:
            args = programs.one_device(g), g.num_nodes, setting.features
            runs.append(layer_time._run(programs.layer(layer, "both", *args)))
        times = measure.in_passes([runs], setting.repeats, setting.passes, fill=setting.fill)[0]
        for g, seconds in zip(graphs, times, strict=True):
            sizes_ = {"edges": len(g.src), "rows": g.num_nodes}
            yield {"layer": layer, **sizes_, "seconds": seconds, "copies": copies}


def notes(rows: Sequence[Row]) -> Iterator[str]:
    def said(name: str, some: Sequence[Row]) -> str:
        off = [abs(np.log(r.ratio)) for r in some]
        ratios = [r.ratio for r in some]
        return (
            f"{name}: predicted is {min(ratios):.2f} to {max(ratios):.2f} times measured, off by "
            f"{np.exp(np.median(off)) - 1:.0%} in the median, over {len(some)} points"
        )

    groups = {
        "fitted": [r for r in rows if r.fitted],
        "collectives on other counts": [r for r in rows if not r.fitted and "KiB" in r.what],
        "layers, not fitted": [r for r in rows if not r.fitted and "KiB" not in r.what],
    }
    for name, some in groups.items():
        if some:
            yield said(name, some)
    for exchange in work.EXCHANGES:
        some = [r for r in groups["layers, not fitted"] if r.what.endswith(exchange)]
        if some:
            yield said(f"layers, {exchange}", some)
