"""`gnnjit train` in several processes: one result, one writer, and an end when one of them dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gnnjit.cli import main
from gnnjit.distributed.launch import supervise, virtual_devices
from gnnjit.training.processes import _packed, _unpacked
from training.test_sharded import SIZES, curve

ROOT = Path(__file__).parents[2]
EPOCHS = 6
DIES = """
import os, signal, sys
if os.environ.get("GNNJIT_PROCESS") == "1" and os.environ.get("TEST_DIES"):
    from gnnjit.training import loop
    evaluate, left = loop.evaluate, [int(os.environ["TEST_DIES"])]
    def dying(*arguments):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return evaluate(*arguments)
    loop.evaluate = dying
"""
"""A `sitecustomize` with which process 1 dies in the middle of an epoch, after its update."""


COUNTS = """
import atexit, os, sys
if os.environ.get("GNNJIT_PROCESS"):
    from gnnjit.store.store import VertexStore
    from gnnjit.training import sharded_stored
    read, plan, rows = VertexStore.read, sharded_stored.streamed_plan, []
    def counted(self, name, start, stop, out=None):
        rows.append(stop - start if name == "x" else 0)
        return read(self, name, start, stop, out)
    def told(*arguments, **more):
        found = plan(*arguments, **more)
        edges = sum(len(found.edges(p)) for p in arguments[2])
        atexit.register(lambda: print("x", sum(rows), "edges", edges, file=sys.stderr))
        return found
    VertexStore.read, sharded_stored.streamed_plan = counted, told
