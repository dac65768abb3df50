"""The explanation of a streamed function: what it says, and that the plan is what happens."""

from __future__ import annotations

import collections
import dataclasses
import re
import sys
from typing import Any

import jax
import numpy as np
import pytest

import gnnjit
from gnnjit.streaming.compile import StreamedArguments
from gnnjit.streaming.explain import GridExplanation, explain
from gnnjit.streaming.grid.streamed_graph import StreamedGraph
from gnnjit.streaming.program.steps import Executables
from gnnjit.streaming.runtime.traffic import Traffic, planned_traffic
from gnnjit.streaming.stream import stream

from .functions import random_edges

BUDGET = "1MiB"
NONE = np.zeros(0, np.int32)


@gnnjit.layer
def near(v: Any, e: Any) -> Any:
    return gnnjit.sum(e.src)


def neighbours(graph: Any, x: Any) -> Any:
    return near(graph, x)


def executables_of(function: Any, *args: Any) -> Executables:
    return function.trace(StreamedArguments((args, {}))).executables


def small() -> tuple[StreamedGraph, Any]:
    graph = StreamedGraph.from_edges([0, 1, 1, 3, 5], [1, 0, 3, 0, 5], 6, order="given")
    return graph, graph.put("x", np.ones((6, 2), np.float32))


def explained(traffic: Traffic | None) -> GridExplanation:
    args = small()
    function = stream(neighbours, memory_budget=BUDGET, parts=3)
    return explain(function.prepare(*args), executables_of(function, *args), traffic)


MEASURED = Traffic(
    collections.Counter({"edges": 10}),
    [4.0],
    {"0.0.0": 1.0, "load 0.0.0.0": 2.0, "0.0.0.0": 1.0, "load 0.0.0.1": 1.0, "0.0.0.1": 3.0},
    8.0,
    1.0,
)


def section(found: GridExplanation, title: str) -> str:
    return re.sub(r"\w+\.py:\d+", "FILE:LINE", dict(found.sections())[title])


def test_before_a_run():
    found = explained(None)
    assert str(found).startswith("--- grid\n6 vertices in 3 blocks of up to 2\n")
    assert str(found).endswith("--- time\nnothing has run yet")


def test_the_grid():
    assert section(explained(None), "grid") == (
        "6 vertices in 3 blocks of up to 2\n"
        "edges of the largest column and row, over the mean: 1.80, 1.80\n"
        "@+ \n+  \n  +\n"
        "P = 3, 5 edges, largest chunk 2, 5 empty chunks; rows: sources, columns: destinations"
    )


def test_the_sweeps():
    assert section(explained(None), "sweeps") == (
        "0 by columns of the grid\n"
        "  other end  a: float32[vertices, 2] (given)\n"
        "  computes   sum (FILE:LINE) -> b: float32[vertices, 2]\n"
        "  stores     b\n"
        "  moves      48 B, stored 48 B"
    )


def test_the_memory_plan():
    text = section(explained(MEASURED), "memory")
    head, *rest = text.splitlines()
    assert re.fullmatch(
        r"at most \S+ KiB of 1.0 MiB on the device \(least traffic for the given order\)", head
    )
    assert rest == [
        "held between calls: rows of arguments 48 B, edges 1.0 KiB",
        "0 of 4 chunks read only the rows in use",
        "bytes moved        planned    last run",
        "edges                  0 B        10 B",
        "stored                48 B         0 B",
        "all                   48 B        10 B",
    ]


def test_what_was_read_in_place():
    measured = dataclasses.replace(MEASURED, zero_copy=24)
    text = section(explained(measured), "memory")
    assert text.splitlines()[-1] == "read where the store has them: 24 B"


def test_the_times():
    assert section(explained(MEASURED), "time") == (
        "8 s, 1 s of them waiting for loads\n"
        "sweep     measured      loads   computes  simulated     hidden    refined     hidden\n"
        "0              4 s        3 s        5 s        6 s        67%        5 s       100%\n"
        "the slowest block, 0 of sweep 0\n"
        "transfer 11111111111111111111111122222222222....................................\n"
        "compute  000000000000............11111111111222222222222222222222222222222222222\n"
        "6 s, 67% of the transfers hidden, idle 3 s and 1 s\n"
        "in the order 0.0.0 0.0.0.0 0.0.0.1 0.1.0\n"
        "with the order improved\n"
        "transfer 1111111111111122222222222222222222222222222............................\n"
        "compute  00000000000000111111111111111111111111111111111111111111122222222222222\n"
        "5 s, 100% of the transfers hidden, idle 2 s and 0 s\n"
        "in the order 0.0.0 0.0.0.1 0.0.0.0 0.1.0"
    )


def test_where_nothing_travels():
    text = section(explained(Traffic(jobs={"0.0.0": 1.0}, sweeps=[1.0], seconds=1.0)), "time")
    row = text.splitlines()[2]
    assert row.split() == ["0", "1", "s", "0", "s", "1", "s", "1", "s", "-", "1", "s", "-"]
    assert "improved" not in text


def test_in_a_notebook():
    page = explained(MEASURED)._repr_html_()
    assert page.count("<details") == 4
    assert "-&gt;" in page


def trained(graph: Any, x: Any, w: Any) -> Any:
    def loss(x: Any, w: Any) -> Any:
        hidden = near(graph, jax.numpy.tanh(x @ w))
        return jax.numpy.sum(jax.numpy.sin(near(graph, hidden)))

    return jax.value_and_grad(loss, (0, 1))(x, w)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cached": False},
        {"cached": False, "selective": False},
        {"slices": 2, "cached": False},
        {"memory_budget": "80KiB"},
    ],
    ids=str,
)
def test_a_second_run_moves_what_is_planned(options):
    data = random_edges(300, 900)
    graph = data.streamed()
    x = graph.put("x", np.ones((300, 8), np.float32))
    args = graph, x, np.eye(8, dtype=np.float32)
    function = stream(trained, **{"memory_budget": BUDGET, "parts": 4, **options})
    for _ in range(2):
        function(*args)
    planned = planned_traffic(function.prepare(*args), executables_of(function, *args))
    assert sum(planned, collections.Counter()) == +function.traffic.moved


@gnnjit.layer
def on_edges(v: Any, e: Any) -> Any:
    return gnnjit.sum(gnnjit.dropout(e.src, 0.5, jax.random.key(0)))


def test_an_empty_graph():
    graph = StreamedGraph.from_edges(NONE, NONE, 4, order="given")
    x = graph.put("x", np.ones((4, 2), np.float32))
    function = stream(lambda g, x: on_edges(g, x), memory_budget=BUDGET, parts=2)
    function(graph, x)
    found = explain(
        function.prepare(graph, x), executables_of(function, graph, x), function.traffic
    )
    assert "over the mean: 1.00, 1.00" in str(found)


def test_a_plot():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots(1, 2)
    assert explained(MEASURED).plot(axes) is figure
    assert axes[0].get_title() == "edges of each chunk"
    lanes = [label.get_text() for label in axes[1].get_yticklabels()]
    assert lanes == ["given: transfer", "given: compute", "refined: transfer", "refined: compute"]
    assert len(axes[1].patches) == 4 * 4


def test_a_plot_before_a_run():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots(1, 2)
    explained(None).plot(axes)
    assert axes[1].get_title() == "nothing has run yet"


def test_a_plot_without_matplotlib(monkeypatch):
    explanation = explained(None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="plot\\(\\) needs matplotlib: pip install"):
        explanation.plot()
