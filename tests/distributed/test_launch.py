"""The supervisor of `gnnjit launch`: whom it names, whom it stops, and what it passes on."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gnnjit.cli import main
from gnnjit.cli.launch import message
from gnnjit.distributed.connection import LIFELINE, LOST_PEER
from gnnjit.distributed.launch import Ended, LaunchError, Outcome, supervise, virtual_devices

PRELUDE = """
import os, signal, sys
me = int(os.environ["GNNJIT_PROCESS"])
def die(number=signal.SIGKILL): os.kill(os.getpid(), number)
def ready(path): open(path, "w").close()  # a FIFO: returns when the other side reads it
def awaited(path): open(path).read()  # until all who write it have closed it
"""
FOREVER = "signal.pause()"


@pytest.fixture(autouse=True)
def no_hang():
    """A test that hangs fails."""

    def fail(*_):
        raise TimeoutError("this test hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", PRELUDE + code]


def launch(*codes: str, **options) -> Outcome:
    return supervise([python(code) for code in codes], **options)


def test_all_end_well(capfd):
    outcome = launch("print('out'); print('err', file=sys.stderr)", "print('dropped')")
    assert (outcome, outcome.exit_code) == (Outcome(2), 0)
    assert tuple(capfd.readouterr()) == ("out\n", "err\n")


def test_streams_of_the_others_have_their_number(capfd):
    outcome = launch("pass", "print('a\\nb'); sys.stderr.write('c\\nd')", verbose=True)
    assert outcome.exit_code == 0
    assert tuple(capfd.readouterr()) == ("[1] a\n[1] b\n", "[1] c\n[1] d\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_lines_stay_whole(capfd, fifo, tmp_path, stream):
    """Python writes a traceback in pieces: what another process says comes before or after it."""
    written = str(tmp_path / "written")
    os.mkfifo(written)
    write = f"sys.{stream}.write"
    flush = f"sys.{stream}.flush()"
    first = f"{write}('a '); {flush}; ready({fifo!r}); awaited({written!r}); {write}('b\\n')"
    other = f"awaited({fifo!r}); {write}('c\\n'); {flush}; ready({written!r})"
    assert launch(first, other, verbose=True).exit_code == 0
    assert sorted(getattr(capfd.readouterr(), stream[3:]).splitlines()) == ["[1] c", "a b"]


def test_places_and_further_variables(capfd):
    show = "e = os.environ; print(me, e['GNNJIT_PROCESSES'], e['GNNJIT_COORDINATOR'][:10], e['X'])"
    supervise([python(show)] * 2, [{"X": "a"}, {"X": "b"}], verbose=True)
    out = capfd.readouterr().out
    assert sorted(out.splitlines()) == ["0 2 127.0.0.1: a", "[1] 1 2 127.0.0.1: b"]


def test_only_process_0_inherits_the_listening_socket(capfd):
    show = "import socket; s = os.environ.get('GNNJIT_LISTENER');"
    show += "print(s and socket.socket(fileno=int(s)).getsockname()[1] > 0)"
    launch(show, show, verbose=True)
    assert sorted(capfd.readouterr().out.splitlines()) == ["True", "[1] None"]


def test_killed_process_is_named():
    outcome = launch(FOREVER, FOREVER, "die()", FOREVER)
    expected = "process 2 of 4 was killed by signal 9 (SIGKILL); the other 3 were stopped"
    assert str(outcome) == expected
    assert outcome.exit_code == 137


def test_failing_process_is_named():
    outcome = launch("sys.exit(3)", FOREVER)
    assert str(outcome) == "process 0 of 2 ended with exit code 3; the other was stopped"
    assert outcome.exit_code == 3


def test_those_that_ended_well_were_not_stopped(fifo):
    outcome = launch(f"ready({fifo!r})", f"awaited({fifo!r}); die(signal.SIGSEGV)", FOREVER)
    assert outcome.culprits == (Ended(1, -signal.SIGSEGV),)
    assert outcome.stopped in (1, 2)  # process 0 may still be on its way out


def test_the_same_failure_everywhere():
    outcome = launch("sys.exit(2)")
    assert str(outcome) == "process 0 of 1 ended with exit code 2"
    shown = str(Outcome(3, (Ended(0, 2), Ended(2, 2)), stopped=1))
    assert shown == "processes 0, 2 of 3 ended with exit code 2; the other was stopped"
    shown = str(Outcome(2, (Ended(0, -9), Ended(1, -9))))
    assert shown == "processes 0, 1 of 2 were killed by signal 9 (SIGKILL)"


def test_what_a_death_brings_about_is_not_its_cause(fifo):
    """Process 0 fails since the other end of its connection is gone."""
    outcome = launch(
        f"awaited({fifo!r}); sys.exit(1)", FOREVER, f"held = open({fifo!r}, 'w'); die()"
    )
    assert outcome.culprits == (Ended(2, -9),)


def test_cause_that_ends_later_than_its_consequence(fifo):
    """Process 1 tells process 0 that it fails, and takes longer to end."""
    outcome = launch(f"held = open({fifo!r}, 'w'); os._exit({LOST_PEER})",
                     f"awaited({fifo!r}); sys.exit(3)", FOREVER)  # fmt: skip
    assert str(outcome) == "process 1 of 3 ended with exit code 3; the other 2 were stopped"


def test_sigterm_first_so_that_others_can_clean_up(fifo, tmp_path):
    told = tmp_path / "told"
    handler = (
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(open({str(told)!r}, 'w').close()))"
    )
    outcome = launch(f"awaited({fifo!r}); die()", f"{handler}; ready({fifo!r}); {FOREVER}")
    assert outcome.culprits == (Ended(0, -9),)
    assert told.exists()


def test_sigkill_after_grace(fifo, tmp_path):
    pid = tmp_path / "pid"
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    stubborn += f"open({str(pid)!r}, 'w').write(str(os.getpid())); ready({fifo!r})\n"
    stubborn += f"while True: {FOREVER}"
    outcome = launch(f"awaited({fifo!r}); sys.exit(3)", stubborn, grace=0.1)
    assert outcome.culprits == (Ended(0, 3),)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_absent_program():
    with pytest.raises(LaunchError, match=r"/no/program cannot be started \(No such file or dir"):
        supervise([python(FOREVER), ["/no/program"]])


SUPERVISOR = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
from gnnjit.distributed.launch import supervise
outcome = supervise([[sys.executable, "-c", code] for code in sys.argv[1:]])
print(outcome, flush=True)
sys.exit(outcome.exit_code)
"""


