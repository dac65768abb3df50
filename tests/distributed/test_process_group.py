"""Several processes stream one graph together, to the numbers of one."""

from __future__ import annotations

import functools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnjit.distributed import connection
from gnnjit.distributed.connection import DistributedError, Rank
from gnnjit.distributed.launch import supervise
from gnnjit.distributed.process_group import ProcessGroup, digest
from gnnjit.errors import PlanError, StoreError, StreamError
from gnnjit.store import CollectiveStore, DiskStore, HostStore
from gnnjit.store.disk import LOCK
from gnnjit.streaming.grid.blocks import EdgeBlocks
from gnnjit.streaming.stream import stream

from . import process_group_job

pytestmark = pytest.mark.once


# --------------------------------------------------------------------------------- whole processes


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def job(processes: int, folder: Path, cases: str, victim: int = -1) -> str:
    command = [sys.executable, process_group_job.__file__, str(folder), cases, str(victim)]
    return str(supervise([command] * processes))


@functools.cache
def alone(case: str) -> list[np.ndarray]:
    return process_group_job.CASES[case](process_group_job.make_graph(HostStore()))


@pytest.mark.long
@pytest.mark.parametrize(("processes", "cases"), [(2, "gat edges"), (3, "gcn")])
def test_together_as_alone(tmp_path, processes, cases):
    assert job(processes, tmp_path, cases) == f"all {processes} processes ended well"
    for case in cases.split():
        with np.load(tmp_path / f"{case}.npz") as found:
            for got, want in zip(found.values(), alone(case), strict=True):
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.long
def test_a_killed_process_stops_the_others_and_leaves_a_whole_store(tmp_path):
    said = job(2, tmp_path, "gcn", victim=1)
    assert said == "process 1 of 2 was killed by signal 9 (SIGKILL); the other was stopped"
    assert not (tmp_path / "gcn.npz").exists()
    with DiskStore.open(tmp_path / "store") as store:
        sealed = {name for name in store.names() if store.info(name).sealed}
        assert {"user.vertex.x", "user.vertex.y", "user.edge.given", "vertex"} <= sealed
        assert all(
            name.split(".")[0] in ("temporary", "result") for name in {*store.names()} - sealed
        )
        assert EdgeBlocks.open(store, "grid.5").num_edges == process_group_job.EDGES


# --------------------------------------------------------------------- processes that are threads


