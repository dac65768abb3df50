"""Triton IR executed in NumPy for every program of a launch, with every access to memory checked.

Pallas' own interpreter runs what was traced and clamps addresses; this one runs what is emitted.
A value is an array `[programs, *shape]`, or `[1, *shape]` where it is the same in all programs.
Loops run for the programs that have not left them. What a GPU leaves undefined raises a `Fault`:

- a load or store outside its buffer;
- a load of an element that nothing has written;
- an element written twice in a launch, by two programs or two lanes;
- an element that one program reads and another one of the launch writes;
- a store into an operand; any atomic operation.

Floats behave as on the hardware: `maxnumf` drops NaN and `maximumf` keeps it. With `tf32`, products
round their float32 operands to 10 bits of mantissa where the IR allows it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .memory import SEVERAL, Buffer, Fault, poison
from .module import Module, Op

SCALARS = 1 << 20
"""Entries of the widest value, over the programs that run at once."""


# ------------------------------------------------------------------------------------- execution


@dataclasses.dataclass(frozen=True)
class Pointers:
    """Addresses of elements of one buffer, `int64[programs, *shape]`."""

    buffer: Buffer
    at: np.ndarray
    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.at.shape

    def map(self, fn: Callable[[np.ndarray], np.ndarray]) -> Pointers:
        return dataclasses.replace(self, at=fn(self.at))


def _map(x: Any, fn: Callable[[np.ndarray], np.ndarray]) -> Any:
    return x.map(fn) if isinstance(x, Pointers) else fn(x)


class _Frame:
    """The values of some programs; those of `outer` are there, of these programs."""

    def __init__(self, programs: np.ndarray, tf32: bool, outer: Any = None, rows: Any = None):
        self.programs, self.tf32, self.outer, self.rows = programs, tf32, outer, rows
        self.values: dict[int, Any] = {}

    def __getitem__(self, number: int) -> Any:
        if number not in self.values:
            found = self.outer[number]
            if self.rows is not None and found.shape[0] != 1:
                found = _map(found, lambda x: x[self.rows])
            self.values[number] = found
        return self.values[number]

    def only(self, rows: np.ndarray) -> _Frame:
        return _Frame(self.programs[rows], self.tf32, self, rows)

    def run(self, ops: Sequence[Op]) -> list[Any]:
        """What the last operation gives back."""
        for op in ops:
            args = [self[i] for i in op.inputs]
            if op.name in RETURNS:
                return args
            if op.name not in RULES:
                raise Fault(f"{op.name} has no rule here")
            found = RULES[op.name](self, op, *args)
            self.values.update(zip(op.outputs, found, strict=True))
        return []


RETURNS = ("tt.return", "scf.yield", "tt.reduce.return", "tt.scan.return")
Rule = Callable[..., Sequence[Any]]
RULES: dict[str, Rule] = {}


def launch(module: Module, buffers: Sequence[Buffer], programs: Any, *, tf32: bool = False) -> None:
    """Run the programs of these numbers; the buffers are the arguments, in order."""
    assert len(buffers) == len(module.arguments), (len(buffers), len(module.arguments))
    programs = np.asarray(programs)
    at_once = max(1, SCALARS // module.widest)
    with np.errstate(all="ignore"):
        for first in range(0, len(programs), at_once):
            frame = _Frame(programs[first : first + at_once], tf32)
            for number, buffer in zip(module.arguments, buffers, strict=True):
                frame.values[number] = Pointers(buffer, np.zeros(1, np.int64), buffer.dtype)
            frame.run(module.body)


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


# ---------------------------------------------------------------------------------- elementwise


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotients of integers, towards zero."""
    b = np.where(b == 0, 1, b).astype(b.dtype)
    whole = a // b
    return (whole + ((whole < 0) & (whole * b != a))).astype(a.dtype)


def _unsigned(fn: Any) -> Any:
    def on_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        kind = f"u{a.dtype.itemsize}"
        return fn(a.view(kind), b.view(kind)).view(a.dtype)

    return on_bits


def _shift(fn: Any) -> Any:
    """By as many bits as there are, or more: what the hardware does, unlike C."""

    def on_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        bits = 8 * a.dtype.itemsize
        if fn is np.right_shift and a.dtype.kind == "i":
            return fn(a, np.minimum(b, bits - 1))
        return np.where((b < 0) | (b >= bits), np.zeros((), a.dtype), fn(a, b)).astype(a.dtype)

    return on_bits


