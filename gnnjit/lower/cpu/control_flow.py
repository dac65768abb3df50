"""Loads, stores, loops and branches on top of `Codegen`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu.simd import I8, I32, I64, PTR, Codegen, Vec, mangle, memory_type

LARGE = 4 << 20
"""Bytes from which an array is worth larger pages, as in NumPy."""

PAGE, MADV_HUGEPAGE = 4096, 14
"""Bytes to which `madvise` wants addresses aligned (on systems with larger pages it refuses others,
which does no harm), and its advice, in Linux."""


PART = "gnnjit_cpu_part_"
"""Of the names of functions that kernels share."""

PARTS: dict[str, str] = {}
"""The LLVM IR of each that this process has written, by its name."""


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """Memory on the stack of a function: so many 8-byte words."""

    pointer: ir.Value
    words: int


class Emitter(Codegen):
    """`Codegen` with memory and control flow."""

    def __init__(self, module: ir.Module, builder: ir.IRBuilder, lanes: int):
        super().__init__(module, builder, lanes)
        self._free: dict[str, list[Block]] = {}  # of each function
        self._taken: list[Block] = []

    # -- memory -----------------------------------------------------------------------------

    def offset(self, pointer: ir.Value, count: ir.Value | int, size: int) -> ir.Value:
        """`pointer + count * size` bytes."""
        index = I64(count) if isinstance(count, int) else count
        step = self.b.mul(index, I64(size)) if size != 1 else index
        return self.b.gep(pointer, [step], source_etype=I8)

    def load(self, pointer: ir.Value, dtype: np.dtype, places: np.ndarray) -> Vec:
        """The scalars at `places` (memory order, each chunk contiguous) after `pointer`."""
        chunks = []
        for start, width in self._runs(places):
            kind = ir.VectorType(memory_type(dtype), width)
            at = self.offset(pointer, start * dtype.itemsize, 1)
            chunks.append(self.widen(self.b.load(at, align=dtype.itemsize, typ=kind), dtype))
        return Vec(dtype, places.size, tuple(chunks))

    def store(
        self, vec: Vec, pointer: ir.Value, places: np.ndarray, *, past_caches: bool = False
    ) -> None:
        """past_caches: the processor writes to memory, without reading it first, and keeps nothing
        in a cache. Vectors that do not begin at a multiple of their size are stored as usual."""
        chunks = [self.narrow(chunk, vec.dtype) for chunk in vec.chunks]
        at = [
            self.offset(pointer, start * vec.dtype.itemsize, 1) for start, _ in self._runs(places)
        ]

        def store(align: int) -> list[ir.Instruction]:
            pairs = zip(chunks, at, strict=True)
            return [self.b.store(chunk, place, align=align) for chunk, place in pairs]

        if not past_caches:
            store(vec.dtype.itemsize)
            return
        size = self.lanes * vec.dtype.itemsize
        rest = self.b.and_(self.b.ptrtoint(pointer, I64), I64(size - 1))
        with self.b.if_else(self.b.icmp_unsigned("==", rest, I64(0))) as (then, otherwise):
            with then:
                hint = self.module.add_metadata([I32(1)])
                for instruction in store(size):
                    instruction.set_metadata("nontemporal", hint)
            with otherwise:
                store(vec.dtype.itemsize)

    def _runs(self, places: np.ndarray) -> Iterator[tuple[int, int]]:
        flat = places.ravel()
        for k in range(0, flat.size, self.lanes):
            run = flat[k : k + self.lanes]
            assert (np.diff(run) == 1).all(), "a chunk must be contiguous in memory"
            yield int(run[0]), run.size

    def allocate(self, size: ir.Value) -> ir.Value:
        """So many bytes of the heap. Without them the process says why and ends: other threads may
        wait for this one, so that it cannot return an error."""
        memory = self.call("malloc", PTR, [size])
        with self.when(self.b.icmp_unsigned("==", memory, ir.Constant(PTR, None))):
            self.call("perror", ir.VoidType(), [self._text("gnnjit: memory of a CPU kernel")])
            self.call("abort", ir.VoidType(), [])
        return memory

    def ask_for_line(self, pointer: ir.Value, *, near: bool = True) -> None:
        """Ask for a cache line that is read later. near: in the first cache, else in the second."""
        hint = [pointer, I32(0), I32(3 if near else 2), I32(1)]
        self.call(f"llvm.prefetch.{mangle(PTR)}", ir.VoidType(), hint)

    def ask_for_large_pages(self, memory: ir.Value, size: ir.Value) -> None:
        """Ask Linux for pages of 2 MiB where so many bytes from `memory` on have none yet.

        An array that XLA makes anew in each call is new memory to the system, which clears it page
        by page as it is written: one fault for 4 KiB, or for 2 MiB. No page beyond the array's is
        touched. Where the advice cannot be followed, nothing changes.
        """
        if sys.platform != "linux":
            return
        b = self.b
        with self.when(b.icmp_signed(">=", size, I64(LARGE))):
            begin = b.ptrtoint(memory, I64)
            start = b.and_(begin, I64(-PAGE))
            length = b.sub(b.add(begin, size), start)
            self.call("madvise", I32, [b.inttoptr(start, PTR), length, I32(MADV_HUGEPAGE)])

    def _text(self, text: str) -> ir.Value:
        name = "text: " + text
        known = self.module.globals.get(name)
        if known is None:
            content = bytearray(text.encode() + b"\0")
            value = ir.Constant(ir.ArrayType(I8, len(content)), content)
            known = ir.GlobalVariable(self.module, value.type, name)
            known.linkage, known.global_constant, known.initializer = "internal", True, value
        return self.b.inttoptr(self.b.ptrtoint(known, I64), PTR)

    # -- control flow -----------------------------------------------------------------------

    @contextlib.contextmanager
    def loop(self, start: ir.Value, stop: ir.Value, step: int = 1) -> Iterator[ir.Value]:
        """`for i in range(start, stop, step)` over i64."""
        before = self.b.block
        head, body, done = (self.b.append_basic_block(n) for n in ("head", "body", "done"))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        index.add_incoming(start, before)
        self.b.cbranch(self.b.icmp_signed("<", index, stop), body, done)
        self.b.position_at_end(body)
        with self.scope():
            yield index
        index.add_incoming(self.b.add(index, I64(step)), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(done)

    def each_vector(self, size: int, run: Callable[[ir.Value, int], None], count: int = 1) -> None:
        """`run(at, width)` for each vector of `size` scalars, or for so many at a time: a loop, and
        what is left of it."""
        step = count * self.lanes
        rest = size % step
        if size > rest:
            with self.loop(I64(0), I64(size - rest), step) as at:
                run(at, step)
        if rest:
            with self.scope():
                run(I64(size - rest), rest)

    def as_it_stands(self) -> None:
        """The function that is being written runs once a call or once a task: LLVM leaves it as it
        is, which takes a tenth less time for a whole kernel."""
        for attribute in ("noinline", "optnone"):
            self.b.function.attributes.add(attribute)

    @contextlib.contextmanager
    def when(self, condition: ir.Value) -> Iterator[None]:
        with self.b.if_then(condition), self.scope():
            yield

    def smaller(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.b.select(self.b.icmp_signed(">", a, b), a, b)

    def index(self, array: ir.Value, at: ir.Value, dtype: np.dtype) -> ir.Value:
        """Entry `at` of an index array, as i64."""
        kind = ir.IntType(8 * dtype.itemsize)
        value = self.b.load(self.b.gep(array, [at], source_etype=kind), typ=kind)
        return value if kind == I64 else self.b.sext(value, I64)

    def call_local(self, name: str, emit: Callable[..., None], *arguments: ir.Value) -> None:
        """Call the function `name` of this module; `emit(emitter, *arguments)` is its code, which
        the first call makes."""
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(ir.VoidType(), [a.type for a in arguments])
            function = ir.Function(self.module, kind, name)
            function.linkage = "internal"
            builder = ir.IRBuilder(function.append_basic_block())
            emit(Emitter(self.module, builder, self.lanes), *function.args)
            builder.ret_void()
        self.b.call(function, arguments)

    def call_shared(self, name: str, emit: Callable[..., None], *arguments: ir.Value) -> None:
        """As `call_local`, of a function that kernels have in common: it is a part of its own, and
        compiled once. The name, with the lanes of a vector, says all that its code depends on."""
        name = f"{PART}{name}_{self.lanes}"
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(ir.VoidType(), [a.type for a in arguments])
            function = ir.Function(self.module, kind, name)
            if name not in PARTS:
                PARTS[name] = self._part(name, kind, emit)
        self.b.call(function, arguments)

    def _part(self, name: str, kind: ir.FunctionType, emit: Callable[..., None]) -> str:
        module = ir.Module(name)
        module.triple, module.data_layout = self.module.triple, self.module.data_layout
        function = ir.Function(module, kind, name)
        builder = ir.IRBuilder(function.append_basic_block())
        emit(Emitter(module, builder, self.lanes), *function.args)
        builder.ret_void()
        return str(module)

    # -- variables --------------------------------------------------------------------------

    def variable(self, like: Vec) -> tuple[ir.Value, ...]:
        """Stack places for the chunks of a value; LLVM turns them into registers."""
        with self.b.goto_entry_block():
            return tuple(self.b.alloca(c.type) for c in like.chunks)

    def stack(self, words: int, align: int = 8) -> ir.Value:
        """So many 8-byte words on the stack, as an opaque pointer (llvmlite types `alloca`s)."""
        with self.b.goto_entry_block():
            place = self.b.alloca(I64, words)
            place.align = align
            address = self.b.ptrtoint(place, I64)
            return self.b.inttoptr(address, PTR)

    def take_block(self, words: int) -> Block:
        """Memory on the stack, until it is given back: what lay there before is overwritten."""
        free = self._free.setdefault(self.b.function.name, [])
        fitting = [block for block in free if block.words >= words]
        if fitting:
            found = min(fitting, key=lambda block: block.words)
            free.remove(found)
        else:
            found = Block(self.stack(words, align=64), words)
        self._taken.append(found)
        return found

    @contextlib.contextmanager
    def taken_blocks(self) -> Iterator[list[Block]]:
        """The blocks that are taken inside."""
        self._taken = taken = []
        yield taken

    def give_back(self, block: Block) -> None:
        self._free[self.b.function.name].append(block)

    def assign(self, places: tuple[ir.Value, ...], vec: Vec) -> None:
        for place, chunk in zip(places, vec.chunks, strict=True):
            self.b.store(chunk, place)

    def value_of(self, places: tuple[ir.Value, ...], like: Vec) -> Vec:
        parts = zip(places, like.chunks, strict=True)
        return Vec(like.dtype, like.size, tuple(self.b.load(p, typ=c.type) for p, c in parts))