"""
"""One with which a process says how many rows of features it has read, and edges it has kept."""


def options(*more: str) -> list[str]:
    given = ["train", "communities", "--model", "gcn", "--epochs", str(EPOCHS), "--no-compare"]
    for name, value in SIZES.items():
        given += ["--option", f"{name}={value}"]
    return [*given, *more]


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def launch(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Two processes of one device each."""
    command = [sys.executable, "-m", "gnnjit.cli", "launch", "-n", "2"]
    return subprocess.run(
        [*command, "--devices-per-process", "1", "--", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=240,
    )


def bits(result: dict[str, Any]) -> list[Any]:
    runs = result["runs"]
    return [[{**e, "seconds": 0} for e in r["history"]] + [r["weights_sha256"]] for r in runs]


def checkpoints(path: Path) -> list[str]:
    return sorted(p.name for p in path.glob("seed-0/*") if p.name.isdigit())


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """What was never interrupted, from the standard output."""
    found = launch(*options("--json", "-"))
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("accuracy, %") == 1
    assert found.stderr.count(f"epoch {EPOCHS}/{EPOCHS}") == 1
    return json.loads(found.stdout)


def customised(folder: Path, code: str) -> dict[str, str]:
    """Variables with which each process runs this first."""
    (folder / "sitecustomize.py").write_text(code)
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """A directory with the checkpoints of a job, one process of which died in epoch 4."""
    folder = tmp_path_factory.mktemp("killed")
    more = ["--checkpoint", str(folder / "run"), "--checkpoint-every", "2"]
    found = launch(*options(*more), TEST_DIES="4", **customised(folder, DIES))
    assert found.returncode == 128 + signal.SIGKILL
    last = found.stderr.strip().splitlines()[-1]
    assert "process 1 of 2 was killed by signal 9 (SIGKILL)" in last
    assert "--resume" in last
    assert checkpoints(folder / "run") == ["2"]
    return folder / "run"


@pytest.mark.once
def test_the_numbers_of_one_process(whole, tmp_path):
    assert (whole["sharding"]["devices"], whole["sharding"]["processes"]) == (2, 2)
    assert sum(whole["sharding"]["rows_per_shard"]) == SIZES["num_nodes"]
    target = tmp_path / "one.json"
    assert main.main(options("--json", str(target), "--quiet")) == 0
    assert curve(whole) == pytest.approx(curve(json.loads(target.read_text())), rel=1e-4)


@pytest.mark.long
@pytest.mark.once
def test_resumed_on_as_many(whole, killed, tmp_path):
    run, target = shutil.copytree(killed, tmp_path / "run"), tmp_path / "result.json"
    more = ["--checkpoint", str(run), "--resume", "--json", str(target)]
    found = launch(*options(*more))
    assert found.returncode == 0, found.stderr
    assert "resumed after epoch 2" in found.stdout
    assert bits(json.loads(target.read_text())) == bits(whole)
    assert checkpoints(run) == ["2", str(EPOCHS)]


@pytest.mark.once
def test_resumed_on_one_device(whole, killed, tmp_path):
    run, target = shutil.copytree(killed, tmp_path / "run"), tmp_path / "result.json"
    more = ["--checkpoint", str(run), "--resume", "--json", str(target), "--quiet"]
    assert main.main(options(*more)) == 0
    result = json.loads(target.read_text())
    assert curve(result) == pytest.approx(curve(whole), rel=1e-4)
    assert curve(result)[:2] == curve(whole)[:2]


@pytest.mark.long
@pytest.mark.once
def test_each_process_reads_its_part(whole, tmp_path):
    target = tmp_path / "result.json"
    more = ["--store", str(tmp_path / "store"), "--json", str(target)]
    found = launch(*options(*more), **customised(tmp_path, COUNTS))
    assert found.returncode == 0, found.stderr
    result = json.loads(target.read_text())
    assert curve(result) == pytest.approx(curve(whole), rel=1e-4)
    assert result["performance"]["prepared_seconds"] > 0
    told = re.findall(r"^(?:\[1\] )?x (\d+) edges (\d+)$", found.stderr, flags=re.MULTILINE)
    sharding = result["sharding"]
    parts = zip(sharding["rows_per_shard"], sharding["edges_per_shard"], strict=True)
    assert sorted((int(x), int(e)) for x, e in told) == sorted(parts)
    assert min(sharding["rows_per_shard"]) > 0


@pytest.mark.long
@pytest.mark.once
def test_within_a_budget_through_a_death(whole, tmp_path):
    """Each process streams its blocks of one store, which a death leaves fit for going on."""
    target = tmp_path / "result.json"
    run = ["--checkpoint", str(tmp_path / "run"), "--checkpoint-every", "2"]
    more = [*run, "--memory-budget", "1GiB", "--store", str(tmp_path / "store")]
    found = launch(*options(*more), TEST_DIES="4", **customised(tmp_path, DIES))
    assert found.returncode == 128 + signal.SIGKILL, found.stderr
    assert checkpoints(tmp_path / "run") == ["2"]
    found = launch(*options(*more, "--resume", "--json", str(target)))
    assert found.returncode == 0, found.stderr
    result = json.loads(target.read_text())
    assert curve(result) == pytest.approx(curve(whole), rel=1e-4)
    assert result["performance"]["processes"] == 2
    assert result["performance"]["parts"] >= 2


@pytest.mark.parametrize(
    ("mine", "theirs", "message"),
    [
        ("--lr=0.1", "--lr=0.2", "lr is not the same in all processes (process 0: 0.1; process 1"),
        pytest.param(
            *("--devices=3", "--devices=3", "devices is 3, and the 2 processes have 2 CPU devices"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *(
                "--memory-budget=1GiB",
                "--memory-budget=1GiB",
                "from a folder: pass one (--store DIR",
            ),
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_is_refused_by_all(mine, theirs, message, capfd):
    python = [sys.executable, "-m", "gnnjit.cli"]
    commands = [[*python, *options(option)] for option in (mine, theirs)]
    outcome = supervise(commands, [environment(**virtual_devices(1))] * 2)
    err = capfd.readouterr().err
    assert outcome.exit_code == 2
    assert message in err
    assert err.count("gnnjit: error:") == 1, "process 0 says it for all"


def test_checkpoints_travel_between_processes():
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.asarray(1.5, ml_dtypes.bfloat16),
        "c": np.zeros((0, 4), np.uint32),
    }
    found, record = _unpacked(_packed(arrays, {"epoch": 3}), arrays)
    assert record == {"epoch": 3}
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
