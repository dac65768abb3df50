"""`keep_memory` in processes of their own: it cannot be taken back."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import gnnjit
from gnnjit.cost.machine import machine_of
from gnnjit.compiler.primitive import platform_here

kept = gnnjit.keep_memory() if sys.argv[1] == "keep" else None
import jax, jax.numpy as jnp

double = jax.jit(lambda x: x + x)
x = jnp.ones((16 << 20,), jnp.float32)                   # 64 MiB
for _ in range(60):                                      # until there are holes of all sizes
    double(x).block_until_ready()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    double(x).block_until_ready()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, machine_of("cpu").fresh,
      machine_of("cuda").fresh)
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def run(*argv: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", FAULTS, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.once
@glibc
def test_memory_is_asked_for_once():
    kept, faults, *fresh = run("keep")
    assert kept == "True"
    assert int(faults) < 5 * (64 << 20) // resource.getpagesize()  # of the 20 results
    assert fresh == ["inf", "inf"]


def test_nothing_changes_unasked():
    _, _, cpu, cuda = run("no")
    assert float(cpu) == 32 << 20
    assert cuda == "inf"


OTHER_LIBRARIES = """
import ctypes, sys
from gnnjit.system import allocator

class Musl:
    def __init__(self, name): pass

sys.platform, ctypes.CDLL = sys.argv[1], Musl
print(allocator.keep_memory(), allocator.keeps_memory())
"""


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_other_c_libraries_are_left_alone(system):
    command = [sys.executable, "-c", OTHER_LIBRARIES, system]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


CONSOLE = """
import sys
from gnnjit.cli import main as cli
from gnnjit.system import allocator

sys.argv = ["gnnjit", *sys.argv[1:]]
assert cli.console() == 0
print(allocator.keeps_memory())
"""


@glibc
@pytest.mark.parametrize(
    ("command", "flag", "kept"),
    [("train", "", False), ("train", "0", False), ("train", "1", True), ("calibrate", "", True)],
)
def test_the_command_keeps_memory_where_it_is_told_to(command, flag, kept):
    done = subprocess.run(
        [sys.executable, "-c", CONSOLE, command, "--help"],
        capture_output=True, text=True, env={**os.environ, "GNNJIT_KEEP_MEMORY": flag},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(kept)
