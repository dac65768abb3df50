"""What `bench_edge_networks` prints: a table in Markdown, and what it was measured on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_networks import FORMS

Record = dict[str, Any]
HEADINGS = (
    "network", "vertices, edges, width", f"ms: {', '.join(FORMS)}", "plain / layer",
    "split / layer", "checkpoint / layer", f"MiB: {', '.join(FORMS[:-1])}",
    "compile s, layer: first, second", "compile s, plain: first, second",
    "% of matrix peak: layer, plain, split",
)  # fmt: skip
NOTHING = "–"


def text(records: Sequence[Record]) -> str:
    """The table, why forms are missing, and the machine."""
    first = records[0]
    machine, smoke = first["machine"], "SMOKE SIZES, the times mean nothing. " * first["smoke"]
    about = (
        f"{smoke}Milliseconds: least of {first['rounds']} rounds. Matrix peak: "
        f"{first['peak_flops_per_second'] / 1e9:.4g} billion operations a second. "
        f"{machine['threads']} threads of {machine['processor']}; load {machine['load']:.1f} "
        f"before; {machine['when']}"
    )
    return "\n".join([*table(records), "", *notes(records), "", about])


def table(records: Sequence[Record]) -> list[str]:
    """A line for each network and size."""
    cases: dict[tuple[Any, ...], dict[str, Record]] = {}
    for r in records:
        key = r["network"], r["vertices"], r["edges"], r["width"]
        cases.setdefault(key, {})[r["form"]] = r
    rows = [HEADINGS, ["---"] * len(HEADINGS), *(_row(k, forms) for k, forms in cases.items())]
    return [f"| {' | '.join(row)} |" for row in rows]


def _row(key: tuple[Any, ...], forms: dict[str, Record]) -> tuple[str, ...]:
    network, vertices, edges, width = key

    def number(form: str, name: str, style: str, scale: float = 1.0) -> str:
        value = forms.get(form, {}).get(name)
        return NOTHING if value is None else format(value * scale, style)

    def ratio(form: str) -> str:
        own, peer = (forms.get(k, {}).get("least_seconds") for k in ("layer", form))
        return f"{peer / own:.2f}" if own and peer else NOTHING

    def across(some: Sequence[str], name: str, style: str, scale: float = 1.0) -> str:
        return " / ".join(number(form, name, style, scale) for form in some)

    def compiled(form: str) -> str:
        names = ("compile_first_seconds", "compile_second_seconds")
        return " / ".join(number(form, name, ".1f") for name in names)

    return (
        network, f"{vertices:,}, {edges:,}, {width}", across(FORMS, "least_seconds", ".4g", 1e3),
        *map(ratio, ("plain", "split", "checkpoint")),
        across(FORMS[:-1], "temp_bytes", ".1f", 2**-20), compiled("layer"), compiled("plain"),
        across(FORMS[:3], "peak_share", ".1f", 100),
    )  # fmt: skip


def notes(records: Sequence[Record]) -> list[str]:
    """Why forms are missing, and how far forms are from plain JAX at most."""
    lines = [
        f"- {r['network']}, {r['form']}, {r['vertices']} x {r['edges']} x {r['width']}: "
        f"{r['status']}: {r['reason']}"
        for r in records
        if r["status"] != "ok"
    ]
    errors = [r for r in records if r.get("error") is not None]
    for form in FORMS:
        some = [r for r in errors if r["form"] == form]
        if some and form != "plain":
            worst = max(some, key=lambda r: r["error"])
            lines.append(f"- {form} is at most {worst['error']:.1e} from plain: {worst['network']}")
    return lines
