"""The command line: what it prints, what it writes, how it ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys

import jax
import pytest

from gnnjit.cli import main, train
from gnnjit.data import open_dataset

FAST = ["train", "karate", "--model", "gcn", "--epochs", "4", "--no-compare"]


@pytest.fixture
def gnnjit(capsys):
    """Runs a command; (exit code, standard output, standard error)."""

    def run(*arguments: str):
        code = main.main(arguments)
        return code, *capsys.readouterr()

    return run


def error(text: str) -> str:
    return f"gnnjit: error: {text}\n"


def test_version(gnnjit):
    code, out, _ = gnnjit("--version")
    assert code == 0
    assert out.startswith("gnnjit ")


def test_help_names_defaults_and_examples(gnnjit):
    code, out, _ = gnnjit("train", "--help")
    assert code == 0
    assert "(default: 10)" in out
    assert "gnnjit train cora --model gcn --seeds 10" in out


def test_data_list(gnnjit):
    code, out, _ = gnnjit("data", "list")
    assert code == 0
    for name in ("karate", "communities", "cora", "mutag"):
        assert name in out


def test_usage_error(gnnjit):
    code, _, err = gnnjit("train", "--epochs", "many")
    assert code == 2
    assert "invalid int value: 'many'" in err


def test_no_command(gnnjit):
    assert gnnjit()[0] == 2


def test_train_writes_json(gnnjit, tmp_path):
    target = tmp_path / "result.json"
    code, out, err = gnnjit(*FAST, "--json", str(target), "--log-every", "2")
    assert (code, err) == (0, "")
    lines = [line.split("  loss")[0] for line in out.splitlines() if "epoch " in line]
    assert lines[:3] == ["seed-0  epoch 1/4", "seed-0  epoch 2/4", "seed-0  epoch 4/4"]
    assert "gcn on karate" in out
    assert "peak memory of the process (RSS)" in out
    assert "No validation vertices" in out
    result = json.loads(target.read_text())
    assert result["config"]["model"] == "gcn"
    assert len(result["runs"][0]["history"]) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_json_on_standard_output(gnnjit):
    code, out, err = gnnjit(*FAST, "--json", "-", "--seeds", "2", "--quiet")
    assert code == 0
    result = json.loads(out)
    assert [run["seed"] for run in result["runs"]] == [0, 1]
    assert "mean ± std" in err
    assert "epoch 1/4" not in err


def test_compare_times_the_reference(gnnjit, tmp_path):
    target = tmp_path / "result.json"
    options = [*FAST[:-1], "--compare", "--json", str(target), "--epochs", "1"]
    code, out, _ = gnnjit(*options)
    assert code == 0
    assert "segment_sum" in out
    reference = json.loads(target.read_text())["performance"]["reference"]
    assert reference["median_epoch_seconds"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["karate", "--hidden", "0"], "hidden is 0, expected at least 1"),
        (["karate", "--seeds", "0"], "seeds is 0, expected 1 to 2**31"),
        (
            ["karate", "--seeds", "99999999999999999999", "--seed", "7"],
            "seeds is 99999999999999999999, expected 1 to 2**31 - 7",
        ),
        (
            ["karate", "--halve-every", "12345678901234567890"],
            "halve_every is 12345678901234567890, expected a whole number below 2**31",
        ),
        (
            ["karate", "--model", "gcn", "--heads", "3"],
            "heads: gcn has no attention heads, which gat, gatv2, transformer have: leave it out",
        ),
        (
            ["karate", "--batch-size", "8"],
            "batch_size: for datasets of many graphs, and this is one, which is trained on as a "
            "whole: leave it out",
        ),
        (["karate", "--log-every", "-1"], "--log-every is -1, expected at least 0 (0: a bar)"),
        (
            ["communities", "--option", "seed=-2"],
            "communities: got seed=-2, expected a whole number, 0 or more.",
        ),
        (
            ["communities", "--option", "num_features=7.5"],
            "communities: got num_features=7.5, expected a whole number.",
        ),
        (
            ["communities", "--option", "num_nodes=[40"],
            "communities: got num_nodes='[40', expected a whole number.",
        ),
        (
            ["communities", "--option", "avg_degree=inf"],
            "communities: got avg_degree='inf', expected a finite number.",
        ),
        (
            ["karate", "--folds", "3"],
            "--folds is for datasets of many graphs, karate is one graph with a fixed split: "
            "use --seeds",
        ),
        (
            ["karate", "--resume"],
            "there is nothing to resume without a checkpoint directory: pass --checkpoint DIR",
        ),
        (
            ["karate", "--option", "labels"],
            "--option labels: expected NAME=VALUE, as in num_nodes=1000",
        ),
        (
            ["karate", "--model", "gcm"],
            "unknown model 'gcm', expected one of gcn, sage, gat, gatv2, gin, gatedgcn, commnet, "
            "ggnn, edgeconv, transformer, pna, appnp, cheb, jknet; did you mean 'gcn'?",
        ),
    ],
)
def test_mistakes_are_one_line(gnnjit, options, message):
    code, out, err = gnnjit("train", *options)
    assert code == 2
    assert err == error(message)
    assert "Traceback" not in out


LONG = "x" * 3000


@pytest.mark.parametrize(
    "command",
    [
        f"train {LONG}", f"train karate --model {LONG}", f"train karate --seed {LONG}",
        f"train karate --option {LONG}", f"train karate --option {LONG}=1", f"train karate {LONG}",
        f"train karate --decay {LONG}", f"explain {LONG}", f"data {LONG}", LONG,
        f"train karate --json {LONG}", f"train karate --checkpoint {LONG}",
        f"train cora --data-dir {LONG}", f"train karate --memory-budget 1GiB --store {LONG}",
        f"launch -n 2 -- train --model {LONG} --seed {LONG}",
        f"train communities --option num_nodes={'9' * 400}", "train --epochs x",
    ],
    ids=lambda command: command.replace(LONG, "LONG")[:60],
)  # fmt: skip
def test_no_message_is_long(gnnjit, command):
    code, _, err = gnnjit(*command.split())
    assert code == 2
    assert "error: " in err
    assert len(err) <= 1001


STORE = "--memory-budget 1GiB --store"


@pytest.mark.parametrize(
    ("options", "path"),
    [
        *(
            (o, p)
            for o in ("--json", "--checkpoint")
            for p in ("a\0b", LONG, "~nobody-of-this-name", "")
        ),
        *((STORE, p) for p in ("a\0b", LONG)),
    ],
    ids=lambda text: text[:20],
)
def test_what_can_be_no_path_is_told_before_training(gnnjit, options, path):
    code, _, err = gnnjit(*FAST, *options.split(), path)
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot be used (" in err
    assert err.endswith("): choose another path\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("explain karate --layers 0", "layers is 0, expected 1 to 1000"),
        ("explain karate --hidden -5", "hidden is -5, expected at least 1"),
        ("explain karate --heads 0", "heads is 0, expected at least 1"),
        ("train karate --layers 2147483647", "layers is 2147483647, expected 1 to 1000"),
        (
            "train karate --devices 99999999",
            "devices is 99999999, expected at most 1024 in each process",
        ),
        ("calibrate --seed -1", "--seed is -1, expected at least 0"),
        ("launch -n 99999999 -- data list", "--processes is 99999999, expected 1 to 1024"),
        (
            "launch -n 1 --devices-per-process 99999999 -- data list",
            "--devices-per-process is 99999999, expected 1 to 1024",
        ),
    ],
)
def test_numbers_out_of_range_are_told(gnnjit, arguments, message):
    code, out, err = gnnjit(*arguments.split())
    assert (code, out, err) == (2, "", error(message))


@pytest.mark.parametrize(
    "options",
    [["communities", "--option", "num_features=2147483647"], ["karate", "--hidden", "2147483647"]],
)
def test_a_lack_of_memory_is_one_line(gnnjit, monkeypatch, options):
    found = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")
    monkeypatch.setattr(train, "run_training", raises(found))
    monkeypatch.setattr(train, "open_dataset", raises(MemoryError("Unable to allocate 9 bytes")))
    if options[0] == "karate":
        monkeypatch.setattr(train, "open_dataset", open_dataset)
    code, _, err = gnnjit("train", *options, "--no-compare", "--quiet")
    assert code == 2
    assert err.startswith("gnnjit: error: there is not enough memory (")
    assert err.endswith("(gnnjit train --memory-budget 1GiB --store DIR)\n")


def raises(error):
    def fail(*arguments, **keywords):
        raise error

    return fail


def test_other_errors_of_jax_pass_through(gnnjit, monkeypatch):
    monkeypatch.setattr(
        train, "run_training", raises(jax.errors.JaxRuntimeError("INTERNAL: a bug"))
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
        gnnjit(*FAST)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a device that is full")
@pytest.mark.parametrize("arguments", ["data list", "explain karate --model gcn --json -"])
def test_standard_output_on_a_full_disk(capsys, arguments):
    with open("/dev/full", "w", buffering=1) as stream, contextlib.redirect_stdout(stream):
        assert main.main(arguments.split()) == 2
    assert capsys.readouterr().err.startswith(
        "gnnjit: error: the standard output cannot be used (No space left on device)"
    )


@pytest.mark.parametrize("name", ["cora", "mutag", "dblp"])
def test_absent_data_tells_of_data_dir(gnnjit, tmp_path, name):
    code, _, err = gnnjit("train", name, "--data-dir", str(tmp_path / "nowhere"))
    assert code == 2
    assert "no such directory, expected --data-dir to hold dataset files" in err
    code, _, err = gnnjit("train", name, "--data-dir", str(tmp_path))
    assert code == 2
    assert "is missing, expected" in err
    assert "--data-dir" in err


def test_wrong_type_of_an_option(gnnjit):
    code, _, err = gnnjit("train", "communities", "--option", "num_nodes=many")
    assert code == 2
    assert err == error("communities: got num_nodes='many', expected a whole number.")


def test_a_whole_number_may_be_written_as_a_power(gnnjit, tmp_path):
    target = tmp_path / "result.json"
    options = ("--option", "num_nodes=2e2", "--option", "avg_degree=4", "--json", str(target))
    code, _, err = gnnjit("train", "communities", "--epochs", "1", "--no-compare", *options)
    assert (code, json.loads(target.read_text())["dataset"]["vertices"]) == (0, 200), err


def test_json_target_is_checked_before_training(gnnjit, tmp_path):
    code, _, err = gnnjit("train", "karate", "--json", str(tmp_path / "no" / "x.json"))
    assert code == 2
    assert "is no directory, make it first" in err
    code, _, err = gnnjit("train", "karate", "--json", str(tmp_path))
    assert (code, "is a directory, expected a file name" in err) == (2, True)


def test_checkpoint_in_the_way(gnnjit, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    code, _, err = gnnjit(*FAST, "--checkpoint", str(tmp_path))
    assert code == 2
    assert "is not empty, and nothing is overwritten: add --resume" in err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_interrupt(gnnjit, monkeypatch, tmp_path):
    def interrupted(*args, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "run_training", interrupted)
    target = tmp_path / "result.json"
    code, _, err = gnnjit(*FAST, "--json", str(target))
    assert (code, err) == (130, "gnnjit: interrupted\n")
    assert not target.exists()


def test_without_arguments_attention_on_communities(gnnjit, monkeypatch):
    seen = {}

    def fake(spec, dataset, **keywords):
        seen.update(name=dataset.name, model=spec.config.model, nodes=dataset.num_nodes)
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "run_training", fake)
    gnnjit("train")
    assert seen == {"name": "communities", "model": "gat", "nodes": 30_000}


def test_hyperparameters_of_the_recipe_are_shown(gnnjit):
    code, out, _ = gnnjit(*FAST, "--dropout", "0.25", "--seed", "3")
    assert code == 0
    assert out.splitlines()[1] == (
        "gcn: 2 layers, hidden 16, dropout 0.25, adam with lr 0.01, weight decay 0.0005 (first), "
        "at most 4 epochs, patience 10, seed 3"
    )


def unheard(*arguments):
    """The exit code of a command whose standard output is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", buffering=1)
    with stream, contextlib.redirect_stdout(stream):
        return main.main(arguments)


