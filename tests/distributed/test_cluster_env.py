"""Which process of how many: what the environment of launchers and clusters says."""

from __future__ import annotations

import re
import zlib

import pytest

from gnnjit.distributed.connection import DistributedError, Rank, rank_from_environment

SLURM = {
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_NODELIST": "node[003-007,9],other",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
}
OURS = {
    "GNNJIT_PROCESSES": "4",
    "GNNJIT_PROCESS": "1",
    "GNNJIT_COORDINATOR": "node1:7000",
}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
ORTE = "153157632.0;tcp://10.96.0.1,10.1.0.1:34911"


def port_of(job: str) -> int:
    return 61440 + zlib.crc32(job.encode()) % 4096


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (OURS, Rank(1, 4, "node1:7000")),
        ({**OURS, "GNNJIT_COORDINATOR": "[fe80::1]:80"}, Rank(1, 4, "[fe80::1]:80")),
        (SLURM, Rank(2, 4, "node003:61441")),
        ({**SLURM, "SLURM_STEP_ID": "2"}, Rank(2, 4, "node003:61443")),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "3"}, Rank(2, 3, "node003:61441")),
        ({**SLURM, "GNNJIT_COORDINATOR": "b:1"}, Rank(2, 4, "b:1")),
        ({**SLURM, **OURS}, Rank(1, 4, "node1:7000")),
        (
            {**without(OURS, "GNNJIT_PROCESS"), "JOB_COMPLETION_INDEX": "3"},
            Rank(3, 4, "node1:7000"),
        ),
        ({**MPI, "GNNJIT_COORDINATOR": "b:1"}, Rank(1, 2, "b:1")),
        (
            {**MPI, "OMPI_MCA_orte_hnp_uri": ORTE},
            Rank(1, 2, f"10.96.0.1:{port_of(ORTE)}"),
        ),
        (
            {**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job7@1"},
            Rank(1, 2, f"127.0.0.1:{port_of('job7@1')}"),
        ),
    ],
)
def test_found(environ, expected):
    assert rank_from_environment(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"GNNJIT_PROCESSES": "1"},
        {**SLURM, "GNNJIT_PROCESSES": "1"},
        {**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        without(SLURM, "SLURM_STEP_NODELIST"),  # a batch script
        {**MPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"JOB_COMPLETION_INDEX": "3"},
    ],
)
def test_alone(environ):
    assert rank_from_environment(environ) is None


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[4,7-9]", "n4"),
        ("n[1-2]-ib,m", "n1-ib"),
        ("rack[0-3]n[12-15]", "rack0n12"),
    ],
)
def test_first_host_of_slurm(hosts, first):
    found = rank_from_environment({**SLURM, "SLURM_STEP_NODELIST": hosts})
    assert found is not None
    assert found.coordinator == f"{first}:61441"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {**OURS, "GNNJIT_PROCESSES": "four"},
            "GNNJIT_PROCESSES is 'four', expected a whole number at least 1",
        ),
        (
            {**OURS, "GNNJIT_PROCESSES": "0"},
            "GNNJIT_PROCESSES is '0', expected a whole number at least 1",
        ),
        (
            {**OURS, "GNNJIT_PROCESS": "4"},
            "GNNJIT_PROCESS is '4', expected a whole number from 0 to 3",
        ),
        (
            {**OURS, "GNNJIT_PROCESS": "-1"},
            "GNNJIT_PROCESS is '-1', expected a whole number from 0 to 3",
        ),
        (
            {**OURS, "GNNJIT_COORDINATOR": "node1"},
            "GNNJIT_COORDINATOR is 'node1', expected HOST:PORT of process 0, as in node1:7000",
        ),
        (
            {**OURS, "GNNJIT_COORDINATOR": "node1:70000"},
            "GNNJIT_COORDINATOR is 'node1:70000', expected HOST:PORT of process 0, as in "
            "node1:7000",
        ),
        (
            without(OURS, "GNNJIT_PROCESSES"),
            "GNNJIT_PROCESS is '1', but GNNJIT_PROCESSES is not set: set both, or none",
        ),
        (
            without(OURS, "GNNJIT_PROCESS"),
            "GNNJIT_PROCESSES is 4, but GNNJIT_PROCESS is not set: set it to this process's "
            "number, 0 to 3",
        ),
        (
            without(OURS, "GNNJIT_COORDINATOR"),
            "GNNJIT_PROCESSES is 4, but GNNJIT_COORDINATOR is not set: set it to HOST:PORT, "
            "where HOST is that of process 0 and PORT is free there",
        ),
        (
            {**SLURM, "SLURM_PROCID": "x"},
            "SLURM_PROCID is 'x', expected a whole number from 0 to 3",
        ),
        (
            {**SLURM, "SLURM_STEP_NODELIST": "n[1-2"},
            "SLURM_STEP_NODELIST is 'n[1-2', expected hosts such as node[001-004]: set "
            "GNNJIT_COORDINATOR to HOST:PORT of process 0",
        ),
        (
            MPI,
            "Open MPI runs 2 processes on several hosts and does not tell where process 0 is: "
            "set GNNJIT_COORDINATOR to HOST:PORT, as in mpirun -x "
            "GNNJIT_COORDINATOR=node1:7000",
        ),
    ],
)
def test_mistakes(environ, message):
    with pytest.raises(DistributedError, match=f"^{re.escape(message)}$"):
        rank_from_environment(environ)
