"""What every CPU kernel's code is made of."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys

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
