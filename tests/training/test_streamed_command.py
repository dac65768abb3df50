"""`gnnjit train --memory-budget --store`: what it prints and refuses, and kills at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnnjit.cli import main
from gnnjit.data.stored.dataset import StoredDataset
from gnnjit.data.stored.prepare import prepare
from gnnjit.errors import StoreError
from gnnjit.store.disk import LOCK
from gnnjit.training.checkpoint import Checkpoints
from gnnjit.training.streamed import note_of
from training.crashes import Crashes
from training.test_streamed import ROOMY, SMALL

pytestmark = pytest.mark.usefixtures("little_to_collect")


def options(folder: Path, *more: str, store: bool = True) -> list[str]:
    given = f"train communities --model gcn --layers 1 --epochs 6 --memory-budget {ROOMY}".split()
    for name, value in SMALL.items():
        given += ["--option", f"{name}={value}"]
    return [*given, *(["--store", str(folder)] if store else []), *more]


@contextlib.contextmanager
def limited(size: int):
    """As on a disk that is full: no file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def command(capsys):
    """Runs a command; (exit code, standard error)."""

    def run(*arguments: str):
        return main.main(arguments), capsys.readouterr().err

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "store"
    prepare("communities", folder, options=SMALL).store.close()
    return folder


@pytest.fixture
def prepared(made, tmp_path) -> Path:
    """A folder with SMALL, closed, for a test of its own."""
    return shutil.copytree(made, tmp_path / "store")


@pytest.mark.long
@pytest.mark.once
def test_the_table(prepared, capsys):
    assert main.main(options(prepared, "--epochs", "2")) == 0
    out = capsys.readouterr().out
    for row in ("blocks of vertices", "moved in an epoch", "preparing the dataset",
                "memory budget of the process", "peak memory of the process (RSS)"):  # fmt: skip
        assert row in out
    assert "temporary buffers of the step" not in out
    assert "segment_sum" not in out


def test_a_truncated_file(prepared, command):
    (x,) = prepared.glob("x.*.npy")
    os.truncate(x, 1000)
    code, err = command(*options(prepared))
    assert (code, err.count("\n")) == (2, 1)
    assert "1,000 bytes, expected 9,728: the file was truncated or changed" in err


def test_another_dataset(prepared, command):
    code, err = command(*options(prepared, "--option", "num_nodes=500"))
    assert (code, err.count("\n")) == (2, 1)
    assert "holds communities with num_nodes=400, and communities with num_nodes=500" in err


def test_a_foreign_folder(tmp_path, command):
    (tmp_path / "dataset.json").write_text("[]")
    code, err = command(*options(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert "not the description of a stored dataset; choose another folder" in err


def test_what_is_refused_before_anything_is_made(tmp_path, command):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("")
    for arguments, message in (
        (("--checkpoint", str(tmp_path / "run")), "is not empty, and nothing is overwritten"),
        (("--checkpoint", str(tmp_path / "no"), "--resume"), "holds no checkpoint to resume"),
        (("--memory-budget", "much"), "much"),
        (("--compare",), "leave out either --compare or the memory budget"),
    ):
        code, err = command(*options(tmp_path / "store", *arguments))
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_full_disk(prepared, command, tmp_path):
    with limited(1 << 12):
        code, err = command(*options(prepared))
    assert (code, err.count("\n")) == (2, 1)
    assert "File too large" in err
    with StoredDataset.open(prepared) as stored:
        assert stored.num_nodes == 400


@pytest.mark.once
def test_the_preparing_process_ends_with_its_parent(tmp_path):
    request = {"name": "communities", "folder": str(tmp_path)}
    every = {**SMALL, "num_nodes": 300_000, "seed": 0}
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gnnjit.data.stored.prepare",
            json.dumps({**request, "options": every}),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    assert child.returncode == 1
    with pytest.raises(StoreError, match=r"no stored dataset|not complete"):
        StoredDataset.open(tmp_path)


def budgeted(run: Path, budget: int = 8 << 30, layout: tuple[int, int] = (3, 1)) -> Path:
    """A directory of checkpoints, to be resumed, that notes how the run was cut."""
    Checkpoints.claim(run, resume=False)
    Checkpoints(run, {}).remember(note_of(layout, budget))
    return run


def saved(path: Path) -> dict:
    run = json.loads(path.read_text())["runs"][0]
    for record in run["history"]:
        del record["seconds"]
    return run


def wait_for_end(folder: Path) -> None:
    """Wait until the process that has the store open ends: it ends with the one that started it."""
    holder = int((folder / LOCK).read_text())
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(holder, 0)
            time.sleep(0.01)


@pytest.fixture
def killed(tmp_path) -> Path:
    """A folder with the store, checkpoints and result of a run that was killed at each moment."""
    store, run, target = tmp_path / "store", tmp_path / "run", tmp_path / "result.json"
    given = options(store, "--quiet", "--checkpoint", str(run), "--checkpoint-every", "2")
    given += ["--json", str(target)]

    def checkpoints() -> list[str]:
        return sorted(path.name for path in run.glob("seed-0/*") if path.name.isdigit())

    with Crashes() as start:
        assert start(given, "preparing") == -signal.SIGKILL
        wait_for_end(store)
        given += ["--resume"]
        budgeted(run)
        assert start(given, "building the grid") == -signal.SIGKILL
        made = {path: path.stat().st_mtime_ns for path in store.glob("x.*.npy")}
        assert json.loads((store / "dataset.json").read_text())["complete"]
        assert start(given, "in an epoch", 7) == -signal.SIGKILL
        assert checkpoints() == ["2"]
        assert start(given, "writing a checkpoint") == -signal.SIGKILL
        assert checkpoints() == ["2"]
        assert not target.exists()
        assert start(given) == 0
    assert checkpoints() == ["4", "6"]
    assert {path: path.stat().st_mtime_ns for path in made} == made, "it was prepared again"
    assert not list(store.glob("temporary.*"))
    return tmp_path


@pytest.mark.long
@pytest.mark.once
def test_killed_at_each_moment(killed, command):
    """To the bits of a run in memory, in the same three blocks, that was never killed."""
    target = killed / "whole.json"
    whole = budgeted(killed / "whole")
    code, _ = command(*options(killed / "none", "--quiet", "--json", str(target), "--resume",
                               "--checkpoint", str(whole), store=False))  # fmt: skip
    assert code == 0
    assert saved(killed / "result.json") == saved(target)
    performance = json.loads((killed / "result.json").read_text())["performance"]
    assert (performance["parts"], performance["slices"]) == (3, 1)
    # A disk on which the temporary arrays have no room any more.
    more = options(killed / "store", "--quiet", "--resume", "--checkpoint", str(killed / "run"))
    with limited(8_000):
        code, err = command(*more, "--epochs", "8")
    assert (code, err.count("\n")) == (2, 1)
    assert "temporary." in err
    assert "File too large" in err
    assert {path.name for path in killed.glob("run/seed-0/*")} == {"4", "6"}
    assert command(*more, "--json", str(target))[0] == 0
    assert saved(target) == saved(killed / "result.json")
