"""Which exchange is taken."""

from __future__ import annotations

import re

import pytest

from gnnjit.cost.link_model import Blocks, Link, Links, choose, ways
from gnnjit.errors import PlanError

EQUAL = Links(*(Link(1e-5, 1e9),) * 4)


def found(halo: int, rows: int = 1000, shards: int = 8, cover: int | None = None, hops: int = 7):
    blocks = Blocks((halo,), False, halo, 2 * halo)
    half = (halo if cover is None else cover) // 2
    both = (Blocks((half,), False, half, 2 * half),) * 2
    return ways(EQUAL, shards, rows, 256.0, hops, blocks, both)


def test_a_line_through_both_transfers():
    link = Link.through([(1e6, 3e-3), (1e3, 1e-3 + 2e-6)])
    assert link.bandwidth == pytest.approx(1e6 / 2e-3, rel=1e-2)
    assert link.seconds(0) == 0
    assert link.seconds(1e6) == pytest.approx(3e-3)


def test_little_that_is_used_is_a_halo():
    assert choose(found(halo=500), 1000, 256.0, None).name == "halo"


def test_sums_where_they_are_fewer():
    assert choose(found(halo=1900, cover=300), 1000, 256.0, None).name == "cover"


def test_without_a_budget_memory_falls_with_the_devices():
    """Nearly every row is used: the table would be as large as the graph."""
    ways = found(halo=6500)
    assert min(ways, key=lambda way: way.seconds).name == "all_gather"
    assert choose(ways, 1000, 256.0, None).name == "ring"


def test_all_gather_where_a_budget_has_room():
    assert choose(found(halo=6500), 1000, 256.0, 7000 * 256).name == "all_gather"


def test_a_ring_that_stops_at_few_shards():
    ways = {way.name: way for way in found(halo=3000, hops=2)}
    assert choose(list(ways.values()), 1000, 256.0, None).name == "ring"
    assert (ways["ring"].moved, ways["ring"].rows) == (2000, 2000)
    assert ways["ring"].seconds == pytest.approx(2 * (2e-5 + 4 * 1000 * 256 / 1e9))


def test_a_budget_that_nothing_fits():
    message = (
        "no exchange fits memory_budget=1000: the least, 'ring', holds 2000 rows of other shards, "
        "512000 bytes for 256 each; pass at least that, or more devices"
    )
    with pytest.raises(PlanError, match=re.escape(message)):
        choose(found(halo=6500), 1000, 256.0, 1000)
