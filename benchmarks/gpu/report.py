"""The tables of `bench_gpu.py`'s JSON lines; `common/report.py` calls this."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from common import workloads

Record = dict[str, Any]
Key = tuple[str, str, str, str]
OWN = ("default", "bucketed")
OTHERS = ("segment", "pyg", "compiled", "cusparse", "csr", "edge_index")
MODES = {"forward": "forward", "both": "fwd + bwd"}


def text(records: Sequence[Record]) -> str:
    """The device, times, memory, what was compared, and what is missing and why."""
    timed = _cases(r for r in records if r["mode"] in MODES)
    first = next((r for r in records if r["mode"] in MODES), records[0])
    lines = [_about(first), "", *_times(timed), "", *_memory(timed), ""]
    lines += [_legend(first), "", *_checks(records), *_missing(records)]
    return "\n".join(lines)


def _cases(records: Iterable[Record]) -> dict[Key, dict[str, Record]]:
    """Records by layer, size, dtype and mode, then by peer; later ones replace earlier ones."""
    cases: dict[Key, dict[str, Record]] = {}
    for r in records:
        cases.setdefault((r["layer"], r["size"], r["dtype"], r["mode"]), {})[r["peer"]] = r
    return {k: found for k, found in cases.items() if any(map(_timed, found.values()))}


def _timed(record: Record | None) -> bool:
    return record is not None and "min_seconds" in record


def _present(cases: dict[Key, dict[str, Record]], names: Sequence[str]) -> list[str]:
    return [n for n in names if any(_timed(found.get(n)) for found in cases.values())]


def _times(cases: dict[Key, dict[str, Record]]) -> list[str]:
    own, others = _present(cases, OWN), _present(cases, OTHERS)
    ratios = [n for n in (*own, *others) if n != "default"]
    head = ["case", *own, *others, *(f"{n} / default" for n in ratios), "roofline", "rows once"]
    rows = [head]
    for key, found in cases.items():
        mine = found.get("default")
        rows.append([
            _title(key, found), *(_time(found.get(n)) for n in (*own, *others)),
            *(_ratio(found.get(n), mine) for n in ratios), *_roofline(mine),
        ])  # fmt: skip
    return _markdown(rows)


def _memory(cases: dict[Key, dict[str, Record]]) -> list[str]:
    names = _present(cases, (*OWN, *OTHERS))
    rows = [["case", *(f"{n}: MiB" for n in names), *(f"{n}: compile s" for n in names)]]
    for key, found in cases.items():
        some = [found.get(n) for n in names]
        rows.append([_title(key, found), *map(_bytes, some), *map(_compile, some)])
    return _markdown(rows)


def _title(key: Key, found: dict[str, Record]) -> str:
    layer, size, dtype, mode = key
    title, heads = workloads.LAYERS[layer].title, next(iter(found.values()))["sizes"]["heads"]
    title = title.replace(f"{workloads.HEADS} heads", f"h {heads}")
    return f"{title}, {size}, {dtype}, {MODES[mode]}"


def _time(record: Record | None) -> str:
    if record is None or not _timed(record):
        return "–"
    return f"{1e3 * record['min_seconds']:.3g} ({1e3 * record['median_seconds']:.3g})"


def _ratio(peer: Record | None, own: Record | None) -> str:
    if peer is None or own is None or not (_timed(peer) and _timed(own)):
        return "–"
    low, mid = (peer[k] / own[k] for k in ("min_seconds", "median_seconds"))
    return f"{low:.2f} ({mid:.2f})"


def _roofline(own: Record | None) -> tuple[str, str]:
    """The share of the bytes that must move, and that with every vertex row moved once."""
    if own is None or not _timed(own):
        return "–", "–"
    shares = {
        k: b / own["bytes_per_second"] / own["min_seconds"] for k, b in own["must_move"].items()
    }
    level = "vertices" if fits(own) else "edges"
    return f"{shares[level]:.0%}{' cached' if level == 'vertices' else ''}", (
        f"{shares['vertices']:.0%}"
    )


def fits(record: Record) -> bool:
    """Whether one row per vertex fits the device's cache, as far as it is known."""
    sizes, item = record["sizes"], {"float32": 4, "bfloat16": 2}[record["dtype"]]
    cache = record["cache_bytes"]
    return cache is not None and item * sizes["vertices"] * sizes["features"] <= cache