class Exchange:
    """Carries bytes between threads that stand for processes."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self._met = threading.Barrier(processes, timeout=30)
        self._values: list[Any] = [None] * processes

    def group(self, process: int) -> ProcessGroup:
        return ProcessGroup(process, self.processes, functools.partial(self.gather, process))

    def gather(self, process: int, name: str, value: bytes) -> list[bytes]:
        self._values[process] = name, value
        self._met.wait()
        found = [*self._values]
        self._met.wait()
        assert {other for other, _ in found} == {name}
        return [value for _, value in found]

    def each(self, work: Any) -> list[Any]:
        """`work(group)` in all of them at once: the results or errors."""
        with ThreadPoolExecutor(self.processes) as pool:
            futures = [pool.submit(work, self.group(k)) for k in range(self.processes)]
            return [f.exception(60) or f.result() for f in futures]


@pytest.fixture
def three():
    return Exchange(3)


def test_alone_all_of_it_does_nothing():
    group = ProcessGroup.here()
    assert (group, group.alone, group.leads) == (ProcessGroup(), True, True)
    group.barrier("b")
    assert group.gather("g", b"x") == [b"x"]
    assert group.lead("l", lambda: b"x") == b"x"
    assert group.agree("a", lambda: 3, PlanError) == 3
    group.same("nothing", lambda: pytest.fail("is not asked for"))


def test_sizes_are_agreed_on(three):
    def work(group: ProcessGroup) -> Any:
        group.barrier("begin")
        found = group.largest("needs", {"a": group.process, "b": -group.process / 3})
        return found, group.least("room", 10 - group.process)

    assert three.each(work) == [({"a": 2, "b": 0.0}, 8)] * 3


def test_values_that_differ_are_named(three):
    found = three.each(lambda group: group.same("the graph", lambda: f"{group.process // 2}"))
    expected = "the graph is not the same in all processes (processes 0, 1: 0; process 2: 1)"
    for error in found:
        assert isinstance(error, DistributedError)
        assert str(error).startswith(expected)


def test_what_fails_in_one_fails_in_all(three):
    def work(group: ProcessGroup) -> str:
        def plan() -> str:
            if group.process == 1:
                raise PlanError("too small")
            return "fits"

        return group.agree("plan", plan, PlanError)

    for error in three.each(work):
        assert isinstance(error, PlanError)
        assert str(error) == "in process 1 of 3: too small"


def test_errors_of_process_0_reach_all(three):
    def fail() -> bytes:
        raise StoreError("no room")

    found = three.each(lambda group: group.lead("the store", fail))
    assert [(type(error), str(error)) for error in found] == [(StoreError, "no room")] * 3


def test_digests():
    rows = np.arange(6, dtype=np.float32)
    assert digest(rows, rows[::2]) == digest(rows.copy(), rows[::2].copy())
    assert len({digest(rows), digest(rows.reshape(2, 3)), digest(rows.view(np.int32))}) == 3


# ------------------------------------------------------------------------------------- the store


def shared(group: ProcessGroup, folder: Path, make: Any = None) -> CollectiveStore:
    """As `CollectiveStore.create`, where the processes are threads."""
    make = make or super(CollectiveStore, CollectiveStore).create
    return CollectiveStore.together(folder, make, group)


def test_rows_that_one_writes_are_there_for_all(three, tmp_path):
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)

    def work(group: ProcessGroup) -> np.ndarray:
        with shared(group, tmp_path) as store:
            store.add("x", 3, (2,), np.float32)
            store.write("x", group.process, rows[group.process : group.process + 1])
            group.barrier("written")
            found = store.read("x", 0, 3)
            store.seal("x")
            assert store.info("x").sealed
            store.once(lambda: store.drop("x"))
            assert store.names() == ()
            store.add("x", 1, (), np.int32)
            assert store.read("x", 0, 1).tolist() == [0]
            store.seal("x")
            group.barrier("done")
        return found

    for found in three.each(work):
        np.testing.assert_array_equal(found, rows)
    with DiskStore.open(tmp_path) as store:
        assert store.names() == ("x",)


def test_what_process_0_cannot_do_is_an_error_in_all(three, tmp_path):
    def work(group: ProcessGroup) -> list[str]:
        said = []
        with shared(group, tmp_path) as store:
            for wrong in (lambda: store.drop("y"), lambda: store.add("/", 1, (), np.int32)):
                with pytest.raises(StoreError) as error:
                    wrong()
                said.append(str(error.value))
            assert store.names() == ()
            group.barrier("done")
        return said

    first, *others = three.each(work)
    assert "there is no array 'y'" in first[0]
    assert others == [first, first]


def test_arrays_that_a_crash_left_unsealed(three, tmp_path):
    with DiskStore.create(tmp_path) as before:
        before.add("x", 2, (), np.int32)

    def work(group: ProcessGroup) -> None:
        with shared(group, tmp_path, super(CollectiveStore, CollectiveStore).open) as store:
            with pytest.raises(StoreError, match="the array 'x' is not complete"):
                store.read("x", 0, 1)
            store.add("x", 2, (), np.int32, replace=True)
            assert store.read("x", 0, 2).tolist() == [0, 0]
            group.barrier("done")

    assert three.each(work) == [None] * 3


def test_folders_that_are_not_the_same_one(three, tmp_path):
    here = super(CollectiveStore, CollectiveStore).create
    elsewhere = lambda _: here(tmp_path / "of process 0")  # noqa: E731
    first, *others = three.each(lambda group: shared(group, tmp_path, elsewhere).close())
    assert first is None
    for process, error in enumerate(others, 1):
        assert isinstance(error, StoreError)
        assert str(error) == (
            f"{tmp_path / LOCK}: process 0 has made this file, and process {process} does not see "
            "it: all processes need the same folder, on one computer or on a file system that "
            "shows all of them the same at once"
        )


def test_a_store_of_one_process_among_several(monkeypatch):
    graph = process_group_job.make_graph(HostStore())
    step = stream(lambda graph, x: x.sum(), memory_budget="1GiB")
    monkeypatch.setattr(connection, "joined", lambda: Rank(1, 2, "host:1"))
    with pytest.raises(StreamError, match=r"^2 processes are connected, and the store of .* alone"):
        step(graph, graph.array("x"))
