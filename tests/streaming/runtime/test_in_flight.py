"""Operations begin before those before them have ended, as far as there is room."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.ir.array_program import Array, Rows
from gnnjit.streaming.grid.blocks import EdgeBlocks
from gnnjit.streaming.memory import headroom, zero_copy
from gnnjit.streaming.memory import layout as fitting
from gnnjit.streaming.memory.layout import Layout
from gnnjit.streaming.memory.workspace import Workspace
from gnnjit.streaming.program.steps import Step, Tensor, cell
from gnnjit.streaming.runtime import in_flight
from gnnjit.streaming.runtime.in_flight import InFlight, Write
from gnnjit.streaming.stream import stream
from streaming.functions import PerVertex, assert_same, in_memory, on_graph, random_edges

pytestmark = pytest.mark.usefixtures("little_to_collect")

DATA = random_edges(96, 500)
X = PerVertex(np.random.default_rng(0).normal(size=(96, 16)).astype(np.float32))


class Late(concurrent.futures.Future[Any]):
    """A result, or an array, that is there when somebody waits for it."""

    def __init__(self, what: Any, waited: list[Any], value: Any = 1.0) -> None:
        super().__init__()
        self._what, self._waited, self._value = what, waited, value

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._waited.append(self._what)
            self.set_result(self._value)
        return super().result(timeout)

    def block_until_ready(self) -> Late:
        self.result()
        return self

    def is_ready(self) -> bool:
        return self.done()


class Recorded(InFlight):
    """Three operations of 10 bytes on their way, in room for 100; `early` of them have ended."""

    def __init__(self, early: int = 0) -> None:
        self.told: list[int] = []
        self.waited: list[Any] = []
        super().__init__(100, False, {}, lambda number, _: self.told.append(number))
        for number in range(3):
            ended: Any = self.late(number)
            self._flying.append(in_flight._Begun(number, 10, ended, ended))
            if number < early:
                ended.result()
        self.waited.clear()

    def late(self, what: Any) -> Late:
        return Late(what, self.waited)


def vertex_array() -> Array:
    return Array((), np.dtype(np.float32), Rows.VERTEX)


@pytest.mark.parametrize(
    ("needed", "waited"), [(70, []), (71, [0]), (81, [0, 1]), (1000, [0, 1, 2])]
)
def test_there_is_room_beside_what_is_on_its_way(needed, waited):
    found = Recorded()
    found.make_room(needed)
    assert found.waited == found.told == waited
    found.land()
    assert found.told == [0, 1, 2]


def test_what_has_ended_needs_no_room():
    found = Recorded(early=2)
    found.make_room(90)
    assert found.waited == []
    assert found.told == [0, 1]


def test_what_an_operation_leaves_may_be_read_by_an_earlier_one():
    found = Recorded()
    found._flying[1].time.result()
    found.waited.clear()
    assert found.taken() == 30
    found.make_room(71)
    assert found.waited == [0]
    assert found.told == [0, 1]
    assert found.taken() == 10


@pytest.mark.parametrize(("needed", "waited"), [(60, []), (61, ["written"])])
def test_what_is_written_counts_until_it_is_there(needed, waited):
    found = Recorded(early=3)
    found.writes(Write(vertex_array(), 0, 8, 40, found.late("written")))
    found.make_room(needed)
    assert found.waited == waited
    assert found.told == ([0, 1, 2] if waited else [0, 1])


def test_what_leaves_before_the_first_operation_counts_too():
    found = Recorded(early=3)
    found.make_room(100)
    found.writes(Write(vertex_array(), 0, 8, 40, found.late("written")))
    found.make_room(60)
    assert found.waited == []
    found.make_room(61)
    assert found.waited == ["written"]
    assert found.told == [0, 1, 2]


def test_who_reads_rows_waits_for_what_writes_them():
    found = Recorded()
    x, y = vertex_array(), vertex_array()
    found._flying[1].writes.append(Write(x, 8, 16, 40, found.late("written")))
    for rows in ((x, 0, 8), (x, 16, 24), (y, 8, 16)):
        found.written(*rows)
        assert found.waited == []
    found.written(x, 15, 17)
    assert found.waited == [0, 1, "written"]
    assert found.told == [0, 1]


def test_an_error_comes_when_its_operation_lands():
    found = Recorded()
    failed: concurrent.futures.Future[None] = concurrent.futures.Future()
    failed.set_exception(OSError("no room"))
    found.writes(Write(vertex_array(), 0, 8, 1, failed))
    with pytest.raises(OSError, match="no room"):
        found.land()
    assert found.told == [0, 1]


@pytest.mark.parametrize("ahead", [False, True])
def test_operations_are_waited_for_at_once_where_nothing_overlaps(ahead):
    released, told, jobs = threading.Event(), [], {}

    class Running:
        def block_until_ready(self) -> Running:
            assert not ahead or released.wait(60)
            return self

    found = InFlight(100, ahead, jobs, lambda number, _: told.append(number))
    found.begin(0, "job", 10, Running(), 0.0)  # type: ignore[arg-type]
    assert (found.idle(0.0) > 0) == (not ahead)
    released.set()
    found.land()
    found.close()
    assert told == [0]
    assert jobs["job"] > 0


# ------------------------------------------------------------------------------- what is planned


@gnnjit.layer
def attention(v: Any, e: Any, w: Any) -> Any:
    score = gnnjit.softmax(jnp.sum(jnp.tanh((e.src + v) @ w)))
    return v + gnnjit.sum(score * e.src) + gnnjit.max(jnp.tanh((e.src - v) @ w))


W = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32) / 4


def step(graph: Any, x: Any, w: Any) -> Any:
    return jax.value_and_grad(lambda w: jnp.mean(attention(graph, x, w) ** 2))(w)


def prepared(selective: bool = False, **options: Any) -> tuple[Any, Any, Layout]:
    graph = DATA.streamed()
    function = stream(step, selective=selective, **options)
    args = (graph, *on_graph(graph, (X,)), W)
    return function, args, function.prepare(*args)


@functools.cache
def in_three_parts() -> tuple[Any, Any, Layout]:
    return prepared(memory_budget=1 << 22, parts=3)


def alone(work: Workspace, s: Step) -> int:
    """Bytes of an operation beside tensors and what earlier ones leave it."""
    if s.kind == "block":
        return work.block(s)
    return work.chunk(s) + work.edge_bytes(s)


@pytest.mark.long
@pytest.mark.parametrize(("parts", "slices", "cached", "any_zero_copy"), [  # each pair of values
    (1, 1, True, True), (1, 2, False, True), (1, 2, True, False),
    (3, 1, False, False), (3, 2, True, True), (3, 1, False, True),
])  # fmt: skip
def test_the_room_of_several_operations_holds_all_that_they_use(
    parts, slices, cached, any_zero_copy, monkeypatch
):
    if any_zero_copy:
        monkeypatch.setattr(zero_copy, "ZERO_COPY_BYTES", 1)
    function, (graph, *_), layout = prepared(
        memory_budget=1 << 22, parts=parts, slices=slices, cached=cached
    )
    (ready,) = function._ready.values()
    executables, blocks = ready.traced.executables, layout.blocks
    assert isinstance(blocks, EdgeBlocks)
    work = Workspace(
        executables, layout.rows, layout.slices,
        lambda s: int(blocks.slots[cell(executables, s)]), graph.store,
        ragged=bool((np.diff(blocks.bounds) != layout.rows).any()),
    )  # fmt: skip
    work.held = layout.held
    held = {layout.names[t] for t in layout.held if t in layout.names}
    sizes = {name: work.bytes(t) for t, name in layout.names.items()}

    padding = parts * layout.rows - graph.num_nodes

    def shown(t: Tensor) -> bool:
        """Whether the store shows its rows, when they are loaded."""
        behind = graph.store.rows_behind(graph.num_nodes, t.array.row_bytes)
        return any_zero_copy and work.is_zero_copy(t) and (t.block < parts - 1 or padding <= behind)

    lie = {name for t, name in layout.names.items() if shown(t)}
    assert bool(lie) == (
        any_zero_copy and (parts > 1 or slices == 1)
    )  # else padding reaches too far
    copies: list[set[str]] = []  # made or copied, of what is there while each operation runs
    for s, planned in zip(layout.steps, layout.plan.steps, strict=True):
        before = (
            copies[-1].intersection(layout.plan.steps[len(copies) - 1].cached) if copies else ()
        )
        made = {layout.names[t] for t in s.outputs}
        copies.append({*before} - {*planned.evictions} | made | ({*planned.loads} - lie))

    def there(at: int) -> set[str]:
        """Tensors that take memory of the device while an operation runs."""
        s, planned = layout.steps[at], layout.plan.steps[at]
        own = {layout.names[t] for t in (*s.inputs, *s.outputs)} - held
        before = set(layout.plan.steps[at - 1].cached) if at else set()
        found = own | before.difference(planned.evictions)
        assert copies[at] <= found
        return copies[at] if any_zero_copy else found

    for first in range(len(layout.steps)):
        for last in range(first, min(first + 5, len(layout.steps))):
            some = range(first, last + 1)
            room = layout.headrooms[last].needed + sum(
                layout.headrooms[at].beside for at in some[:-1]
            )
            writing = {
                layout.names[t] for at in some[:-1] for t in layout.steps[at].outputs
                if layout.names[t] in layout.plan.steps[at].stores
            }  # fmt: skip
            room += sum(sizes[name] for name in writing)
            tensors = set().union(*map(there, some))
            used = sum(sizes[name] for name in tensors)
            used += sum(alone(work, layout.steps[at]) for at in some)
            used += work.between(layout.steps[last])
            assert used <= room


@pytest.mark.long
@pytest.mark.parametrize("process", [True, False])
def test_rows_that_lie_in_the_store_leave_room(process, monkeypatch):
    """But not in a process whose own memory is what counts: maps of files are part of that."""
    monkeypatch.setattr(zero_copy, "ZERO_COPY_BYTES", 1)
    given: list[Any] = []
    monkeypatch.setattr(
        fitting, "headrooms", lambda *args: given.extend(args) or headroom.headrooms(*args)
    )
    budget = 1 << 40 if process else 1 << 22
    layout = prepared(parts=3, memory_budget=budget, process=process)[-1]
    *others, _ = given
    counted = headroom.headrooms(*others, lambda t: False)
    assert (layout.headrooms == counted) == process
    assert all(a.needed <= b.needed for a, b in zip(layout.headrooms, counted, strict=True))


@pytest.mark.long
def test_rows_that_are_read_in_part_are_copies(monkeypatch):
    monkeypatch.setattr(zero_copy, "ZERO_COPY_BYTES", 1)
    monkeypatch.setattr(
        fitting, "read_in_part", lambda *args: [s.name for s in args[3] if s.partial]
    )
    options = {"memory_budget": 1 << 22, "parts": 3, "cached": False}
    whole, part = (prepared(selective=s, **options)[-1] for s in (False, True))
    assert part.selected
    for s, a, b in zip(whole.steps, whole.headrooms, part.headrooms, strict=True):
        assert (a.needed < b.needed) == (s.name in part.selected)


def test_no_room_is_needed_beyond_the_plan():
    _, _, layout = in_three_parts()
    assert max(room.needed for room in layout.headrooms) <= layout.plan.peak_bytes
    for before, room in pairwise(layout.headrooms):
        assert 0 <= before.beside <= before.needed
        assert room.needed > 0


# --------------------------------------------------------------------------------- what is run


def test_operations_begin_before_others_have_ended(monkeypatch):
    """With room for all of them; with less, as many as fit."""
    begin, make_room = InFlight.begin, InFlight.make_room
    most: list[int] = []
    room: list[int] = []

    def begun(self: InFlight, number: int, name: str, beside: int, ended: Any, at: float) -> None:
        """Not known to have ended before somebody waits for it."""
        begin(self, number, name, beside, ended, at)
        if ended is not None:
            last: Any = self._flying[-1]
            last.ended = last.time = Late(name, [], last.time.result())
        most[-1] = max(most[-1], sum(flight.runs() for flight in self._flying))

    def made(self: InFlight, needed: int) -> None:
        self._room = room[-1]
        make_room(self, needed)
        assert needed + self.taken() <= room[-1]

    monkeypatch.setattr(InFlight, "begin", begun)
    monkeypatch.setattr(InFlight, "make_room", made)
    for least in (False, True):
        function, args, layout = in_three_parts()
        room.append(layout.plan.peak_bytes if least else layout.plan.capacity)
        most.append(0)
        assert_same(
            jax.tree.map(np.asarray, function(*args)), in_memory(step, DATA, X, W), atol=1e-4
        )
    assert most[0] > most[1] >= 1


def test_the_watcher_hears_of_each_operation_once_and_in_order():
    function, args, layout = in_three_parts()
    told = []
    function.watch = lambda done, total: told.append((done, total))
    function(*args)
    assert told == [(at + 1, len(layout.steps)) for at in range(len(layout.steps))]


def test_each_operation_has_a_time():
    function, args, layout = in_three_parts()
    function(*args)
    traffic = function.traffic
    some = [s for s in layout.steps if s.name in traffic.jobs]
    assert any(s.kind == "chunk" for s in some)
    assert any(s.kind == "block" for s in some)
    assert all(traffic.jobs[s.name] > 0 for s in some)
    assert sum(traffic.jobs[s.name] for s in some) <= traffic.seconds
    assert len(traffic.sweeps) == 1 + max(s.sweep for s in layout.steps)
    assert 0 < sum(traffic.sweeps) <= traffic.seconds
