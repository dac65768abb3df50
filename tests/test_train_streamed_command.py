"""`gnnjit train --memory-budget --store`: what it prints and refuses, and kills at any moment."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_train_streamed import ROOMY, SMALL

from gnnjit import cli
from gnnjit.errors import StoreError
from gnnjit.prepare import prepare
from gnnjit.stored_dataset import StoredDataset


def options(folder: Path, *more: str) -> list[str]:
    given = "train communities --model gcn --layers 1 --epochs 8 --log-every 1".split()
    for name, value in SMALL.items():
        given += ["--option", f"{name}={value}"]
    return [*given, "--memory-budget", ROOMY, "--store", str(folder), *more]


@pytest.fixture
def command(capsys):
    """Runs a command; (exit code, standard error)."""

    def run(*arguments: str):
        return cli.main(arguments), capsys.readouterr().err

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


def test_the_table(prepared, capsys):
    assert cli.main(options(prepared, "--epochs", "2")) == 0
    out = capsys.readouterr().out
    for row in ("blocks of vertices", "moved in an epoch", "preparing the dataset",
                "memory budget of the process", "peak memory of the process (RSS)"):  # fmt: skip
        assert row in out
    assert "compile" not in out
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
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        code, err = command(*options(prepared))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (code, err.count("\n")) == (2, 1)
    assert "File too large" in err
    with StoredDataset.open(prepared) as stored:
        assert stored.num_nodes == 400


def test_the_preparing_process_ends_with_its_parent(tmp_path):
    request = {"name": "communities", "folder": str(tmp_path)}
    every = {**SMALL, "num_nodes": 300_000, "seed": 0}
    with subprocess.Popen(
        [sys.executable, "-m", "gnnjit.prepare", json.dumps({**request, "options": every})],
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


def start(arguments: list[str], stop: str | None = None) -> int:
    """Run the command in a process, which is killed once a line with `stop` is printed."""
    command = [sys.executable, "-m", "gnnjit.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if stop is not None and stop in line:
                child.send_signal(signal.SIGKILL)
                break
        child.wait()
    return child.returncode


def saved(path: Path) -> dict:
    run = json.loads(path.read_text())["runs"][0]
    for record in run["history"]:
        del record["seconds"]
    return run


@pytest.mark.once
def test_killed_again_and_again(tmp_path):
    """While it prepares, before the first update, and between epochs; in three blocks."""
    blocks = {"budget": 8 << 30, "layout": [3, 1]}
    ends = {}
    for name in ("whole", "killed"):
        run, target = tmp_path / name / "run", tmp_path / f"{name}.json"
        more = ["--checkpoint", str(run), "--checkpoint-every", "2", "--json", str(target)]
        given = options(tmp_path / name / "store", *more)
        if name == "killed":
            assert start(given, "preparing  graph") == -signal.SIGKILL
        run.mkdir(parents=True, exist_ok=True)
        (run / "identity.json").write_text("{}")
        (run / "streamed.json").write_text(json.dumps(blocks))
        given.append("--resume")
        if name == "killed":
            assert start(given, "StoredDataset") == -signal.SIGKILL
            assert start(given, "epoch 5/8") == -signal.SIGKILL
        assert start(given) == 0
        ends[name] = saved(target)
        performance = json.loads(target.read_text())["performance"]
        assert performance["parts"] == 3
        assert not list((tmp_path / name / "store").glob("temporary.*"))
    assert ends["killed"] == ends["whole"]
