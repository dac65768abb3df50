"""Large arrays that kernels write are in pages of 2 MiB, where Linux has them."""

from __future__ import annotations

import ctypes
import mmap
import pathlib

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from llvmlite import ir

import gnnjit
from gnnjit.lower.cpu import compile, kernel
from gnnjit.lower.cpu.control_flow import LARGE, Emitter
from gnnjit.lower.cpu.simd import I64, PTR

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

MAPS, PAGES = pathlib.Path("/proc/self/smaps"), pathlib.Path("/sys/kernel/mm/transparent_hugepage")
needs_linux = pytest.mark.skipif(
    not PAGES.exists() or not MAPS.exists() or "VmFlags" not in MAPS.read_text(),
    reason="this system has no large pages, or does not say where",
)
engines = []


def is_advised(address: int) -> bool:
    """Whether large pages were asked for where `address` is."""
    inside = False
    for line in MAPS.read_text().splitlines():
        first = line.split()[0]
        if "-" in first:
            begin, end = (int(x, 16) for x in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "VmFlags:":
            return "hg" in line.split()
    raise AssertionError(f"{address:#x} is not mapped")


@needs_linux
@pytest.mark.parametrize(("size", "advised"), [(LARGE, True), (LARGE - 1, False)])
def test_from_a_size_on(size: int, advised: bool) -> None:
    module = ir.Module("asking")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [PTR, I64]), "ask")
    m = Emitter(module, ir.IRBuilder(function.append_basic_block()), 4)
    m.ask_for_large_pages(*function.args)
    m.b.ret_void()
    engine = compile.load(compile.object_code(str(module)))
    engines.append(engine)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    with mmap.mmap(-1, 4 * LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        place = ctypes.c_char.from_buffer(memory)
        middle = ctypes.addressof(place) + LARGE
        kind(engine.get_function_address("ask"))(middle + 100, size)
        assert is_advised(middle) == advised
        assert is_advised(middle + size) == advised  # the page of the last byte
        assert not is_advised(middle - 1)
        assert not is_advised(middle + size + mmap.PAGESIZE)
        del place


@needs_linux
def test_what_a_layer_returns() -> None:
    graph = gnnjit.Graph.from_edges([0, 1], [1, 0], num_nodes=1 << 16)
    x = jnp.ones((graph.num_nodes, 32))
    assert x.nbytes == 2 * LARGE
    found = jax.jit(gnnjit.layer(lambda v, e: gnnjit.sum(e.src)))(graph, x)
    assert is_advised(found.unsafe_buffer_pointer() + found.nbytes // 2)
