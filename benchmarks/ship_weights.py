"""Makes the weights that gnnjit ships (`gnnjit/cost/weights.json`).

    gnnjit calibrate --json > calibration.json      # on an idle machine
    python benchmarks/ship_weights.py calibration.json

"cpu" is taken from the calibration; "gpu" is derived from the rates of one H200 until one has been
calibrated. Run it after a change of `gnnjit.cost.kinds`, too.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys

COST = pathlib.Path(__file__).parents[1] / "gnnjit" / "cost"
LAUNCH = 5e-6
"""Seconds."""

H200: dict[str, dict[str, float]] = {
    "call": {"calls": LAUNCH},
    "matmul": {"count": LAUNCH, "flops": 1 / 3e14, "padded": 1 / 3e14, "bytes": 1 / 4e12},
    "batched_matmul": {"count": LAUNCH, "flops": 1 / 3e14, "padded": 1 / 3e14, "bytes": 1 / 4e12},
    "tall": {"count": LAUNCH, "flops": 1 / 2e14, "bytes": 1 / 4e12},
    "elementwise": {"count": LAUNCH, "bytes": 1 / 4e12, "transcendentals": 1 / 2e12},
    "reduce": {"count": LAUNCH, "bytes": 1 / 4e12, "single": 1 / 4e12},
    "total": {"count": LAUNCH, "bytes": 1 / 4e12, "single": 1 / 4e12},
    "traversal": {
        "count": LAUNCH, "edges": 1 / 1e11, "rows": 1 / 2e10, "vectors": 1 / 1e12,
        "functions": 1 / 1e11, "products": 1 / 1e12, "outer": 1 / 2e11,
        "lines": 1 / 8e10, "lines_64m": 1 / 6e10, "row_bytes": 1 / 4e12,
    },
    "chunks": {
        "count": 10 * LAUNCH, "edges": 1 / 2e10, "flops": 1 / 1e14, "bytes": 1 / 2e12,
        "scattered": 1 / 1e12, "functions": 1 / 5e11,
    },
}  # fmt: skip


def kinds() -> dict[str, tuple[str, ...]]:
    """`KINDS`, without importing gnnjit: that reads the weights."""
    spec = importlib.util.spec_from_file_location("kinds", COST / "kinds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.KINDS


def main(calibration: str | None = None) -> None:
    known = kinds()
    cpu: dict[str, dict[str, float]] = {}
    if calibration is not None:
        found = json.loads(pathlib.Path(calibration).read_text(encoding="utf-8"))["kinds"]
        cpu = {kind: found[kind]["weights"] for kind in known}
    shipped = {
        name: {k: {f: float(f"{w.get(k, {}).get(f, 0):.4g}") for f in known[k]} for k in known}
        for name, w in (("cpu", cpu), ("gpu", H200))
    }
    (COST / "weights.json").write_text(json.dumps(shipped, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
