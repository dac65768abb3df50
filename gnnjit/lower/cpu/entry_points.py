"""Entry points that exist before the machine code of their kernels does.

XLA wants a handler when it compiles a program, and LLVM takes about as long for a program's kernels
as XLA for the rest. So XLA is given entry points that are made beforehand, and a thread compiles
the kernels meanwhile. An entry point passes its calls on to the kernel in its cell, and waits while
that is empty.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu import ffi_abi
from gnnjit.lower.cpu.frame import NULL, Frame
from gnnjit.lower.cpu.simd import I8, I32, I64, PTR

COUNT = 64
"""Entry points of one module."""

PAUSE = 100
"""Microseconds between two looks at an empty cell."""

MESSAGE = b"gnnjit: LLVM failed to compile this CPU kernel; a warning has said why\0"


class EntryPoints(Frame):
    """Emits `entry_0`, `entry_1`, ..., and

    `fill(number, kernel)`: put a kernel into a cell;
    `failing(frame)`: the kernel of a cell whose kernel could not be made;
    `self_test(frame)`: a kernel that adds the first entry of a float32 vector to all of them.
    """

    def __init__(self, module: ir.Module, layout: ffi_abi.Abi):
        self.module, self.layout = module, layout

    def emit(self) -> None:
        self.cells = self._global("cells", ir.Constant(ir.ArrayType(I64, COUNT), None))
        self._emit_call()
        for number in range(COUNT):
            self._emit_entry(number)
        self._emit_fill()
        self._emit_failing()
        self._emit_self_test()

    def _global(self, name: str, value: ir.Constant) -> ir.GlobalVariable:
        made = ir.GlobalVariable(self.module, value.type, name)
        made.linkage, made.initializer = "internal", value
        return made

    def _cell(self, number: ir.Value) -> ir.Value:
        start = self.b.inttoptr(self.b.ptrtoint(self.cells, I64), PTR)
        return self.b.gep(start, [number], source_etype=I64)

    def _emit_call(self) -> None:
        """`call(frame, number)`: the kernel of a cell, as soon as there is one."""
        frame = self.begin_entry("call", 1, I64)
        b = self.b
        place = self._cell(b.function.args[1])
        head, empty, full = (b.append_basic_block(n) for n in ("look", "wait", "full"))
        b.branch(head)
        b.position_at_end(head)
        kernel = b.load_atomic(place, "acquire", 8, typ=I64)
        b.cbranch(b.icmp_signed("==", kernel, I64(0)), empty, full)
        b.position_at_end(empty)
        self.m.call("usleep", I32, [I32(PAUSE)])
        b.branch(head)
        b.position_at_end(full)
        signature = ir.PointerType(ir.FunctionType(PTR, [PTR]))
        b.ret(b.call(b.inttoptr(kernel, signature), [frame]))

    def _emit_entry(self, number: int) -> None:
        function = ir.Function(self.module, ir.FunctionType(PTR, [PTR]), f"entry_{number}")
        b = ir.IRBuilder(function.append_basic_block())
        b.ret(b.call(self.module.get_global("call"), [function.args[0], I64(number)]))

    def _emit_fill(self) -> None:
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [I64, I64]), "fill")
        self.b = ir.IRBuilder(function.append_basic_block())
        number, kernel = function.args
        self.b.atomic_rmw("xchg", self._cell(number), kernel, "seq_cst")
        self.b.ret_void()

    def _emit_failing(self) -> None:
        frame = self.begin_entry("failing", 1)
        kind = ir.ArrayType(I8, len(MESSAGE))
        text = self._global("message", ir.Constant(kind, bytearray(MESSAGE)))
        words = [self.b.ptrtoint(text, I64), I64(ffi_abi.ERROR_INTERNAL)]
        api = self.field(frame, ffi_abi.FRAME_API, PTR)
        make = self.function(api, self.layout.error_offset, PTR)
        self.b.ret(self.b.call(make, [self.struct(words)]))

    def _emit_self_test(self) -> None:
        frame, m = self.begin_entry("self_test", 1), self.m
        given = self.buffer(frame, ffi_abi.FRAME_ARGS, 0)
        source, target = self.data(given), self.data(self.buffer(frame, ffi_abi.FRAME_RETS, 0))
        one, float32 = np.arange(1), np.dtype(np.float32)
        first = m.load(source, float32, one)
        with m.loop(I64(0), self.length(given)) as at:
            read = m.load(m.offset(source, at, 4), float32, one)
            total = self.b.fadd(read.chunks[0], first.chunks[0])
            m.store(type(read)(float32, 1, (total,)), m.offset(target, at, 4), one)
        self.b.ret(NULL)
