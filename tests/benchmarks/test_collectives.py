"""What a compiled program moves, read from its text."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

import pytest

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"

PROGRAM = """\
HloModule jit_f, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (x: f32[10,4]) -> f32[1000,4] {
  %x = f32[10,4]{1,0} parameter(0)
  ROOT %wide = f32[1000,4]{1,0} broadcast(%x), dimensions={0,1}
}

%body (state: (s32[], f32[10,4], /*index=2*/s32[7])) -> (s32[], f32[10,4], /*index=2*/s32[7]) {
  %state = (s32[], f32[10,4]{1,0}, /*index=2*/s32[7]{0}) parameter(0)
  %rows = f32[10,4]{1,0} get-tuple-element(%state), index=1
  %hop = f32[10,4]{1,0} collective-permute(%rows), source_target_pairs={{0,1},{1,0},{2,2}}
  ROOT %next = (s32[], f32[10,4]{1,0}, /*index=2*/s32[7]{0}) tuple(%i, %hop, %ids)
}

%condition (state: (s32[], f32[10,4], /*index=2*/s32[7])) -> pred[] {
  %state = (s32[], f32[10,4]{1,0}, /*index=2*/s32[7]{0}) parameter(0)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[10,4]) -> f32[10,4] {
  %x = f32[10,4]{1,0} parameter(0)
  %grown = f32[20,4]{1,0} fusion(%x), kind=kLoop, calls=%fused
  %while = (s32[], f32[10,4]{1,0}, /*index=2*/s32[7]{0}) while(%t), condition=%condition, \
body=%body, backend_config={"known_trip_count":{"n":"6"}}
  LINES
}
"""


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("shard.collectives")


@pytest.mark.parametrize(
    ("line", "received", "total"),
    [
        ("bf16[80,4]{1,0} all-gather(%x), replica_groups={{0,1,2,3,4,5,6,7}}", 560, 4480),
        ("f32[80,4]{1,0} all-gather(%x), replica_groups={}", 1120, 8960),
        ("(f32[10,4], f32[80,4]) all-gather-start(%x), replica_groups=[1,8]<=[8]", 1120, 8960),
        ("f32[80,4]{1,0} all-gather-done(%start)", None, None),
        ("f32[10,4]{1,0} reduce-scatter(%x), replica_groups=[2,4]<=[8], to_apply=%add", 480, 3840),
        (
            "(f32[], f32[8,8]{1,0}) all-reduce(%x, %y), to_apply=%add, "
            "replica_groups=mesh['a'=2,'b'=4] {'b'}",
            390,
            3120,
        ),
        ("(f32[5,4], f32[5,4]) all-to-all(%x, %y), replica_groups={{0,1},{2,3}}", 80, 320),
        ("s8[16]{0} all-to-all(%x), dimensions={0}, replica_groups={{0,1,2,3}}", 12, 48),
        (
            "(f32[3,4], f32[3,4], u32[], u32[]) collective-permute-start(%x), "
            "source_target_pairs={{0,1},{1,2}}",
            48,
            96,
        ),
        ("f32[3,4]{1,0} collective-permute(%x), source_target_pairs={{0,0},{1,1}}", 0, 0),
    ],
)
def test_bytes(collectives: Any, line: str, received: int | None, total: int | None) -> None:
    text = PROGRAM.replace("LINES", f"ROOT %y = {line}")
    hop, *rest = collectives.moved(text)
    assert (hop.kind, hop.times, hop.received, hop.total) == ("collective-permute", 6, 160, 320)
    found = [(c.received, c.total, c.times) for c in rest]
    assert found == ([] if received is None else [(received, total, 1)])


def test_loops_within_loops(collectives: Any) -> None:
    """A loop in a called computation runs as often as both say; what is not called, never."""
    call = "%z = f32[10,4]{1,0} call(%x), to_apply=%main.1"
    text = PROGRAM.replace("ENTRY %main", "%main.1").replace("LINES", "ROOT %y = f32[] add(%x, %x)")
    text += f"\nENTRY %whole (x: f32[10,4]) -> f32[] {{\n  {call}\n  {call}\n}}\n"
    (hop,) = collectives.moved(text)
    assert hop.times == 12
    assert str(hop) == "12 x collective-permute f32[10,4]"


def test_what_is_not_known(collectives: Any) -> None:
    text = PROGRAM.replace("LINES", "ROOT %y = f32[] add(%x, %x)")
    with pytest.raises(collectives.UnknownError, match="how often %while runs is not known"):
        collectives.moved(text.replace("known_trip_count", "else"))
    with pytest.raises(collectives.UnknownError, match="no ENTRY"):
        collectives.moved(text.replace("ENTRY ", ""))
    with pytest.raises(collectives.UnknownError, match="no replica_groups that can be read"):
        collectives.moved(PROGRAM.replace("LINES", "ROOT %y = f32[8]{0} all-gather(%x)"))
    with pytest.raises(collectives.UnknownError, match="no source_target_pairs"):
        collectives.moved(PROGRAM.replace("LINES", "ROOT %y = f32[8] collective-permute(%x)"))
    with pytest.raises(collectives.UnknownError, match="the type opaque has no known size"):
        collectives.bits("opaque")


def test_buffers(collectives: Any) -> None:
    """What lies within a fusion is no buffer."""
    text = PROGRAM.replace("LINES", "ROOT %y = s32[5000]{0} iota()")
    found = collectives.buffers(text)
    assert "s32[5000]" in map(str, found)
    assert "f32[1000,4]" not in map(str, found)
    assert str(collectives.largest(found)) == "f32[20,4]"


def test_of_a_start(collectives: Any) -> None:
    line = "(f32[4]{0}, f32[9]{0}) all-reduce-start(%x, %y), replica_groups={{0,1}}, to_apply=%add"
    *_, found = collectives.moved(PROGRAM.replace("LINES", f"ROOT %y = {line}"))
    assert (found.kind, found.received) == ("all-reduce", 52)