def _bytes(record: Record | None) -> str:
    known = None if record is None else record.get("device_bytes")
    return "–" if known is None else f"{known / 2**20:.0f}"


def _compile(record: Record | None) -> str:
    if record is None or record.get("first_seconds") is None:
        return "–"
    spent = record["compile_seconds"]
    return f"{record['first_seconds']:.1f}" if spent is None else f"{spent:.1f}"


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    return [line(rows[0]), line("-" * w for w in widths), *map(line, rows[1:])]


def _about(record: Record) -> str:
    names = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    smoke = "SMOKE SIZES, the times mean nothing. " if record["smoke"] else ""
    machine = record["machine"]
    return (
        f"{smoke}{record['cuda'].get('name', record['device'])}, driver {record['driver']}, copy "
        f"{record['bytes_per_second'] / 1e9:.0f} GB/s; {machine['cpus']} threads of "
        f"{machine['processor']}; matrix products of float32 when timed: {record['matmul']}; "
        f"{machine['when']}; {names}"
    )


def _legend(record: Record) -> str:
    cache = record["cache_bytes"]
    known = "of unknown size" if cache is None else f"of {cache / 2**20:.0f} MiB"
    return (
        "Milliseconds a call: least (median) batch. x / default: that peer's time over gnnjit's. "
        "Roofline: bytes that must move at the copy's rate, over gnnjit's least time; rows count "
        f"once per edge unless one row per vertex fits the cache ({known}): 'cached'. MiB: "
        "temporaries and outputs that XLA planned, growth that PyTorch's allocator saw. Compile: "
        "of XLA tracing and compiling; of PyTorch the first call."
    )


def _checks(records: Sequence[Record]) -> list[str]:
    """How many comparisons were fine, the worst of them, and which results were not repeated."""
    found = {
        (r["layer"], r["size"], r["dtype"], r["peer"], "check" if r["mode"] == "check" else ""): r
        for r in records if "errors" in r
    }  # fmt: skip
    lines = []
    for peer in dict.fromkeys(r["peer"] for r in found.values()):
        of_peer = [r for r in found.values() if r["peer"] == peer]
        right = sum(r["status"] != "wrong" for r in of_peer)
        worst = []
        for dtype in dict.fromkeys(r["dtype"] for r in of_peer):
            error, name, r = max(
                ((e[0], k, r) for r in of_peer if r["dtype"] == dtype
                 for k, e in r["errors"].items()),
                key=lambda item: item[0],
            )  # fmt: skip
            plain = r["plain_errors"][name][0]
            worst.append(
                f"{dtype} {error:.2g} in {name} of {r['layer']} {r['size']} (plain {plain:.2g})"
            )
        other = [r for r in of_peer if not r["bits_identical"]]
        places = ", ".join(f"{r['layer']} {r['size']} {r['dtype']}" for r in other)
        bits = f"; NOT the same bits twice: {places}" if other else "; the same bits twice"
        lines.append(f"- {peer}: {right} of {len(of_peer)} right; worst {', '.join(worst)}{bits}")
    return ["Compared with float64, relative error in norm:", *lines, ""] if lines else []


def _missing(records: Sequence[Record]) -> list[str]:
    """What was not timed, by status, peer and reason."""
    reasons: dict[str, dict[str, None]] = {}
    for r in records:
        if r["status"] != "ok":
            what = f"{r['status']}, {r['peer']}, {r['reason']}"
            reasons.setdefault(what, {})[f"{r['layer']} {r['size']} {r['dtype']}"] = None
    return [f"- {what}: {', '.join(places)}" for what, places in reasons.items()]
