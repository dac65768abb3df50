"""Many processes for one job: what they tell each other, and how they end."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnnjit.distributed import connection
from gnnjit.distributed.connection import LOST_PEER, DistributedError, Rank
from gnnjit.distributed.control_plane import Connection, ControlPlane
from gnnjit.distributed.launch import supervise


def test_alone_all_of_it_does_nothing(monkeypatch):
    for name in os.environ:
        if name.startswith(("GNNJIT_", "SLURM_", "OMPI_")):
            monkeypatch.delenv(name)
    assert connection.connect() == Rank(0, 1, None)
    assert connection.is_main()
    connection.barrier("b")
    connection.everywhere("value", "what")
    connection.leave(1)
    assert connection.joined() == Rank(0, 1, None)
    assert connection.broadcast_bytes(b"data") == b"data"
    assert connection.gather_bytes("g", b"data") == [b"data"]
    with pytest.raises(DistributedError, match="got None from process 0, expected bytes"):
        connection.broadcast_bytes(None)


@pytest.fixture
def port():
    """A port that nobody listens at, and nobody else is given."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@pytest.fixture
def as_process_1(monkeypatch, port):
    """This process counts as number 1 of 2 that has used no devices."""
    monkeypatch.setattr(connection, "devices_in_use", lambda: False)
    monkeypatch.setenv("GNNJIT_PROCESSES", "2")
    monkeypatch.setenv("GNNJIT_PROCESS", "1")
    monkeypatch.setenv("GNNJIT_COORDINATOR", f"127.0.0.1:{port}")


def test_coordinator_that_is_not_there(as_process_1, port):
    expected = (
        rf"^process 1 of 2: no answer from process 0 at 127\.0\.0\.1:{port} within 1 s \(.*refused"
        r"\): check that process 0 was started, that this is its address, and that its host can be "
        "reached from here$"
    )
    with pytest.raises(DistributedError, match=expected):
        connection.connect(timeout=1)


def test_timeouts_are_checked(as_process_1):
    with pytest.raises(DistributedError, match="timeout is 0 and heartbeat 10, expected at least"):
        connection.connect(timeout=0)


def test_devices_used_before(as_process_1, monkeypatch):
    monkeypatch.setattr(connection, "devices_in_use", lambda: True)
    expected = "process 1 of 2: JAX has used its devices before connect()"
    with pytest.raises(DistributedError, match=re.escape(expected)):
        connection.connect()


def test_port_that_is_taken(as_process_1, monkeypatch, port):
    monkeypatch.setenv("GNNJIT_PROCESS", "0")
    expected = rf"^process 0 of 2 cannot listen at 127\.0\.0\.1:{port} \(Address already in use\)"
    with pytest.raises(DistributedError, match=expected):
        connection.connect()


class Job:
    """Processes as threads of this process."""

    def __init__(self, processes: int) -> None:
        self.lost: list[tuple[int, int, str]] = []
        self.all = [
            ControlPlane(k, processes, lambda process, why, k=k: self.hear(k, process, why))
            for k in range(processes)
        ]
        self.heard = threading.Semaphore(0)
        self.pool = ThreadPoolExecutor(processes)
        self.listener = socket.create_server(("127.0.0.1", 0))

    def hear(self, who: int, process: int, why: str) -> None:
        self.lost.append((who, process, why))
        self.heard.release()

    def meet(self, peers: ControlPlane, number: int, job: str = "job", timeout: float = 30) -> None:
        if number == 0:
            peers.listen(self.listener, job, timeout)
        else:
            peers.dial(self.listener.getsockname(), job, timeout)

    def each(self, call):
        """`call(peers, number)` in all of them at once; the results or errors."""
        futures = [self.pool.submit(call, peers, k) for k, peers in enumerate(self.all)]
        return [future.exception(30) or future.result() for future in futures]

    def close(self) -> None:
        for peers in self.all:
            peers.leave()
            for line in peers._lines.values():
                line.close()
        self.listener.close()
        self.pool.shutdown()


@pytest.fixture
def job():
    made = Job(3)
    yield made
    made.close()


