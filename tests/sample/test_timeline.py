"""The record of what was done when, and its picture."""

from __future__ import annotations

import itertools
import sys

import pytest

from gnnjit.errors import SampleError
from gnnjit.sample import plot_timeline

from .test_loader import loader


def test_every_batch_has_its_stages():
    some = loader(timeline=True, threads=2)
    list(some)
    events = some.events
    for index in range(len(some)):
        own = [event for event in events if event.batch == (0, index, 0)]
        hops = {stage: [e.hop for e in own if e.stage == stage] for stage in {e.stage for e in own}}
        assert sorted(hops["sample"]) == sorted(hops["look up"]) == [0, 1, 2]
        assert hops["reindex"] == hops["wait"] == [None]
        assert len(hops["transfer"]) == 3
        assert all(event.start <= event.end for event in own)
        sampled = sorted((e for e in own if e.stage == "sample"), key=lambda e: e.hop)
        assert all(a.end <= b.start for a, b in itertools.pairwise(sampled))
    assert loader().events == ()


def test_the_picture_has_a_lane_for_each_thread():
    pytest.importorskip("matplotlib").use("agg")
    some = loader(timeline=True, threads=2)
    list(some)
    (axes,) = plot_timeline(some.events).axes
    lanes = [label.get_text() for label in axes.get_yticklabels()]
    assert lanes == sorted({event.thread for event in some.events})
    assert len(axes.patches) == len(some.events)


def test_nothing_to_draw_and_nothing_to_draw_with(monkeypatch):
    with pytest.raises(SampleError, match="got no events, expected some: make the Loader with"):
        plot_timeline(loader().events)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    some = loader(timeline=True, threads=0)
    next(iter(some))
    with pytest.raises(ImportError, match=r"needs matplotlib: pip install 'gnnjit\[notebooks\]'"):
        plot_timeline(some.events)
