"""Machine code of the parts of a counting sort, which runs without Python's lock.

`Parts` says what each part does. All numbers are at least 0 and in range: nothing is checked here.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from gnnjit.shapes import HostArray

PTR, I8, I64 = ir.PointerType(), ir.IntType(8), ir.IntType(64)

_lock = threading.Lock()
_engines: list[llvm.ExecutionEngine] = []
"""Kept for the life of the process: they own the code."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts, for indices and payloads of given sizes.

    Attributes:
        count: `(key, first, last, shift, counts)` adds 1 to `counts[key[i] >> shift]` for each `i`
            from `first` to `last - 1`.
        deal: `(key, payload, first, last, shift, places, records)` gives edge `i` of that range
            the place `places[key[i] >> shift]`, which then rises by 1, and writes its record there:
            its key, its number `i` and its payload.
        finish: `(records, first, last, starts, shift, rows, scratch, indptr, neighbor, edge)`
            sorts the records of each bin from `first` to `last - 1`. Bin `b` has the records
            `starts[b]` to `starts[b + 1] - 1`, whose keys are from `b << shift` on. `scratch` holds
            `1 << shift` indices.
        record: the bytes of a record.
    """

    count: Callable[..., None]
    deal: Callable[..., None]
    finish: Callable[..., None]
    record: int


SIGNATURES = {
    "count": "pnnnp",
    "deal": "ppnnnpp",
    "finish": "pnnpnnpppp",
}
"""The arguments of each part: pointers and numbers."""


def parts(index_bytes: int, payload_bytes: int) -> Parts:
    """The parts as functions of Python, compiled at the first call."""
    with _lock:
        return _compiled(index_bytes, payload_bytes)


@functools.cache
def _compiled(index_bytes: int, payload_bytes: int) -> Parts:
    code = _Code(index_bytes, payload_bytes)
    engine = _engine(code.module)
    _engines.append(engine)
    found = {
        name: _function(engine.get_function_address(name), s) for name, s in SIGNATURES.items()
    }
    return Parts(**found, record=code.record)


def _function(address: int, signature: str) -> Callable[..., None]:
    kinds = [ctypes.c_void_p if k == "p" else ctypes.c_int64 for k in signature]
    code = ctypes.CFUNCTYPE(None, *kinds)(address)

    def call(*arguments: HostArray | int) -> None:
        code(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments))

    return call


def _engine(module: ir.Module) -> llvm.ExecutionEngine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, jit=True)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    return engine


class _Code:
    """Emits the parts into a module."""

    def __init__(self, index_bytes: int, payload_bytes: int):
        self.module = ir.Module("gnnjit_sort")
        self.module.triple = llvm.get_default_triple()
        self.index, self.payload = ir.IntType(8 * index_bytes), ir.IntType(8 * payload_bytes)
        self.index_bytes, self.record = index_bytes, 2 * index_bytes + payload_bytes
        for name in SIGNATURES:
            getattr(self, f"_{name}")(*self._begin(name))
            self.b.ret_void()

    def _begin(self, name: str) -> tuple[ir.Value, ...]:
        kinds = [PTR if k == "p" else I64 for k in SIGNATURES[name]]
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), kinds), name)
        for argument, kind in zip(function.args, kinds, strict=True):
            if kind is PTR:  # no two arrays overlap
                argument.add_attribute("noalias")
        self.b = ir.IRBuilder(function.append_basic_block())
        return function.args

    # -- the parts --------------------------------------------------------------------------

    def _count(self, key, first, last, shift, counts) -> None:
        with self._loop(first, last) as at:
            self._add_one(counts, self.b.lshr(self._get(key, at), shift))

    def _deal(self, key, payload, first, last, shift, places, records) -> None:
        with self._loop(first, last) as at:
            row = self._get(key, at)
            record = self._record(records, self._add_one(places, self.b.lshr(row, shift)))
            self._put(record, I64(0), row)
            self._put(record, I64(1), at)
            self._store(self._load(payload, at, self.payload), self._after(record), I64(0))

    def _finish(
        self, records, first, last, starts, shift, rows, scratch, indptr, neighbor, edge
    ) -> None:
        b = self.b
        width = b.shl(I64(1), shift)
        with self._loop(first, last) as bin_:
            low = b.shl(bin_, shift)
            own = self._smaller(width, b.sub(rows, low))
            begin, end = self._get(starts, bin_), self._get(starts, b.add(bin_, I64(1)))
            with self._loop(I64(0), own) as row:
                self._put(scratch, row, I64(0))
            with self._loop(begin, end) as at:
                self._add_one(scratch, b.sub(self._get(self._record(records, at), I64(0)), low))
            self._put(indptr, low, begin)
            with self._loop(I64(0), own) as row:
                count, start = self._get(scratch, row), self._get(indptr, b.add(low, row))
                self._put(scratch, row, start)
                # After the last row, what the next bin begins with.
                self._put(indptr, b.add(low, b.add(row, I64(1))), b.add(start, count))
            with self._loop(begin, end) as at:
                record = self._record(records, at)
                slot = self._add_one(scratch, b.sub(self._get(record, I64(0)), low))
                self._put(edge, slot, self._get(record, I64(1)))
                payload = self._load(self._after(record), I64(0), self.payload)
                self._store(payload, neighbor, slot)

    # -- what they are made of --------------------------------------------------------------

    def _add_one(self, array, at) -> ir.Value:
        """Entry `at` before it rises by 1."""
        before = self._get(array, at)
        self._put(array, at, self.b.add(before, I64(1)))
        return before

    def _record(self, records, at) -> ir.Value:
        return self.b.gep(records, [self.b.mul(at, I64(self.record))], source_etype=I8)

    def _after(self, record) -> ir.Value:
        """Where the payload of a record is."""
        return self.b.gep(record, [I64(2 * self.index_bytes)], source_etype=I8)

    def _get(self, array, at) -> ir.Value:
        value = self._load(array, at, self.index)
        return value if self.index == I64 else self.b.zext(value, I64)

    def _put(self, array, at, value) -> None:
        value = value if self.index == I64 else self.b.trunc(value, self.index)
        self._store(value, array, at)

    def _load(self, array, at, kind) -> ir.Value:
        return self.b.load(self._entry(array, at, kind), align=4, typ=kind)

    def _store(self, value, array, at) -> None:
        self.b.store(value, self._entry(array, at, value.type), align=4)

    def _entry(self, array, at, kind) -> ir.Value:
        return self.b.gep(array, [at], source_etype=kind)

    def _smaller(self, left, right) -> ir.Value:
        return self.b.select(self.b.icmp_signed("<", left, right), left, right)

    @contextlib.contextmanager
    def _loop(self, start, stop) -> Iterator[ir.Value]:
        """`for i in range(start, stop)`."""
        b, before = self.b, self.b.block
        head, body, done = (b.append_basic_block(n) for n in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        number = b.phi(I64)
        number.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", number, stop), body, done)
        b.position_at_end(body)
        yield number
        number.add_incoming(b.add(number, I64(1)), b.block)
        b.branch(head)
        b.position_at_end(done)
