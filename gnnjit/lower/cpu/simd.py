"""Per-element values as lists of SIMD vectors, and the code that moves their lanes about.

A value of `n` scalars is `ceil(n / lanes)` LLVM vectors: scalar `i` is lane `i % lanes` of chunk
`i // lanes`. Only the last chunk may be shorter, and it has exactly the lanes it needs, so that
no lane ever holds a number that is not part of the value. Every dtype uses the same number of
lanes: comparisons, conversions and selects then never regroup.

16-bit floats live in registers as float32 and are rounded when they are stored, compared or
converted explicitly, not after each operation.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64, PTR = ir.HalfType(), ir.FloatType(), ir.DoubleType(), ir.PointerType()
BF16 = np.dtype(ml_dtypes.bfloat16)
CONTRACT = ("contract",)

LINE = 64
"""Bytes of a cache line."""

Chunk = Callable[..., ir.Value]
"""A function of chunks of one width."""

DTYPES = {
    np.dtype(d)
    for d in (
        "float16",
        "float32",
        "float64",
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    )
} | {BF16}


def is_float(dtype: np.dtype) -> bool:
    return dtype == BF16 or dtype.kind == "f"


def is_half(dtype: np.dtype) -> bool:
    return dtype == BF16 or dtype == np.float16


def is_signed(dtype: np.dtype) -> bool:
    return dtype.kind == "i"


def register_type(dtype: np.dtype) -> ir.Type:
    """The LLVM type of one lane."""
    if is_float(dtype):
        return F64 if dtype == np.float64 else F32
    return I1 if dtype == np.bool_ else ir.IntType(8 * dtype.itemsize)


def memory_type(dtype: np.dtype) -> ir.Type:
    """The LLVM type of one scalar in an XLA buffer."""
    if is_half(dtype):
        return F16 if dtype == np.float16 else I16
    return I8 if dtype == np.bool_ else register_type(dtype)


@dataclasses.dataclass(frozen=True)
class Vec:
    """The scalars of one per-element value."""

    dtype: np.dtype
    size: int
    chunks: tuple[ir.Value, ...]


class Codegen:
    """An LLVM builder that knows chunks. Code common to all kernels of the package."""

    def __init__(self, module: ir.Module, builder: ir.IRBuilder, lanes: int):
        self.module, self.b, self.lanes = module, builder, lanes
        self._memo: list[dict[Any, tuple[Any, Any]]] = [{}]

    # -- scopes -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Code emitted inside does not dominate what follows: forget its shared values."""
        self._memo.append({})
        yield
        self._memo.pop()

    def once(self, key: tuple, operands: Sequence[Any], make: Callable[[], Any]) -> Any:
        """What `make()` returns; it runs once for a key and the same (identical) operands."""
        full = (key, tuple(map(id, operands)))
        for memo in self._memo:
            if full in memo:
                return memo[full][1]
        made = make()
        self._memo[-1][full] = (operands, made)  # keeps the operands alive: ids stay unique
        return made

    # -- constants and calls ----------------------------------------------------------------

    def const(self, scalar: ir.Type, value: Any, width: int) -> ir.Constant:
        return ir.Constant(ir.VectorType(scalar, width), [ir.Constant(scalar, value)] * width)

    def like(self, chunk: ir.Value, value: Any) -> ir.Constant:
        """`value` in every lane, of the type of `chunk`."""
        return self.const(chunk.type.element, value, chunk.type.count)

    def literal(self, dtype: np.dtype, value: Any, size: int = 1) -> Vec:
        number = float(value) if is_float(dtype) else int(value)
        parts = [self.const(register_type(dtype), number, w) for w in self.widths(size)]
        return Vec(dtype, size, tuple(parts))

    def call(self, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
        """Call an external function or an intrinsic by its full name."""
        known = self.module.globals.get(name)
        if known is None:
            signature = ir.FunctionType(result, [a.type for a in args])
            known = ir.Function(self.module, signature, name)
        return self.b.call(known, args)

    def intrinsic(self, name: str, *args: ir.Value) -> ir.Value:
        """An overloaded intrinsic whose result has the type of the first operand."""
        return self.call(f"llvm.{name}.{mangle(args[0].type)}", args[0].type, args)

    def scalarised(self, name: str, *args: ir.Value) -> ir.Value:
        """A libm function, lane by lane."""
        vector = args[0].type
        name = name if vector.element == F64 else name + "f"
        out: ir.Value = ir.Constant(vector, ir.Undefined)
        for lane in range(vector.count):
            at = I32(lane)
            picked = [self.b.extract_element(a, at) for a in args]
            out = self.b.insert_element(out, self.call(name, vector.element, picked), at)
        return out

    # -- layout -----------------------------------------------------------------------------

    def widths(self, size: int) -> list[int]:
        full, rest = divmod(size, self.lanes)
        return [self.lanes] * full + ([rest] if rest else [])

    def splat(self, chunk: ir.Value, lane: int, width: int) -> ir.Value:
        return self.assemble([(chunk, lane)] * width)

    def assemble(self, picks: Sequence[tuple[ir.Value, int]]) -> ir.Value:
        """A chunk whose lane `i` is lane `picks[i][1]` of chunk `picks[i][0]`."""
        chunks = list({id(c): c for c, _ in picks}.values())
        lanes = tuple((next(i for i, c in enumerate(chunks) if c is d), n) for d, n in picks)
        return self.once(("assemble", lanes), chunks, lambda: self._assemble(chunks, lanes))

    def _assemble(self, chunks: list[ir.Value], lanes: tuple[tuple[int, int], ...]) -> ir.Value:
        width = len(lanes)
        first = chunks[0]
        if len(chunks) == 1:
            if [n for _, n in lanes] == list(range(first.type.count)):
                return first
            return self._shuffle(first, first, [n for _, n in lanes])
        if len(chunks) == 2 and chunks[1].type == first.type:
            both = [n + c * first.type.count for c, n in lanes]
            return self._shuffle(first, chunks[1], both)
        out = None
        for number, chunk in enumerate(chunks):
            part = self._shuffle(chunk, chunk, [n if c == number else 0 for c, n in lanes])
            mask = [i + width * (c == number) for i, (c, _) in enumerate(lanes)]
            out = part if out is None else self._shuffle(out, part, mask)
        assert out is not None
        return out

    def _shuffle(self, a: ir.Value, b: ir.Value, mask: list[int]) -> ir.Value:
        lanes = ir.Constant(ir.VectorType(I32, len(mask)), [I32(int(m)) for m in mask])
        return self.b.shuffle_vector(a, b, lanes)

    def take(self, sources: Sequence[Vec], index: np.ndarray) -> Vec:
        """The scalars `index` (any shape) of the concatenation of `sources`."""
        flat = np.asarray(index).ravel()
        starts = np.cumsum([0] + [s.size for s in sources])
        which = np.searchsorted(starts, flat, side="right") - 1
        local = flat - starts[which]
        picks = [
            (sources[w].chunks[n // self.lanes], n % self.lanes)
            for w, n in zip(which.tolist(), local.tolist(), strict=True)
        ]
        parts = [picks[k : k + self.lanes] for k in range(0, len(picks), self.lanes)]
        return Vec(sources[0].dtype, flat.size, tuple(map(self.assemble, parts)))

    def spread(self, vec: Vec, size: int) -> Vec:
        """A single scalar as `size` equal ones; other sizes are left alone."""
        if vec.size == size:
            return vec
        assert vec.size == 1, (vec.size, size)
        return self.take([vec], np.zeros(size, np.int64))

    def map(self, key: Any, dtype: np.dtype, fn: Callable[..., ir.Value], *vecs: Vec) -> Vec:
        """`fn` chunk by chunk; single scalars are spread. `key` names `fn` for sharing."""
        size = max((v.size for v in vecs), key=lambda n: n != 1 and n + 2)
        spread = [self.spread(v, size) for v in vecs]
        full = ("map", key, dtype.name, *(v.dtype.name for v in vecs))
        chunks = [
            self.once(full, parts, lambda parts=parts: fn(*parts))
            for parts in zip(*(v.chunks for v in spread), strict=True)
        ]
        return Vec(dtype, size, tuple(chunks))

    def fold(self, combine: Callable[[Vec, Vec], Vec], vec: Vec, groups: np.ndarray) -> Vec:
        """Combine the scalars `groups[j, :]` into scalar `j` by halving: a fixed order.

        The halves are laid out in memory order, so that they are whole chunks where possible.
        """
        rest: list[Vec] = []
        while groups.shape[1] > 1:
            if groups.shape[1] % 2:
                rest.append(self.take([vec], groups[:, -1]))
                groups = groups[:, :-1]
            low, high = np.split(groups, 2, axis=1)
            order = np.argsort(low, axis=None, kind="stable")
            vec = combine(
                self.take([vec], low.ravel()[order]), self.take([vec], high.ravel()[order])
            )
            position = np.empty_like(order)
            position[order] = np.arange(order.size)
            groups = position.reshape(low.shape)
        out = self.take([vec], groups[:, 0])
        for other in rest:
            out = combine(out, other)
        return out

    # -- memory formats -------------------------------------------------------------------

    def widen(self, raw: ir.Value, dtype: np.dtype) -> ir.Value:
        width = raw.type.count
        if dtype == np.bool_:
            return self.b.icmp_unsigned("!=", raw, self.like(raw, 0))
        if dtype == np.float16:
            return self.b.fpext(raw, ir.VectorType(F32, width))
        if dtype == BF16:
            wide = self.b.zext(raw, ir.VectorType(I32, width))
            wide = self.b.shl(wide, self.like(wide, 16))
            return self.b.bitcast(wide, ir.VectorType(F32, width))
        return raw

    def narrow(self, chunk: ir.Value, dtype: np.dtype) -> ir.Value:
        width = chunk.type.count
        if dtype == np.bool_:
            return self.b.zext(chunk, ir.VectorType(I8, width))
        if dtype == np.float16:
            return self.b.fptrunc(chunk, ir.VectorType(F16, width))
        if dtype == BF16:
            return self._to_bf16(chunk)
        return chunk

    def _to_bf16(self, chunk: ir.Value) -> ir.Value:
        """Round to nearest even; NaN stays a (quiet) NaN."""
        width = chunk.type.count
        bits = self.b.bitcast(chunk, ir.VectorType(I32, width))
        high = self.b.lshr(bits, self.like(bits, 16))
        odd = self.b.and_(high, self.like(bits, 1))
        bumped = self.b.add(bits, self.b.add(odd, self.like(bits, 0x7FFF)))
        rounded = self.b.lshr(bumped, self.like(bits, 16))
        quiet = self.b.or_(high, self.like(bits, 0x40))
        nan = self.b.fcmp_unordered("uno", chunk, chunk)
        return self.b.trunc(self.b.select(nan, quiet, rounded), ir.VectorType(I16, width))

    def rounded(self, vec: Vec) -> Vec:
        """A 16-bit float value rounded to its own precision (others as they are)."""
        if not is_half(vec.dtype):
            return vec

        def one(chunk: ir.Value) -> ir.Value:
            return self.widen(self.narrow(chunk, vec.dtype), vec.dtype)

        return self.map("rounded", vec.dtype, one, vec)


def mangle(kind: ir.Type) -> str:
    """LLVM's name of a type in overloaded intrinsics."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{mangle(kind.element)}"
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return {F16: "f16", F32: "f32", F64: "f64", PTR: "p0"}[kind]
