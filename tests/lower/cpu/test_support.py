"""The functions that all CPU kernels call."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from llvmlite import ir

from gnnjit.lower.cpu import compile, kernel, support
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.simd import I64, PTR

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")
engines = []


def test_each_name_has_a_function() -> None:
    """A kernel that calls another one could not be loaded."""
    engine = compile._support()
    assert all(engine.get_function_address(name) for name in support.NAMES)


@pytest.mark.parametrize("first", [False, True], ids=["records alone", "after the first"])
@pytest.mark.parametrize("nothing", [False, True], ids=["some", "nothing"])
@pytest.mark.parametrize("size", [1, 15, 16, 40])
@pytest.mark.parametrize("dtype", support.DTYPES, ids=str)
@pytest.mark.parametrize("kind", support.KINDS)
def test_combine(kind, dtype, size, nothing, first):
    """The records 1 to 3 of 4, against NumPy, in order."""
    module = ir.Module("combining")
    arguments = ir.FunctionType(ir.VoidType(), [PTR, PTR, PTR, I64, I64])
    function = ir.Function(module, arguments, "combine")
    m = Emitter(module, ir.IRBuilder(function.append_basic_block()), 4)
    start, out, before, step, none = function.args
    records = support.Records(start, step, I64(1), I64(4))
    none = m.b.icmp_signed("!=", none, I64(0))
    support.combine(m, kind, dtype, records, out, before, I64(size), none)
    m.b.ret_void()
    engine = compile.load(compile.object_code(str(module)))
    engines.append(engine)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)(
        engine.get_function_address("combine")
    )
    rng = np.random.default_rng(size)
    given, begun = (rng.normal(size=s).astype(dtype) for s in ((4, size + 3), size))
    found = np.full(size + 1, 7, dtype)
    pointer = begun.ctypes.data if first else None
    call(given.ctypes.data, found.ctypes.data, pointer, given.strides[0], nothing)
    apply = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
    want = begun if first else given[1, :size]
    for record in given[1 if first else 2 :, :size]:
        want = apply(want, record)
    np.testing.assert_array_equal(found[:size], np.zeros(size) if nothing else want)
    assert found[size] == 7