def _erf_inv(x: np.ndarray) -> np.ndarray:
    from scipy.special import erfinv

    return erfinv(x)


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) * b + c).astype(a.dtype)


ELEMENTWISE: dict[str, Any] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply,
    "arith.divsi": _truncated, "arith.remsi": lambda a, b: a - _truncated(a, b) * b,
    "arith.divui": _unsigned(np.floor_divide), "arith.remui": _unsigned(np.remainder),
    "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor,
    "arith.shli": _shift(np.left_shift), "arith.shrsi": _shift(np.right_shift),
    "arith.shrui": _unsigned(_shift(np.right_shift)),
    "arith.maxsi": np.maximum, "arith.minsi": np.minimum,
    "arith.maxui": _unsigned(np.maximum), "arith.minui": _unsigned(np.minimum),
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply,
    "arith.divf": np.divide, "arith.remf": np.fmod, "arith.negf": np.negative,
    "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin,
    "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
    "arith.select": lambda c, a, b: np.where(c, a, b),
    "math.absf": np.abs, "math.absi": np.abs, "math.exp": np.exp, "math.exp2": np.exp2,
    "math.log": np.log, "math.log2": np.log2, "math.log1p": np.log1p, "math.sqrt": np.sqrt,
    "math.rsqrt": lambda x: 1 / np.sqrt(x), "math.sin": np.sin, "math.cos": np.cos,
    "math.tanh": np.tanh, "math.floor": np.floor, "math.ceil": np.ceil, "math.fma": _fma,
}  # fmt: skip

LIBRARY: dict[str, Any] = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh, "erfinv": _erf_inv, "exp": np.exp,
    "exp2": np.exp2, "expm1": np.expm1, "fabs": np.abs, "floor": np.floor, "fmod": np.fmod,
    "log": np.log, "log1p": np.log1p, "log2": np.log2, "nextafter": np.nextafter, "pow": np.power,
    "rint": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "sinh": np.sinh,
    "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "trunc": np.trunc, "round": np.round,
}  # fmt: skip
"""CUDA's mathematical functions, without the `f` of float32."""


def _elementwise(fn: Any) -> Rule:
    def run(frame: _Frame, op: Op, *args: Any) -> Sequence[Any]:
        return [np.asarray(fn(*args)).astype(op.types[0].dtype, copy=False)]

    return run


RULES.update({name: _elementwise(fn) for name, fn in ELEMENTWISE.items()})


@rule("tt.extern_elementwise")
def _library(frame: _Frame, op: Op, *args: Any) -> Sequence[Any]:
    name = op.attributes["symbol"].removeprefix("__nv_")
    if name == "powif":
        return [np.power(args[0], args[1].astype(args[0].dtype))]
    fn = LIBRARY[name] if name in LIBRARY else LIBRARY[name.removesuffix("f")]
    return [fn(*args).astype(op.types[0].dtype, copy=False)]


_ORDERED = [np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal]
_INTEGER = [np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal]


@rule("arith.cmpi")
def _compare(frame: _Frame, op: Op, a: Any, b: Any) -> Sequence[Any]:
    number = op.attributes["predicate"]
    if number < 6:
        return [_INTEGER[number](a, b)]
    kind = f"u{a.dtype.itemsize}"
    return [_INTEGER[number - 4](a.view(kind), b.view(kind))]


@rule("arith.cmpf")
def _compare_floats(frame: _Frame, op: Op, a: Any, b: Any) -> Sequence[Any]:
    number, unordered = op.attributes["predicate"], np.isnan(a) | np.isnan(b)
    if number in (0, 15):
        return [np.full(unordered.shape, number == 15)]
    if number in (7, 14):
        return [unordered if number == 14 else ~unordered]
    if number < 7:
        return [_ORDERED[number - 1](a, b) & ~unordered]
    return [_ORDERED[number - 8](a, b) | unordered]


@rule("arith.extf", "arith.truncf", "arith.sitofp", "arith.fptosi", "arith.extsi", "arith.trunci")
def _convert(frame: _Frame, op: Op, x: Any) -> Sequence[Any]:
    if x.dtype == np.bool_ and op.name in ("arith.sitofp", "arith.extsi"):
        return [-x.astype(op.types[0].dtype)]
    if op.types[0].dtype == np.bool_:
        return [(x & 1).astype(np.bool_)]
    return [x.astype(op.types[0].dtype)]