class TestPeers:
    def test_gather_and_barrier(self, job):
        assert job.each(job.meet) == [None] * 3
        found = job.each(lambda peers, k: peers.gather("name", b"%d" % k, timeout=30))
        assert found == [{0: b"0", 1: b"1", 2: b"2"}] * 3
        found = job.each(lambda peers, k: peers.gather("big", bytes(3_000_000), timeout=30, of=[1]))
        assert [len(values[1]) for values in found] == [3_000_000] * 3

    def test_missing_at_a_barrier(self, job):
        job.each(job.meet)
        wait = lambda peers, k: k != 2 and peers.gather("epoch", b"", timeout=0.2)  # noqa: E731
        first, second, _ = job.each(wait)
        assert str(first) == (
            "process 0 of 3 waited 0.2 s at 'epoch' for process 2: see what they are doing, or "
            "allow more time"
        )
        assert str(second).startswith("process 1 of 3 waited 0.2 s at 'epoch' for process 2")

    def test_elsewhere_in_the_program(self, job):
        job.each(job.meet)
        found = job.each(lambda peers, k: peers.gather(f"at {k // 2}", b"", timeout=30))
        assert str(found[2]) == (
            "process 2 of 3 is at 'at 1', process 0 at 'at 0': all processes must run the same "
            "program"
        )

    def test_missing_from_the_start(self, job):
        meet = lambda peers, k: k != 1 and job.meet(peers, k, timeout=2)  # noqa: E731
        first, _, third = job.each(meet)
        port = job.listener.getsockname()[1]
        assert str(first) == (
            f"process 0 of 3 waited 2 s for process 1 at 127.0.0.1:{port}: check that all 3 "
            "processes were started, and that their hosts reach this one"
        )
        assert str(third) == str(first)

    def test_different_numbers_of_processes(self, job):
        job.all[2] = ControlPlane(2, 4, lambda *_: None)
        # Process 1 waits in vain if it comes when the others have given up.
        found = job.each(lambda peers, k: job.meet(peers, k, timeout=15))
        expected = "process 2 was told of 4 processes, process 0 of 3: start all with the same"
        assert all(str(error).startswith(expected) for error in (found[0], found[2]))

    def test_same_number_twice(self, job):
        job.all[2] = ControlPlane(1, 3, lambda *_: None)
        found = job.each(job.meet)
        expected = "two processes were told that they are process 1 of 3: number them from 0 to 2"
        assert [str(error) for error in found] == [expected] * 3

    def test_strangers_are_turned_away(self, job):
        address = job.listener.getsockname()
        with socket.create_connection(address) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            other = Connection(socket.create_connection(address))
            other.send({"process": 1, "processes": 3, "job": "another"})
            assert job.each(job.meet) == [None] * 3
            assert other.receive(30) is None
            other.close()

    @pytest.mark.parametrize("victim", [0, 2])
    def test_closed_connection_is_named_everywhere(self, job, victim):
        job.each(job.meet)
        for line in job.all[victim]._lines.values():
            line._connection.shutdown(socket.SHUT_WR)
        for _ in range(2):
            assert job.heard.acquire(timeout=30)
        told = {(who, of, why) for who, of, why in job.lost if who != victim}
        survivors = {0, 1, 2} - {victim}
        assert told == {(k, victim, "has died (it closed its connection)") for k in survivors}

    @pytest.mark.parametrize("victim", [0, 2])
    def test_failure_comes_with_its_cause(self, job, victim):
        job.each(job.meet)
        job.all[victim].fail("failed (ValueError: mine)")
        for _ in range(2):
            assert job.heard.acquire(timeout=30)
        survivors = {0, 1, 2} - {victim}
        assert set(job.lost) == {(k, victim, "failed (ValueError: mine)") for k in survivors}

    @pytest.mark.parametrize("gone", [0, 2])
    def test_those_that_ended_are_not_waited_for(self, job, gone):
        job.each(job.meet)
        job.all[gone].leave()
        found = job.each(lambda peers, k: k == gone or peers.gather("end", b"", timeout=30))
        assert {str(error) for k, error in enumerate(found) if k != gone} == {
            f"process {k} of 3 is at 'end', process {gone} ended before: all processes must run "
            "the same program"
            for k in {0, 1, 2} - {gone}
        }

    def test_those_that_leave_are_not_missed(self, job):
        job.each(job.meet)
        job.close()
        assert job.lost == []


SCRIPT = """
import os, sys, time
from gnnjit import distributed
rank = distributed.connect()
import jax, numpy as np
from jax.sharding import PartitionSpec as P
distributed.everywhere("same", "the configuration")
assert distributed.broadcast_bytes(b"d" if distributed.is_main() else None) == b"d"
distributed.barrier("made")
assert distributed.connect() is rank
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
x = jax.make_array_from_callback((len(jax.devices()),), jax.NamedSharding(mesh, P("x")),
                                 lambda at: np.ones(1, np.float32))
total = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"),
                              out_specs=P()))
print("sum", float(total(x)[0]), flush=True)
if sys.argv[1:] == ["differ"]:
    distributed.everywhere(f"lr={rank.process}", "the configuration")
while sys.argv[1:]:
    total(x).block_until_ready()
    if sys.argv[1] == "kill" and rank.process == 1: os.kill(os.getpid(), 9)
    if sys.argv[1] == "raise" and rank.process == 1: raise ValueError("mine")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    return [sys.executable, str(path)]


def test_processes_add_up(script, capfd):
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    assert supervise([script] * 2, [two] * 2).exit_code == 0
    out, err = capfd.readouterr()
    assert "sum 4.0\n" in out  # beside what Gloo says
    assert err == ""


@pytest.mark.long
def test_values_that_differ_are_named(script, capfd):
    outcome = supervise([[*script, "differ"]] * 2)
    assert outcome.exit_code == 1
    expected = (
        "DistributedError: the configuration is not the same in all processes (process 0: lr=0; "
        "process 1: lr=1): start all with the same command in the same environment"
    )
    assert expected in capfd.readouterr().err


def test_death_under_the_launcher(script, capfd):
    outcome = supervise([[*script, "kill"]] * 2)
    assert str(outcome) == "process 1 of 2 was killed by signal 9 (SIGKILL); the other was stopped"
    assert "sum 2.0\n" in capfd.readouterr().out


# A failing process's own way out, JAX's, would wait for process 0, which waits in a sum.
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("kill", -9, "has died (it closed its connection)"),
        ("raise", 1, "failed (ValueError: mine)"),
    ],
)
def test_without_the_launcher(script, free_port, how, code, said):
    common = {**os.environ, "GNNJIT_PROCESSES": "2", "GNNJIT_COORDINATOR": f"127.0.0.1:{free_port}"}
    first, second = (
        subprocess.Popen(
            [*script, how],
            env={**common, "GNNJIT_PROCESS": str(k)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    )
    _, told = first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (LOST_PEER, code)
    assert (
        f"gnnjit: error: process 1 of 2 {said}; this is process 0, which stops too. See the "
        "messages of process 1 for the cause\n"
    ) in told


@pytest.fixture
def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]
