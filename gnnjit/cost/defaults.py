"""Weights shipped with gnnjit, for devices that were never calibrated (`weights.json`).

"cpu" was fitted to 349 runs of 143 random layers (`gnnjit.calibration.random_layers`) on two cores
of an AMD EPYC with AVX-512, mean error 18 %; "gpu" is derived from the rates of one H200: 4.8 TB/s
from memory, 10 TB/s from the L2 cache, 400 TFLOP/s in the TF32 that products of f32 take by
default, 5 us a launch. Since the model adds where a device overlaps arithmetic and memory, the
derived one errs on the slow side.
"""

from __future__ import annotations

import functools
import importlib.resources
import json

from gnnjit.cost.model import CostModel

_NAMES = {"gpu": "gpu", "cuda": "gpu", "cpu": "cpu"}
_SOURCES = {
    "cpu": "shipped: two CPU cores, run `gnnjit calibrate` for this machine's",
    "gpu": "shipped: derived for an H200, run `gnnjit calibrate` for this machine's",
}


@functools.cache
def default_model(platform: str) -> CostModel:
    """The shipped model of a platform, the CPU's for one that has none; its `source` says so."""
    name = _NAMES.get(platform, "cpu")
    source = _SOURCES[name]
    if platform not in _NAMES:
        source += f" (nothing is shipped for {platform})"
    return CostModel.from_json(_weights()[name], source)


@functools.cache
def _weights() -> dict[str, dict[str, dict[str, float]]]:
    file = importlib.resources.files("gnnjit.cost") / "weights.json"
    return json.loads(file.read_text(encoding="utf-8"))
