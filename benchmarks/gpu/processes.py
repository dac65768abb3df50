"""The processes and files of a GPU benchmark, and its deadline."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import pathlib
import time
from typing import Any

from common import measure, workloads
from layers import MODULES

from gpu import plan
from gpu.plan import PEERS, Group

REFERENCE = "reference"

VARIABLES = {  # JAX and PyTorch share the device
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin take the others' turns
}
ON_CPU = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

NO_TIME = "no time left"

LIMIT = 60.0
"""Seconds that an answer may take; a compiler that needs longer loses its turn."""

STRIKES = 2
"""Times that a peer may be too slow before it is left out of all that follows."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is run, how often, and until when."""

    groups: tuple[Group, ...]
    peers: tuple[str, ...]
    sizes: dict[str, workloads.Sizes]
    matmul: str
    rounds: int
    batch_seconds: float
    lanes: int
    smoke: bool
    started: float
    seconds: float

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.started + self.seconds - time.monotonic()


class PeerProcesses:
    """One process for each peer, and one for the reference; replaced after an error."""

    def __init__(self, plan: Plan):
        self._plan, self._workers = plan, dict[str, measure.Worker]()
        self.slow: collections.Counter[str] = collections.Counter()

    def ask(self, name: str, command: str, *args: Any) -> Any:
        """The answer of a peer's process. Raises WorkerError, also when the time is up."""
        limit = min(LIMIT, self._plan.left() - 2)
        if limit <= 0:
            raise measure.WorkerError(NO_TIME)
        return self.ask_within(limit, name, command, *args)

    def ask_within(self, limit: float, name: str, command: str, *args: Any) -> Any:
        """`ask`, whatever the deadline."""
        if name not in self._workers:
            module = "layers.reference" if name == REFERENCE else MODULES[PEERS[name][0]]
            variables = ON_CPU if name == REFERENCE else VARIABLES
            self._workers[name] = measure.Worker(module, measure.usable_cpus(), variables)
        try:
            self._workers[name].send(command, *args)
            return self._workers[name].receive(limit)
        except measure.WorkerError as error:
            self.slow[name] += str(error).startswith("no answer within") and limit == LIMIT
            self.drop(name)  # an illegal address leaves a process useless
            raise

    def drop(self, *names: str) -> None:
        """End these processes, so that their memory is free."""
        for name in names:
            if name in self._workers:
                self._workers.pop(name).close()

    def close(self) -> None:
        self.drop(*tuple(self._workers))


class Workloads:
    """Files of the workloads, made in the background in the order in which they are needed; those
    that are in the folder already are taken."""

    def __init__(self, plan: Plan, folder: pathlib.Path):
        self._plan, self._folder = plan, folder
        self._pool = concurrent.futures.ThreadPoolExecutor(2)
        needed = dict.fromkeys(["check", *(g.size for g in plan.groups)])
        self._files = {name: self._pool.submit(self._make, name) for name in needed}

    def _make(self, name: str) -> pathlib.Path:
        path, part = self._folder / f"{name}.npz", self._folder / f"{name}.part.npz"
        if not path.exists():
            sizes = self._plan.sizes[name]
            focus = plan.FOCUS_EDGES if sizes.depth == 1 else None
            workloads.make(sizes, focus).save(part)
            part.rename(path)
        return path

    def __getitem__(self, name: str) -> pathlib.Path:
        return self._files[name].result(max(self._plan.left(), 0))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def warm(processes: PeerProcesses, plan: Plan) -> None:
    """Start the peers that the check does not need; what goes wrong shows when they are used."""
    others = [p for p in plan.peers if PEERS[p][0] != "gnnjit"]
    with concurrent.futures.ThreadPoolExecutor(len(others) + 1) as pool:
        for peer in others:
            pool.submit(processes.ask, peer, "warm")