@rule("arith.extui", "arith.uitofp", "arith.fptoui")
def _convert_unsigned(frame: _Frame, op: Op, x: Any) -> Sequence[Any]:
    if op.name == "arith.fptoui":
        return [x.astype(f"u{op.types[0].dtype.itemsize}").view(op.types[0].dtype)]
    x = x if x.dtype == np.bool_ else x.view(f"u{x.dtype.itemsize}")
    return [x.astype(op.types[0].dtype)]


@rule("arith.bitcast", "tt.bitcast")
def _bitcast(frame: _Frame, op: Op, x: Any) -> Sequence[Any]:
    dtype = op.types[0].dtype
    if isinstance(x, Pointers):
        if dtype.itemsize != x.buffer.dtype.itemsize:
            raise Fault(f"{x.buffer.name}: pointers to {x.buffer.dtype} cast to {dtype}")
        return [dataclasses.replace(x, dtype=dtype)]
    return [np.ascontiguousarray(x).view(dtype)]


# --------------------------------------------------------------------------------------- shapes


@rule("arith.constant")
def _constant(frame: _Frame, op: Op) -> Sequence[Any]:
    value, t = op.attributes["value"], op.types[0]
    if isinstance(value, str):
        value = {"true": True, "false": False}[value]
    if t.dtype.kind == "i":
        value = (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)
    return [np.full((1, *t.shape), value, t.dtype)]


@rule("tt.get_program_id")
def _program_id(frame: _Frame, op: Op) -> Sequence[Any]:
    assert op.attributes["axis"] == 0
    return [frame.programs.astype(np.int32)]


@rule("tt.make_range")
def _range(frame: _Frame, op: Op) -> Sequence[Any]:
    return [np.arange(op.attributes["start"], op.attributes["end"], dtype=np.int32)[None]]


@rule("tt.splat", "tt.broadcast")
def _broadcast(frame: _Frame, op: Op, x: Any) -> Sequence[Any]:
    shape = op.types[0].shape

    def spread(a: np.ndarray) -> np.ndarray:
        a = a.reshape(a.shape[0], *[1] * len(shape)) if a.ndim == 1 else a
        return np.broadcast_to(a, (a.shape[0], *shape))

    return [_map(x, spread)]


@rule("tt.expand_dims")
def _expand_dims(frame: _Frame, op: Op, x: Any) -> Sequence[Any]:
    return [_map(x, lambda a: np.expand_dims(a, op.attributes["axis"] + 1))]


@rule("tt.reshape")
def _reshape(frame: _Frame, op: Op, x: Any) -> Sequence[Any]:
    return [_map(x, lambda a: a.reshape(a.shape[0], *op.types[0].shape))]


@rule("tt.trans")
def _transpose(frame: _Frame, op: Op, x: Any) -> Sequence[Any]:
    return [_map(x, lambda a: a.transpose(0, *(k + 1 for k in op.attributes["order"])))]


# ------------------------------------------------------------------- reductions, products, loops


@rule("tt.reduce")
def _reduce(frame: _Frame, op: Op, *args: Any) -> Sequence[Any]:
    """By halves; sizes are powers of two."""
    ((given, body),) = op.blocks
    axis, some = op.attributes["axis"] + 1, list(args)
    while (size := some[0].shape[axis]) > 1:
        halves = [h for part in (0, 1) for h in (np.split(x, 2, axis)[part] for x in some)]
        assert size % 2 == 0
        inner = _Frame(frame.programs, frame.tf32, frame)
        inner.values.update(zip(given, halves, strict=True))
        some = inner.run(body)
    return [x.squeeze(axis) for x in some]


@rule("tt.scan")
def _scan(frame: _Frame, op: Op, *args: Any) -> Sequence[Any]:
    ((given, body),) = op.blocks
    axis = op.attributes["axis"] + 1
    backwards = op.attributes["reverse"] not in (0, False, "false")
    places = range(args[0].shape[axis])
    state, found = None, []
    for k in reversed(places) if backwards else places:
        here = [x.take(k, axis) for x in args]
        if state is not None:
            inner = _Frame(frame.programs, frame.tf32, frame)
            inner.values.update(zip(given, [*state, *here], strict=True))
            here = inner.run(body)
        state = here
        found.append(here)
    found = found[::-1] if backwards else found
    return [np.stack(list(x), axis) for x in zip(*found, strict=True)]


