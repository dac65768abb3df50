"""Checkpoints: a killed run continues to the numbers of one that was not; damage is named."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import random
import re
import shutil
import signal
import subprocess
import sys
import types

import jax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from gnnjit.cli import main
from gnnjit.data import communities
from gnnjit.training import CheckpointError, TrainConfig, train
from gnnjit.training.checkpoint import Checkpoints, quiet
from gnnjit.training.loop import Watcher
from training.test_train import Tiny, without_times

EPOCHS = 14
CONFIG = TrainConfig(model="gcn", epochs=12, lr=0.05)


class Stop(Exception):
    """Ends a run from within."""


class StopAfter(Watcher):
    def __init__(self, epoch: int) -> None:
        self.last = epoch

    def epoch(self, record) -> None:
        if record.epoch == self.last:
            raise Stop


@pytest.fixture(scope="module")
def dataset():
    return communities(num_nodes=200, num_classes=3, num_features=8)


@pytest.fixture(scope="module")
def go(dataset):
    def run(config=CONFIG, **arguments):
        return train(dataset, config, build=lambda r: Tiny(8, 3, r), **arguments)

    return run


@pytest.fixture(scope="module")
def plain(go):
    return without_times(go())


@pytest.fixture(scope="module")
def once_stopped(go, tmp_path_factory):
    """A directory with the checkpoints of epochs 6 and 4, of a run that ended in epoch 7."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stop):
        go(checkpoint=path, checkpoint_every=2, watcher=StopAfter(7))
    assert sorted(p.name for p in (path / "seed-0").iterdir()) == ["4", "6"]
    return path


@pytest.fixture
def stopped(once_stopped, tmp_path):
    """Such a directory, for a test of its own."""
    return shutil.copytree(once_stopped, tmp_path / "run")


def command(path, every: int) -> list[str]:
    options = (
        f"--model gcn --epochs {EPOCHS} --patience 30 --seed 1 --log-every 1 --no-compare "
        f"--option num_nodes=200 --option num_features=8 --checkpoint-every {every}"
    )
    return [
        *(sys.executable, "-m", "gnnjit.cli", "train", "communities", *options.split()),
        *("--checkpoint", str(path), "--json", str(path.with_suffix(".json"))),
    ]


def run_from_json(path) -> dict:
    run = json.loads(path.with_suffix(".json").read_text())["runs"][0]
    for record in run["history"]:
        del record["seconds"]
    return run


