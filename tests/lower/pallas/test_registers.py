"""Registers and spills of the kernels, as Triton compiles them for an H200, against a table.

Where a change is meant: `python tests/lower/pallas/registers.py --write`, and the commit says why.
"""

from __future__ import annotations

import json

import pytest

triton = pytest.importorskip("triton", reason="pip install gnnjit[gpu-check] to compile kernels")

from . import registers  # noqa: E402

MARGIN = 16
FOUND = json.loads(registers.TABLE.read_text())
pytestmark = pytest.mark.skipif(
    triton.__version__ != FOUND["triton"],
    reason=f"the table is of Triton {FOUND['triton']}, this is {triton.__version__}",
)
CASES = [
    (family, width, dtype)
    for family in registers.FAMILIES
    for width in registers.widths(family)
    for dtype in ("float32", "bfloat16")
    # The table has all; a minute is enough for these.
    if dtype == "float32" or (width == 64 and family in ("SpMM", "GAT", "edge MLP"))
]


def test_the_table_is_of_these_kernels() -> None:
    keys = {
        registers.key(f, w, d)
        for f in registers.FAMILIES
        for w in registers.widths(f)
        for d in ("float32", "bfloat16")
    }
    assert set(FOUND["kernels"]) == keys


@pytest.mark.parametrize(("family", "width", "dtype"), CASES)
def test_registers(family: str, width: int, dtype: str) -> None:
    table = FOUND["kernels"][registers.key(family, width, dtype)]
    uses = registers.measure(family, width, dtype)
    assert set(uses) == set(table)
    wrong = [
        f"{name}: {use.registers} registers and {use.spills} spilled bytes, in the table "
        f"{table[name]['registers']} and {table[name]['spills']}"
        for name, use in uses.items()
        if use.spills > table[name]["spills"]
        or abs(use.registers - table[name]["registers"]) > MARGIN
    ]
    assert wrong == [], "python tests/lower/pallas/registers.py --write renews the table"


def test_warps_that_fit() -> None:
    assert registers.Use(32, 0, 0, 4).resident == 64
    assert registers.Use(128, 0, 0, 4).resident == 16
    assert registers.Use(255, 0, 0, 4).resident == 8
    assert registers.Use(32, 0, 100 * 1024, 4).resident == 8
