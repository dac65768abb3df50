"""Which process of how many this is, as the environment tells it."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from gnnjit.distributed.control_plane import DistributedError

COORDINATOR, PROCESS, PROCESSES = "GNNJIT_COORDINATOR", "GNNJIT_PROCESS", "GNNJIT_PROCESSES"
_FIRST_PORT, _PORTS = 61440, 4096
"""Where a number that all processes of a job know picks the port, as JAX does."""


@dataclass(frozen=True)
class Rank:
    """Where a process is in its job.

    Attributes:
        process: its number, from 0.
        processes: how many there are.
        coordinator: `host:port` where process 0 is met; None in a job of one process.
    """

    process: int
    processes: int
    coordinator: str | None

    def __str__(self) -> str:
        return f"process {self.process} of {self.processes}"


ALONE = Rank(0, 1, None)


def rank_from_environment(environ: Mapping[str, str] = os.environ) -> Rank | None:
    """The rank of this process; None where it is the only one.

    Read, in this order: `GNNJIT_PROCESSES`, `GNNJIT_PROCESS` and `GNNJIT_COORDINATOR`, which
    `gnnjit launch` sets, and which may be set by hand; a step of Slurm (`srun`); Open MPI
    (`mpirun`). An indexed Job of Kubernetes tells a process its number alone: set
    `GNNJIT_PROCESSES` and `GNNJIT_COORDINATOR` in its template, and the number is taken from
    `JOB_COMPLETION_INDEX`. `GNNJIT_COORDINATOR` alone replaces the address that Slurm and Open MPI
    are asked for, and `GNNJIT_PROCESSES=1` keeps processes apart that these started together.

    Raises:
        DistributedError: if a variable is malformed, or one that is needed is missing.
    """
    for read in (_named, _slurm, _open_mpi):
        rank = read(environ)
        if rank is not None:
            return _checked(rank) if rank.processes > 1 else None
    return None


def job_name(environ: Mapping[str, str] = os.environ) -> str:
    """What tells this job from others on the same hosts, as far as that is known."""
    names = ("GNNJIT_JOB", "SLURM_JOB_ID", "OMPI_MCA_orte_hnp_uri", "PMIX_NAMESPACE")
    return next((environ[name] for name in names if environ.get(name)), "")


def _named(environ: Mapping[str, str]) -> Rank | None:
    if PROCESSES not in environ:
        if PROCESS in environ:
            raise DistributedError(
                f"{PROCESS} is {environ[PROCESS]!r}, but {PROCESSES} is not set: set both, or none"
            )
        return None
    processes = _number(environ, PROCESSES, least=1)
    if processes == 1:
        return ALONE
    index = PROCESS if PROCESS in environ else "JOB_COMPLETION_INDEX"
    if index not in environ:
        raise DistributedError(
            f"{PROCESSES} is {processes}, but {PROCESS} is not set: set it to this process's "
            f"number, 0 to {processes - 1}"
        )
    if COORDINATOR not in environ:
        raise DistributedError(
            f"{PROCESSES} is {processes}, but {COORDINATOR} is not set: set it to HOST:PORT, where "
            "HOST is that of process 0 and PORT is free there"
        )
    process = _number(environ, index, least=0, most=processes - 1)
    return Rank(process, processes, environ[COORDINATOR])


def _slurm(environ: Mapping[str, str]) -> Rank | None:
    # A batch script is no step: it has SLURM_PROCID, but nothing was started beside it.
    needed = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID")
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    if any(name not in environ for name in (*needed, count)):
        return None
    processes = _number(environ, count, least=1)
    process = _number(environ, "SLURM_PROCID", least=0, most=processes - 1)
    coordinator = environ.get(COORDINATOR)
    if coordinator is None:
        step = _number(environ, "SLURM_STEP_ID", least=0) if "SLURM_STEP_ID" in environ else 0
        port = _FIRST_PORT + (_number(environ, "SLURM_JOB_ID", least=0) + step) % _PORTS
        coordinator = f"{_first_host(environ['SLURM_STEP_NODELIST'])}:{port}"
    return Rank(process, processes, coordinator)


def _first_host(hosts: str) -> str:
    """`node[003-007,9]-ib,other` -> `node003-ib`."""
    first = re.match(r"((?:[^\s,\[\]]|\[[^\]]+\])+)(?:,|$)", hosts.strip())
    if first is None:
        raise DistributedError(
            f"SLURM_STEP_NODELIST is {hosts!r}, expected hosts such as node[001-004]: set "
            f"{COORDINATOR} to HOST:PORT of process 0"
        )
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[1])


def _open_mpi(environ: Mapping[str, str]) -> Rank | None:
    rank, size = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
    if rank not in environ or size not in environ:
        return None
    processes = _number(environ, size, least=1)
    process = _number(environ, rank, least=0, most=processes - 1)
    if processes == 1:
        return ALONE
    return Rank(process, processes, environ.get(COORDINATOR) or _mpi_address(environ, processes))


def _mpi_address(environ: Mapping[str, str], processes: int) -> str:
    port = _FIRST_PORT + zlib.crc32(job_name(environ).encode()) % _PORTS
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(processes):
        return f"127.0.0.1:{port}"
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.search(r"tcp://([^,:]+)[,:]|tcp6://\[([^,\]]+)[,\]]", uri)
    if found is None:
        raise DistributedError(
            f"Open MPI runs {processes} processes on several hosts and does not tell where process "
            f"0 is: set {COORDINATOR} to HOST:PORT, as in mpirun -x {COORDINATOR}=node1:7000"
        )
    return f"{found[1] or '[' + found[2] + ']'}:{port}"


def _number(environ: Mapping[str, str], name: str, *, least: int, most: int | None = None) -> int:
    text = environ[name]
    value = int(text) if re.fullmatch(r"[0-9]+", text) else -1
    if value < least or (most is not None and value > most):
        wanted = f"at least {least}" if most is None else f"from {least} to {most}"
        raise DistributedError(f"{name} is {text!r}, expected a whole number {wanted}")
    return value


def _checked(rank: Rank) -> Rank:
    split_address(rank.coordinator or "")
    return rank


def split_address(text: str) -> tuple[str, int]:
    """Host and port.

    Raises:
        DistributedError: if it is no `host:port`.
    """
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):([0-9]{1,5})", text)
    if found is None or not 0 < int(found[2]) < 65536:
        raise DistributedError(
            f"{COORDINATOR} is {text!r}, expected HOST:PORT of process 0, as in node1:7000"
        )
    return found[1].strip("[]"), int(found[2])