@pytest.mark.once
def test_killed_run_continues_to_the_same_numbers(tmp_path):
    """At a random moment, of a run that writes a checkpoint of every epoch, once it has one: they
    are written beside the epochs that follow."""
    every = 1
    path, kill_after = tmp_path / "run", random.randint(1, EPOCHS - 5)
    with subprocess.Popen(command(path, every), stdout=subprocess.PIPE, text=True) as child:
        seen = 0
        for line in child.stdout:
            seen += "epoch" in line
            if seen >= kill_after and any(p.name.isdigit() for p in path.glob("seed-*/*")):
                child.send_signal(signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL, f"ended before epoch {kill_after}"
    assert not path.with_suffix(".json").exists()
    resumed = subprocess.run(
        [*command(path, every), "--resume"], capture_output=True, text=True, timeout=300
    )
    assert resumed.returncode == 0, f"killed after epoch {kill_after}: {resumed.stderr}"
    whole = tmp_path / "whole"
    assert main.main(command(whole, 10)[3:]) == 0
    assert run_from_json(path) == run_from_json(whole), f"killed after epoch {kill_after}"


def test_resume_in_process(go, plain, stopped):
    assert without_times(go(checkpoint=stopped, resume=True)) == plain


def test_resume_of_a_finished_run_gives_its_result(go, plain, tmp_path):
    go(checkpoint=tmp_path)
    assert without_times(go(checkpoint=tmp_path, resume=True)) == plain


def test_resume_with_more_epochs(go, plain, tmp_path):
    go(CONFIG.replace(epochs=5), checkpoint=tmp_path)
    longer = without_times(go(checkpoint=tmp_path, resume=True))
    assert longer == plain


def test_resume_with_more_seeds(go, tmp_path):
    go(checkpoint=tmp_path)
    both = without_times(go(seeds=2, checkpoint=tmp_path, resume=True))
    assert both == without_times(go(seeds=2))


def test_fewer_epochs_than_done(go, stopped):
    with pytest.raises(CheckpointError, match=r"is at epoch 6, expected at most 3: pass --epochs"):
        go(CONFIG.replace(epochs=3), checkpoint=stopped, resume=True)


def test_other_configuration_names_what_differs(go, stopped):
    other = CONFIG.replace(hidden=5, seed=2, model="gat")
    with pytest.raises(CheckpointError) as caught:
        go(other, checkpoint=stopped, resume=True)
    assert (
        "differs in hidden (checkpoint: 16, now: 5), model (checkpoint: gcn, now: gat), "
        "seed (checkpoint: 0, now: 2): pass the same options"
    ) in str(caught.value)


def test_other_data_names_what_differs(stopped):
    other = communities(num_nodes=200, num_classes=3, num_features=8, seed=1)
    with pytest.raises(CheckpointError, match=r"differs in contents \(.*\), edges \("):
        train(other, CONFIG, checkpoint=stopped, resume=True)


def test_other_model_of_the_same_configuration(dataset, stopped):
    class Wider(Tiny):
        def __init__(self, features, classes, rngs):
            super().__init__(features, classes, rngs)
            self.more = nnx.Param(jax.numpy.ones(3))

    with pytest.raises(CheckpointError, match=r"seed-0/6 is damaged"):
        train(dataset, CONFIG, build=lambda r: Wider(8, 3, r), checkpoint=stopped, resume=True)


def test_nothing_is_overwritten(go, stopped):
    before = sorted(stopped.rglob("*"))
    with pytest.raises(CheckpointError, match=r"is not empty, .*: add --resume"):
        go(checkpoint=stopped)
    assert sorted(stopped.rglob("*")) == before


@pytest.mark.parametrize("make", [True, False])
def test_nothing_to_resume(go, tmp_path, make):
    path = tmp_path / "none"
    if make:
        path.mkdir()
    with pytest.raises(CheckpointError, match=r"none holds no checkpoint to resume"):
        go(checkpoint=path, resume=True)


def test_resume_needs_a_directory(go):
    with pytest.raises(CheckpointError, match="pass --checkpoint DIR"):
        go(resume=True)


def test_killed_before_the_first_checkpoint(go, plain, stopped):
    shutil.rmtree(stopped / "seed-0")
    assert without_times(go(checkpoint=stopped, resume=True)) == plain


@pytest.mark.parametrize("item", ["arrays", "record"])
def test_missing_part(go, stopped, item):
    shutil.rmtree(stopped / "seed-0" / "6" / item)
    with pytest.raises(CheckpointError, match=r"seed-0/6 is damaged .*: delete it to resume"):
        go(checkpoint=stopped, resume=True)


def test_flipped_byte_and_the_way_out(go, plain, stopped):
    files = [p for p in (stopped / "seed-0" / "6" / "arrays").rglob("*") if p.is_file()]
    for path in files:
        if path.parent.name == "d":
            raw = bytearray(path.read_bytes())
            raw[len(raw) // 2] ^= 0xFF
            path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"seed-0/6 is damaged"):
        go(checkpoint=stopped, resume=True)
    shutil.rmtree(stopped / "seed-0" / "6")
    assert without_times(go(checkpoint=stopped, resume=True)) == plain


def test_damaged_identity(go, stopped):
    (stopped / "identity.json").write_text('{"dataset":')
    with pytest.raises(CheckpointError, match=r"identity.json cannot be read .*is damaged"):
        go(checkpoint=stopped, resume=True)


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}", '{"hidden": 16}', "[" * 9999, "\x00"])
def test_another_file_in_place_of_the_identity(go, stopped, text):
    (stopped / "identity.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"identity\.json .*damaged; start anew in another"):
        go(checkpoint=stopped, resume=True)


def test_an_edited_identity(go, stopped):
    path = stopped / "identity.json"
    path.write_text(path.read_text().replace('"hidden": 16', '"hidden": 17'))
    message = (
        f"{path} is not as it was written, its digest is another: the checkpoint is damaged; start "
        "anew in another directory"
    )
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        go(CONFIG.replace(hidden=17), checkpoint=stopped, resume=True)


def test_epochs_of_another_run_under_this_identity(go, stopped, tmp_path):
    """As where the identity was still empty when the folder was put together from two."""
    with pytest.raises(Stop):
        go(CONFIG.replace(lr=0.06), checkpoint=tmp_path / "b", checkpoint_every=2,
           watcher=StopAfter(7))  # fmt: skip
    shutil.copy(tmp_path / "b" / "identity.json", stopped)
    with pytest.raises(CheckpointError, match=r"seed-0/6 is damaged \(its arrays or its record"):
        go(CONFIG.replace(lr=0.06), checkpoint=stopped, resume=True)


def change_loss(record):
    record["history"][2]["losses"]["val"] += 0.125


def change_best_epoch(record):
    record["stopping"]["best_epoch"] = 2


def forget_an_epoch(record):
    del record["history"][1]


@pytest.mark.parametrize("change", [change_loss, change_best_epoch, forget_an_epoch])
def test_a_changed_record(go, plain, stopped, change):
    where = stopped / "seed-0" / "6"
    (path,) = (p for p in (where / "record").iterdir() if p.name == "metadata")
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    message = (
        f"{where} is damaged (its arrays or its record are not those that were saved): delete it "
        "to resume from the checkpoint before it, or start anew in another directory"
    )
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        go(checkpoint=stopped, resume=True)
    shutil.rmtree(where)
    assert without_times(go(checkpoint=stopped, resume=True)) == plain


def test_an_epoch_under_another_number(go, stopped):
    folder = stopped / "seed-0"
    (folder / "6").rename(folder / "8")
    with pytest.raises(CheckpointError, match=r"seed-0/8 is damaged"):
        go(checkpoint=stopped, resume=True)


@pytest.mark.parametrize("text", ["[]", "{", '{"budget": 5, "layout": [1, 1]}'])
def test_a_damaged_note_of_the_blocks(tmp_path, text):
    saved = Checkpoints.open(tmp_path, {"lr": 0.1}, resume=False)
    assert saved.recall() == {}
    saved.remember({"budget": 5, "layout": [2, 1]})
    assert saved.recall() == {"budget": 5, "layout": [2, 1]}
    (tmp_path / "streamed.json").write_text(text)
    with pytest.raises(
        CheckpointError, match=r"streamed\.json .*: delete it, which may change the"
    ):
        saved.recall()


def test_an_interrupt_that_a_library_turns_into_an_error(monkeypatch, tmp_path):
    """As where it comes while Orbax writes: what it closes then fails."""

    def interrupted(*args, **keywords):
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(ocp.CheckpointManager, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Checkpoints.open(tmp_path, {}, resume=False).run("seed-0").save(1, {}, {})


@pytest.mark.skipif(sys.platform != "linux", reason="uses a limit of Linux")
def test_a_full_disk_prints_one_line(tmp_path):
    """Without what Orbax logs, and what its threads and TensorStore's callbacks raise."""
    code = (
        "import resource, signal, sys; from gnnjit.cli import main as cli; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    options = f"train karate --model gcn --hidden 400 --no-compare --checkpoint {tmp_path}"
    found = subprocess.run(
        [sys.executable, "-c", code, *options.split(), "--quiet", "--checkpoint-every", "1"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert found.returncode == 2
    line, *more = found.stderr.splitlines()
    assert not more, found.stderr
    assert line.startswith(f"gnnjit: error: {tmp_path}/seed-0/1 cannot be written (")
    assert line.endswith("check the disk, and continue from the checkpoint before it with --resume")


def test_callbacks_that_come_after_a_failure_say_nothing(monkeypatch):
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: heard.append(str(found.exc_value)))
    callback = types.SimpleNamespace(exc_value=RuntimeError("Event loop is closed"))
    with quiet():
        with contextlib.suppress(OSError), quiet():
            raise OSError
        sys.unraisablehook(callback)
    sys.unraisablehook(callback)  # the process is on its way out
    sys.unraisablehook(types.SimpleNamespace(exc_value=ValueError("other")))
    assert heard == ["other"]


def _forget(loop, text):
    """Lets go of a future that nobody asked for its exception, as asyncio logs."""
    loop.create_future().set_exception(ValueError(text))
    gc.collect()


def test_futures_of_what_failed_say_nothing(monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("asyncio"), "filters", [])
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    disk = 'OUT_OF_RANGE: Error writing "0.bias/0" in OCDBT database at local file "/tmp/0"'
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        with contextlib.suppress(OSError), quiet():
            _forget(loop, disk)
            raise OSError
        _forget(loop, disk)
        _forget(loop, "of the user")
    assert [str(record.exc_info[1]) for record in caplog.records] == ["of the user"]


def test_nothing_is_kept_from_the_user_after_a_success(monkeypatch):
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    before, filters = sys.unraisablehook, list(logging.getLogger("asyncio").filters)
    with quiet(), quiet():
        pass
    assert sys.unraisablehook is before
    assert logging.getLogger("asyncio").filters == filters


def test_a_file_in_the_way(go, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        go(checkpoint=path)
