"""XLA's call frame, as generated code reads and answers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from gnnjit.lower.cpu import ffi_abi
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.simd import I8, I32, I64, PTR

NULL = ir.Constant(PTR, None)


class Frame:
    """What every entry point does: answer questions about itself, find its buffers."""

    layout: ffi_abi.Abi
    module: ir.Module
    m: Emitter
    b: ir.IRBuilder

    def begin_entry(self, name: str, lanes: int, *more: ir.Type) -> ir.Value:
        """Start a function of a frame (and `more`); what follows runs at the stage of execution.
        Returns the frame."""
        function = ir.Function(self.module, ir.FunctionType(PTR, [PTR, *more]), name)
        self.m = Emitter(self.module, ir.IRBuilder(function.append_basic_block()), lanes)
        self.b = self.m.b
        frame = function.args[0]
        self.answer(frame, lambda: self.b.ret(NULL))
        return frame

    def answer(self, frame: ir.Value, leave: Callable[[], Any]) -> None:
        """Answer a question about the kernel; `leave` where the call does not run it."""
        self._answer_metadata(frame, leave)
        stage = self.field(frame, ffi_abi.FRAME_STAGE, I32)
        with self.b.if_then(self.b.icmp_signed("!=", stage, I32(ffi_abi.STAGE_EXECUTE))):
            leave()

    def field(self, base: ir.Value, offset: int, kind: ir.Type) -> ir.Value:
        return self.b.load(self.b.gep(base, [I64(offset)], source_etype=I8), typ=kind)

    def put(self, base: ir.Value, offset: int, value: ir.Value) -> None:
        self.b.store(value, self.b.gep(base, [I64(offset)], source_etype=I8))

    def buffer(self, frame: ir.Value, table: int, number: int) -> ir.Value:
        """Argument or result `number`: `table` is `abi.FRAME_ARGS` or `abi.FRAME_RETS`."""
        return self.field(self.field(frame, table, PTR), 8 * number, PTR)

    def data(self, buffer: ir.Value) -> ir.Value:
        return self.field(buffer, ffi_abi.BUFFER_DATA, PTR)

    def length(self, buffer: ir.Value, axis: int = 0) -> ir.Value:
        return self.field(self.field(buffer, ffi_abi.BUFFER_DIMS, PTR), 8 * axis, I64)

    def call_api(
        self, api: ir.Value, offset: int, words: Sequence[ir.Value]
    ) -> tuple[ir.Value, ir.Value]:
        """Call a function of XLA's with a struct of `words`: whether it failed, and the first of
        them after the call."""
        args = self.struct(words)
        error = self.b.call(self.function(api, offset, PTR), [args])
        failed = self.b.icmp_unsigned("!=", error, NULL)
        with self.m.when(failed):
            destroy = self.function(api, self.layout.destroy_offset, ir.VoidType())
            self.b.call(destroy, [self.struct([self.b.ptrtoint(error, I64)])])
        return failed, self.field(args, 16, I64)

    def struct(self, words: Sequence[ir.Value]) -> ir.Value:
        """On the stack, with its size and no extension before them."""
        args = self.m.stack(2 + len(words))
        for number, word in enumerate([I64(8 * (2 + len(words))), I64(0), *words]):
            self.put(args, 8 * number, word)
        return args

    def function(self, api: ir.Value, offset: int, result: ir.Type) -> ir.Value:
        signature = ir.PointerType(ir.FunctionType(result, [PTR]))
        return self.b.inttoptr(self.field(api, offset, I64), signature)

    def _answer_metadata(self, frame: ir.Value, leave: Callable[[], Any]) -> None:
        b = self.b
        extension = self.field(frame, ffi_abi.FRAME_EXTENSION, PTR)
        with b.if_then(b.icmp_unsigned("!=", extension, NULL)):
            kind = self.field(extension, ffi_abi.EXTENSION_TYPE, I32)
            with b.if_then(b.icmp_signed("==", kind, I32(ffi_abi.TYPE_METADATA))):
                data = self.field(extension, ffi_abi.EXTENSION_METADATA, PTR)
                self.put(data, ffi_abi.METADATA_MAJOR, I32(self.layout.major))
                self.put(data, ffi_abi.METADATA_MINOR, I32(self.layout.minor))
                self.put(data, ffi_abi.METADATA_TRAITS, I32(0))
                self.put(data, ffi_abi.METADATA_STATE_TYPE, I64(0))
                leave()
