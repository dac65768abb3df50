"""A stand-in for METIS."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest


def fake_metis(monkeypatch: pytest.MonkeyPatch, part: Any, **others: Any) -> list[Any]:
    """A pymetis whose partition is `part`; the arguments of the calls."""
    calls = []

    def part_graph(parts: int, **keywords: Any) -> tuple[int, list[int]]:
        calls.append((parts, keywords))
        return 0, list(part)

    module = types.ModuleType("pymetis")
    vars(module).update(part_graph=part_graph, **others)
    monkeypatch.setitem(sys.modules, "pymetis", module)
    return calls