def rounded_to_tf32(x: np.ndarray) -> np.ndarray:
    """To nearest, ties to even: 13 bits of float32's mantissa are lost."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    near = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & ~np.uint32(0x1FFF)
    return np.where(np.isfinite(x), near.view(np.float32), x)


TF32 = 0
"""The number of this precision among Triton's input precisions."""


@rule("tt.dot")
def _dot(frame: _Frame, op: Op, a: Any, b: Any, c: Any) -> Sequence[Any]:
    if frame.tf32 and a.dtype == np.float32 and op.attributes.get("inputPrecision", TF32) == TF32:
        a, b = rounded_to_tf32(a), rounded_to_tf32(b)
    out = np.matmul(a.astype(c.dtype), b.astype(c.dtype)) + c
    return [out.astype(op.types[0].dtype)]


@rule("scf.for")
def _for(frame: _Frame, op: Op, low: Any, high: Any, step: Any, *state: Any) -> Sequence[Any]:
    ((given, body),) = op.blocks
    count = len(frame.programs)
    trips = np.broadcast_to(-((low.astype(np.int64) - high) // step), (count,))
    carried: list[Any] = [np.broadcast_to(x, (count, *x.shape[1:])) for x in state]
    inner, k = None, 0
    while (active := np.flatnonzero(trips > k)).size:
        if inner is None or len(inner.programs) != len(active):
            inner = frame.only(active)
            inner.run(op.fixed)
        place = np.broadcast_to(low + k * step, (count,))[active].astype(low.dtype)
        now = [place, *(x[active] for x in carried)]
        inner.values.update(zip(given, now, strict=True))
        for i, new in enumerate(inner.run(body)):
            new = np.broadcast_to(new, (len(active), *new.shape[1:]))
            if len(active) < count:
                whole = np.array(carried[i])
                whole[active] = new
                new = whole
            carried[i] = new
        k += 1
    return carried


# ---------------------------------------------------------------------------------------- memory


@rule("tt.addptr")
def _add_pointers(frame: _Frame, op: Op, pointers: Any, offset: Any) -> Sequence[Any]:
    return [pointers.map(lambda at: at + offset.astype(np.int64))]


@rule("tt.load")
def _load(frame: _Frame, op: Op, pointers: Any, mask: Any = None, other: Any = None) -> Any:
    at, program = _places(frame, pointers, () if mask is None else (mask,))
    dtype = pointers.dtype
    fill = poison(dtype) if other is None else other
    out = np.array(np.broadcast_to(fill, at.shape), dtype)
    keep = np.broadcast_to(True if mask is None else mask, at.shape)
    out[keep] = pointers.buffer.load(at[keep], program[keep]).view(dtype)
    return [out]


@rule("tt.store")
def _store(frame: _Frame, op: Op, pointers: Any, value: Any, mask: Any = None) -> Sequence[Any]:
    every = np.broadcast_to(frame.programs, (len(frame.programs),))
    at, program = _places(frame, pointers, (value, every.reshape(-1, *[1] * (value.ndim - 1))))
    keep = np.broadcast_to(True if mask is None else mask, at.shape)
    value = np.broadcast_to(value, at.shape)[keep].view(pointers.buffer.dtype)
    pointers.buffer.store(at[keep], program[keep], value)
    return []


def _places(frame: _Frame, pointers: Any, others: tuple[Any, ...]) -> tuple[Any, Any]:
    """Addresses and the programs that they are of, `SEVERAL` where those of all are the same."""
    shape = np.broadcast_shapes(pointers.shape, *(x.shape for x in others))
    same = shape[0] == 1 and len(frame.programs) > 1
    program = np.full(1, SEVERAL) if same else frame.programs
    program = program.reshape(-1, *[1] * (len(shape) - 1))
    return np.broadcast_to(pointers.at, shape), np.broadcast_to(program, shape)


def _atomic(frame: _Frame, op: Op, *args: Any) -> Sequence[Any]:
    raise Fault(f"{op.name}: the order of atomic operations is not fixed")


RULES.update(dict.fromkeys(("tt.atomic_rmw", "tt.atomic_cas"), _atomic))
