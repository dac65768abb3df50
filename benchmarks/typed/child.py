"""One side of one case, in a process of its own:

    python -m typed.child SIDE MODEL FORM FOLDER OPTIONS      # in benchmarks/

SIDE is "gnnjit" or "pyg", FOLDER where gnnjit leaves weights and results for the other side,
OPTIONS the fields of `Size` and `repeats` as JSON. It prints a JSON line: least and median seconds
of a step, and how many bytes the process grew by in the first.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import measure

from typed.graphs import Size, make


def main(argv: Sequence[str]) -> int:
    side, model, form, place, text = argv
    options = json.loads(text)
    repeats = options.pop("repeats")
    size, folder = Size(**options), pathlib.Path(place)
    module = importlib.import_module(f"typed.with_{side}")
    module.prepare()
    data = make(model, size)
    if side == "gnnjit":
        run, weights = module.step(model, form, data, size)
        np.savez(folder / f"{model}.weights.npz", **weights)
    else:
        run = module.step(form, data, size, _arrays(folder / f"{model}.weights.npz"))
    before = measure.trim_and_reset()
    results = _flat(run())
    peak = measure.status("VmHWM")
    wanted = folder / f"{model}.results.npz"
    if not wanted.exists():
        np.savez(wanted, **results)
    error, worst = measure.differences(results, _arrays(wanted))
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    found = {
        "seconds": min(seconds), "median_seconds": statistics.median(seconds), "error": error,
        "worst": worst, "bytes": None if None in (peak, before) else peak - before,
    }  # fmt: skip
    print(json.dumps(found))
    return 0


def _flat(results: Any) -> dict[str, np.ndarray]:
    return {
        f"{what}.{t}": np.asarray(rows)
        for what, part in zip(("result", "gradient"), results, strict=True)
        for t, rows in part.items()
    }


def _arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
