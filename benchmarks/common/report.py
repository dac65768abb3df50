"""Tables of the JSON lines that a benchmark wrote.

python -m common.report results/layers.jsonl      # in benchmarks/
grep '"question": "model"' results/shard.jsonl | python -m common.report /dev/stdin
"""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import edge_networks.report
import gpu.report

from common import workloads

Record = dict[str, Any]
HEADINGS = (
    "layer", "mode", "gnnjit", "segment", "ratio", "PyG", "ratio", "roofline",
    "peak MiB: gnnjit (temp)", "segment", "PyG",
)  # fmt: skip


HIDDEN = ("benchmark", "question", "smoke")


def text(records: Sequence[Record]) -> str:
    """The tables of one benchmark, in Markdown, and what they were measured on."""
    if not records:
        return "no records"
    reports = {
        "gpu": gpu.report.text, "layers": layers, "edge_networks": edge_networks.report.text,
    }  # fmt: skip
    return reports.get(records[0].get("benchmark", ""), every_field)(records)


def layers(records: Sequence[Record]) -> str:
    """What was run on, the table of `bench_layers.py`, and why cases are missing."""
    first = records[0]
    lines = [_about(first), "", *table(records), "", _legend(first)]
    lines += [f"- {who}: {reason}" for reason, who in _skipped(records).items()]
    return "\n".join(lines)


def table(records: Iterable[Record]) -> list[str]:
    """One line per layer and mode, later records replacing earlier ones."""
    cases: dict[tuple[str, str], dict[tuple[str, str], Record]] = {}
    for r in records:
        who = (r["implementation"], r["configuration"])
        cases.setdefault((r["layer"], r["mode"]), {})[who] = r
    rows: list[tuple[str, ...]] = [HEADINGS]
    for (layer, mode), found in cases.items():
        ok = [r for r in found.values() if r["status"] == "ok"]
        best = {
            name: min(
                (r for r in ok if r["implementation"] == name),
                key=lambda r: r["min_seconds"], default=None,
            )
            for name in ("gnnjit", "segment", "pyg")
        }  # fmt: skip
        rows.append(_row(layer, mode, best["gnnjit"], best["segment"], best["pyg"]))
    return _aligned(rows)


def every_field(records: Sequence[Record]) -> str:
    """A table for each run of records with the same fields; notes and the machine follow it."""
    lines: list[str] = []
    for (question, *names), group in itertools.groupby(
        records, key=lambda r: (r.get("question"), *r)
    ):
        some = list(group)
        first = some[0]
        shown = [n for n in names if n not in HIDDEN and not isinstance(first[n], dict | list)]
        if "notes" in first:
            lines += ["", *(f"- {note}" for note in first["notes"])]
        elif shown:
            lines += ["", *([question, ""] if question else [])]
            lines += _aligned([shown, *([_cell(r[n]) for n in shown] for r in some)])
        if "machine" in first:
            at = first["machine"]
            lines += ["", f"{at['threads']} threads of {at['processor']}; {at['when']}"]
    return "\n".join(lines[1:])


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    return [lines[0], _line(["-" * w for w in widths], widths), *lines[1:]]


def _row(
    layer: str, mode: str, own: Record | None, segment: Record | None, pyg: Record | None
) -> tuple[str, ...]:
    title = workloads.LAYERS[layer].title
    mode = {"forward": "forward", "both": "fwd + bwd"}[mode]
    return (
        title, mode, _time(own), _time(segment), _ratio(segment, own),
        _time(pyg, name=True), _ratio(pyg, own), _roofline(own),
        _memory(own, temp=True), _memory(segment), _memory(pyg),
    )  # fmt: skip


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"


def _time(record: Record | None, name: bool = False) -> str:
    if record is None:
        return "–"
    low, mid = (1e3 * record[k] for k in ("min_seconds", "median_seconds"))
    return f"{low:.4g} ({mid:.4g})" + (f" {record['configuration']}" if name else "")


def _ratio(peer: Record | None, own: Record | None) -> str:
    if peer is None or own is None:
        return "–"
    low, mid = (peer[k] / own[k] for k in ("min_seconds", "median_seconds"))
    return f"{low:.2f} ({mid:.2f})"


def _memory(record: Record | None, temp: bool = False) -> str:
    if record is None or record["peak_bytes"] is None:
        return "–"
    shown = f"{record['peak_bytes'] / 2**20:.0f}"
    own = record.get("temp_bytes") if temp else None
    return shown if own is None else f"{shown} ({own / 2**20:.0f})"


def _roofline(own: Record | None) -> str:
    if own is None:
        return "–"
    sizes = own["sizes"]
    width = workloads.gathered(own["layer"], own["mode"], sizes["features"])
    least = 4 * sizes["edges"] * width / own["bytes_per_second"]
    return f"{least / own['min_seconds']:.0%}"


def _about(record: Record) -> str:
    sizes, machine = record["sizes"], record["machine"]
    names = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    smoke = "SMOKE SIZES, the times mean nothing. " if record["smoke"] else ""
    return (
        f"{smoke}{sizes['vertices']:,} vertices, {sizes['edges']:,} power-law edges, "
        f"{sizes['features']} features, {sizes['heads']} heads, seed {sizes['seed']}; "
        f"{machine['threads']} threads of {machine['processor']}; "
        f"load {machine['load']:.1f} before; {machine['when']}; {names}"
    )


def _legend(record: Record) -> str:
    return (
        "Milliseconds: least (median). Ratio: the peer's time over gnnjit's, likewise. Roofline: "
        f"bytes that edges must read at {record['bytes_per_second'] / 1e9:.1f} GB/s, over "
        "gnnjit's time. Peak: growth over the loaded inputs in one run."
    )


def _skipped(records: Iterable[Record]) -> dict[str, str]:
    """Implementations that did not run, by the reason."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for r in records:
        if r["status"] != "ok" and r["mode"] == "both":
            who = r["implementation"] + (
                "" if r["configuration"] == "default" else f" ({r['configuration']})"
            )
            reasons.setdefault(r["reason"], {}).setdefault(who, []).append(r["layer"])
    return {
        reason: "; ".join(f"{who} left out of {', '.join(layers)}" for who, layers in some.items())
        for reason, some in reasons.items()
    }


def main(paths: Sequence[str]) -> int:
    """Print the table of each file."""
    for path in paths:
        lines = pathlib.Path(path).read_text().splitlines()
        print(text([json.loads(line) for line in lines if line.strip()]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
