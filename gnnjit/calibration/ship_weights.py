"""Makes the weights that gnnjit ships (`gnnjit/cost/weights.json`).

    python gnnjit/calibration/ship_weights.py                  # after a change of cost/kinds.py
    python gnnjit/calibration/ship_weights.py --layers 360     # "cpu" anew: idle, 15 to 30 minutes

"cpu" is fitted to random layers as by a thorough calibration, with another seed and more passes;
"gpu" is derived from the rates of one H200 until one has been calibrated.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

COST = pathlib.Path(__file__).parents[1] / "cost"
LAUNCH = 5e-6
"""Seconds."""

H200: dict[str, dict[str, float]] = {
    "call": {"calls": LAUNCH},
    "matmul": {"count": LAUNCH, "flops": 1 / 3e14, "bytes": 1 / 4e12},
    "heads": {"count": LAUNCH, "flops": 1 / 3e14, "bytes": 1 / 4e12},
    "tall": {"count": LAUNCH, "flops": 1 / 2e14, "bytes": 1 / 4e12},
    "elementwise": {"count": LAUNCH, "bytes": 1 / 4e12, "transcendentals": 1 / 2e12},
    "reduce": {"count": LAUNCH, "bytes": 1 / 4e12, "single": 1 / 4e12},
    "total": {"count": LAUNCH, "bytes": 1 / 4e12, "single": 1 / 4e12},
    "traversal": {
        "count": LAUNCH, "edges": 1 / 1e11, "rows": 1 / 2e10, "vectors": 1 / 1e12,
        "functions": 1 / 1e11, "products": 1 / 1e12, "outer": 1 / 2e11,
        "lines": 1 / 8e10, "lines_64m": 1 / 6e10, "row_bytes": 1 / 4e12,
    },
    "tiles": {"flops": 1 / 3e14},
    "chunks": {
        "count": 10 * LAUNCH, "bytes": 1 / 2e12, "scattered": 1 / 1e12, "functions": 1 / 5e11,
    },
}  # fmt: skip

SEED = 7
Weights = dict[str, dict[str, float]]


def kinds() -> dict[str, tuple[str, ...]]:
    """`KINDS`, without importing gnnjit: that reads the weights."""
    spec = importlib.util.spec_from_file_location("kinds", COST / "kinds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.KINDS


def completed(weights: Weights) -> Weights:
    """The weights of all features there are, 0 for new ones."""
    return {
        kind: {f: weights.get(kind, {}).get(f, 0.0) for f in features}
        for kind, features in kinds().items()
    }


def fit(layers: int, passes: int, shipped: Weights) -> Weights:
    """The weights of this machine's CPU; those that were shipped for what no layer does, which
    would cost nothing otherwise."""
    import gnnjit
    from gnnjit.calibration.points import calibration_points
    from gnnjit.cost.calibrate import THOROUGH, calibrate
    from gnnjit.cost.model import CostModel

    assert gnnjit.keep_memory(), "without it, times depend on what was freed before"
    effort = dataclasses.replace(THOROUGH, layers=layers, passes=passes)
    prior = CostModel.from_json(completed(shipped))
    found = calibrate(calibration_points(effort, seed=SEED), effort, prior=prior)
    weights = found.model.to_json()
    weights["memory"]["fresh"] = seconds_of_new_byte()
    return weights


FRESH = """
import sys, time
import gnnjit
if sys.argv[1] == "keep":
    gnnjit.keep_memory()
import jax, jax.numpy as jnp
double = jax.jit(lambda x: x + x)
x = jnp.ones((16 << 20,), jnp.float32)
def once():
    start = time.perf_counter()
    double(x).block_until_ready()
    return time.perf_counter() - start
print(min(once() for _ in range(20)))
"""


def seconds_of_new_byte() -> float:
    """What memory costs that the system has to clear: with and without it, in two processes."""
    command = [sys.executable, "-c", FRESH]
    new, kept = (
        float(subprocess.run([*command, how], check=True, capture_output=True, text=True).stdout)
        for how in ("give back", "keep")
    )
    return max(0.0, new - kept) / (64 << 20)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=0, help="to be measured (default: none)")
    parser.add_argument("--passes", type=int, default=4, help="over the layers (default: 4)")
    args = parser.parse_args(argv)
    path = COST / "weights.json"
    cpu: Weights = json.loads(path.read_text(encoding="utf-8"))["cpu"]
    if args.layers:
        cpu = fit(args.layers, args.passes, cpu)
    shipped = {
        name: {k: {f: float(f"{x:.4g}") for f, x in row.items()} for k, row in completed(w).items()}
        for name, w in (("cpu", cpu), ("gpu", H200))
    }
    path.write_text(json.dumps(shipped, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