def supervisor(*codes: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SUPERVISOR, *[PRELUDE + code for code in codes]]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.once
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(fifo, number):
    told = f"signal.signal({int(number)}, lambda *_: sys.exit(print('told', flush=True)))"
    waiting = supervisor(f"{told}; ready({fifo!r}); {FOREVER}", FOREVER)
    Path(fifo).read_text()
    waiting.send_signal(number)
    out, _ = waiting.communicate(timeout=60)
    assert out == f"told\nstopped by {number.name}, with all 2 processes\n"
    assert waiting.returncode == 128 + number


@pytest.mark.once
def test_processes_end_with_a_supervisor_that_is_killed(fifo):
    watching = "from gnnjit.distributed import connection; connection.watch_launcher();"
    # What it has started goes too: the FIFO is at its end when all have closed it.
    child = f"import subprocess; held = open({fifo!r}, 'w'); print(me, file=held, flush=True);"
    child += "subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'],"
    child += " pass_fds=[held.fileno()])"
    orphaned = supervisor(watching + child, watching + child)
    with orphaned, open(fifo) as lines:
        assert {lines.readline(), lines.readline()} == {"0\n", "1\n"}
        orphaned.kill()
        assert lines.read() == ""


@pytest.mark.once
def test_start_of_a_launched_command():
    """Its descriptors are not left to what it starts; C++ does not print among its results."""
    ours, theirs = os.pipe()
    code = "import os; from gnnjit.distributed import connection as d; d.watch_launcher();"
    code += "d.keep_stdout();"
    code += f"print({LIFELINE!r} in os.environ, os.get_inheritable({ours})); os.write(1, b'C++')"
    place = {"GNNJIT_PROCESSES": "2", "GNNJIT_PROCESS": "0", "GNNJIT_COORDINATOR": "127.0.0.1:1"}
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **place, LIFELINE: str(ours)},
        pass_fds=[ours],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (shown.stdout, shown.stderr) == ("False False\n", "C++")
    for end in (ours, theirs):
        os.close(end)


def test_virtual_devices_keep_other_flags():
    flag = "--xla_force_host_platform_device_count"
    found = virtual_devices(3, {"XLA_FLAGS": f"--xla_a=1 {flag}=8 --xla_b=2"})
    assert found["XLA_FLAGS"] == f"--xla_a=1 --xla_b=2 {flag}=3"
    assert virtual_devices(2, {})["XLA_FLAGS"] == f"{flag}=2"


@pytest.mark.parametrize(
    ("checkpoint", "resume", "code", "ending"),
    [
        (None, False, -9, "stopped"),
        ("absent", False, -9, "stopped"),
        (".", False, 2, "stopped"),
        (".", False, -9, "Run the same command with --resume to continue from the last checkpoint"),
        (".", True, -9, "Run the same command again to continue from the last checkpoint"),
    ],
)
def test_resume_is_advised_where_it_helps(tmp_path, checkpoint, resume, code, ending):
    root = checkpoint and str(tmp_path / checkpoint)
    inner = argparse.Namespace(checkpoint=root, resume=resume)
    assert message(Outcome(2, (Ended(1, code),), stopped=1), inner).endswith(ending)


def test_command_runs_in_all_processes(capfd):
    code = main.main(["launch", "-n", "2", "--devices-per-process", "2", "--", "data", "list"])
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    assert out.count("Zachary") == 1


def test_a_mistake_in_the_command_is_told_once(capfd):
    assert main.main(["launch", "-n", "4", "--", "train", "--epochs", "many"]) == 2
    assert capfd.readouterr().err.count("invalid int value: 'many'") == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-n", "0"], "--processes is 0, expected 1 to 1024"),
        (
            ["-n", "2", "--devices-per-process", "0"],
            "--devices-per-process is 0, expected 1 to 1024",
        ),
        (["-n", "2", "--grace", "-1"], "--grace is -1, expected a number of seconds from 0 on"),
        (["-n", "2", "--grace", "nan"], "--grace is nan, expected a number of seconds from 0 on"),
        (
            ["-n", "2", "launch", "-n", "2", "data", "list"],
            "launch cannot launch itself: name the command to run, such as train",
        ),
    ],
)
def test_mistakes(capfd, options, expected):
    tail = [] if "launch" in options else ["--", "data", "list"]
    assert main.main(["launch", *options, *tail]) == 2
    assert capfd.readouterr().err == f"gnnjit: error: {expected}\n"