def test_a_reader_that_leaves_takes_no_result_along(tmp_path):
    """As in `gnnjit train --json result.json | head -1`."""
    target = tmp_path / "result.json"
    assert unheard(*FAST, "--json", str(target)) == 0
    assert len(json.loads(target.read_text())["runs"][0]["history"]) == 4


@pytest.mark.parametrize("command", ["explain karate --model gcn --no-backward", "data list"])
def test_a_reader_that_leaves_ends_what_only_prints(command):
    assert unheard(*command.split()) == main.BROKEN_PIPE


def test_a_resumed_run_says_where_it_continues(gnnjit, tmp_path):
    run = ("--checkpoint", str(tmp_path / "run"), "--checkpoint-every", "2")
    assert gnnjit(*FAST, *run)[0] == 0
    code, out, err = gnnjit(*FAST, *run, "--resume", "--epochs", "6")
    assert (code, err) == (0, "")
    assert "seed-0  resumed after epoch 4\n" in out


def test_other_errors_of_the_system_are_not_blamed_on_the_output(monkeypatch):
    def refused(*args, **keywords):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(train, "run_training", refused)
    with pytest.raises(ConnectionRefusedError):
        main.main(FAST)


SWALLOWED = """
import signal, threading
from gnnjit.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it

class Swallows:
    def __del__(self):
        raise KeyboardInterrupt  # Python tells of it, and goes on

with main.interruptible():
    try:
        Swallows()
        threading.Event().wait(60)
        print("lost")
    except KeyboardInterrupt:
        print("it came again")
"""


def test_an_interrupt_in_a_callback_comes_again() -> None:
    """In a process of its own: those that run tests have other ideas of signals."""
    command = [sys.executable, "-c", SWALLOWED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "it came again\n", done.stderr
