"""Kernels compile for processors other than this machine's."""

from __future__ import annotations

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from gnnjit.lower.cpu import kernel
from gnnjit.system.cpu_features import is_x86

from .test_edge_tiles import spec_of
from .test_kernel import DST, EDGE, F32, SHARED, SUM, trace

unavailable = kernel.unavailable()
pytestmark = [
    pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available"),
    pytest.mark.skipif(not is_x86(), reason="the processors are x86"),
]

PROCESSORS = {
    "haswell": 32, "znver3": 32, "skylake-avx512": 64, "icelake-server": 64,
    "sapphirerapids": 64, "znver4": 64, "znver5": 64,
}  # fmt: skip
"""The bytes of a vector."""

COMPILE = """
import sys
from gnnjit.lower.cpu import compile
compile._machine = lambda: compile.machine_of(sys.argv[1])
for text in sys.stdin.read().split("; ModuleID")[1:]:
    print(len(compile._machine().emit_object(compile.optimised("; ModuleID" + text))))
"""


def network(x, y, *weights):
    """What an edge of particles has: the way between them, its length, and a network of both."""
    way = (x - y) / 2.5
    h = jnp.concatenate([way, jnp.linalg.norm(way, keepdims=True)])
    for w, b in zip(weights[::2], weights[1::2], strict=True):
        h = jax.nn.relu(h @ w + b)
    return (h - h.mean()) / jnp.sqrt(h.var() + 1e-6)


def text_of(dimensions: int, widths: list[int], lanes_bytes: int) -> str:
    sizes = [dimensions + 1, *widths]
    weights = [
        (SHARED, shape, F32)
        for m, n in zip(sizes, widths, strict=False)
        for shape in ((m, n), (n,))
    ]
    body = trace(network, (EDGE, (dimensions,), F32), (DST, (dimensions,), F32), *weights)
    found = kernel._code(spec_of(body, (SUM,), lanes_bytes=lanes_bytes))
    assert isinstance(found, str)
    return found


@functools.cache
def texts_of(lanes_bytes: int) -> list[str]:
    return [
        text_of(dimensions, widths, lanes_bytes)
        for dimensions in (1, 3, 7)
        for widths in ([8, 8, 8], [4, 8, 8], [16, 16], [8, 4])
    ]


@pytest.mark.parametrize("processor", PROCESSORS)
def test_networks_of_few_features_compile(processor):
    texts = texts_of(PROCESSORS[processor])
    command = [sys.executable, "-c", COMPILE, processor]
    done = subprocess.run(command, input="\n".join(texts), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sizes = done.stdout.split()
    assert len(sizes) == len(texts)
    assert all(int(size) > 0 for size in sizes)
