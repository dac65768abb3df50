"""What every CPU kernel's code is made of."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from llvmlite import ir

from gnnjit.lower.cpu import compile, kernel
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.simd import I64, PTR

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

engines = []


def allocated(size: int) -> bool:
    """Whether a function that takes so many bytes got some."""
    module = ir.Module("allocating")
    function = ir.Function(module, ir.FunctionType(PTR, [I64]), "take")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(Emitter(module, builder, 1).allocate(function.args[0]))
    engine = compile.load(compile.object_code(str(module)))
    engines.append(engine)  # one that ends takes LLVM's target with it
    take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("take"))
    return take(size) is not None


def test_memory_that_there_is() -> None:
    assert allocated(100)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_without_memory_the_process_says_why_it_ends() -> None:
    code = "from lower.cpu.test_control_flow import allocated; allocated(2**62)"
    paths = f"import sys; sys.path[:0] = {[p for p in sys.path if p]}; "
    ended = subprocess.run([sys.executable, "-c", paths + code], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGABRT
    assert "gnnjit: memory of a CPU kernel: Cannot allocate memory" in ended.stderr


@pytest.mark.parametrize("misplaced", [0, 4])
def test_stores_past_the_caches_take_any_place(misplaced: int) -> None:
    """Where a vector does not begin at a multiple of its size, a processor refuses them."""
    module = ir.Module("storing")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [PTR, PTR]), "copy")
    m = Emitter(module, ir.IRBuilder(function.append_basic_block()), 4)
    source, target = function.args
    places = np.arange(8)
    m.store(m.load(source, np.dtype(np.float32), places), target, places, past_caches=True)
    m.b.ret_void()
    assert str(module).count("nontemporal") == 2
    engine = compile.load(compile.object_code(str(module)))
    engines.append(engine)
    copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
        engine.get_function_address("copy")
    )
    given, memory = np.arange(1, 9, dtype=np.float32), np.zeros(64, np.float32)
    start = -memory.ctypes.data % 64 + misplaced
    copy(given.ctypes.data, memory.ctypes.data + start)
    assert np.array_equal(memory[start // 4 : start // 4 + 8], given)
    assert np.count_nonzero(memory) == 8
