"""Rules for primitives that act scalar by scalar.

A rule takes a `Site` and returns the values of the equation's outputs. Semantics are XLA's: max
and min propagate NaN, integer division by zero and over-long shifts are defined.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu.elementary import Elementary
from gnnjit.lower.cpu.vectors import (
    BF16,
    CONTRACT,
    Codegen,
    Vec,
    is_float,
    is_half,
    is_signed,
    mangle,
    register_type,
)


class Unsupported(Exception):
    """The kernel generator has no code for this; the message says for what."""


@dataclasses.dataclass(frozen=True)
class Site:
    """One equation being emitted. Shapes are those of the feature block that is being computed."""

    code: Codegen
    name: str
    params: dict[str, Any]
    inputs: list[Vec]
    shapes: list[tuple[int, ...]]
    out_dtypes: list[np.dtype]
    out_shapes: list[tuple[int, ...]]

    def aligned(self) -> list[Vec]:
        """The inputs of an elementwise primitive, axes of length 1 stretched to the output's."""
        (out,) = self.out_shapes
        return [
            v if v.size == 1 or shape == out else self.code.take([v], _stretched(shape, out))
            for v, shape in zip(self.inputs, self.shapes, strict=True)
        ]


def _stretched(shape: tuple[int, ...], out: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), out)


Rule = Callable[[Site], list[Vec]]
Chunk = Callable[..., ir.Value]
RULES: dict[str, Rule] = {}


def chunkwise(name: str) -> Callable[[Callable[[Codegen, np.dtype], Chunk]], Any]:
    """Register `make(code, operand dtype) -> function of chunks`."""

    def register(make: Callable[[Codegen, np.dtype], Chunk]) -> Any:
        def rule(site: Site) -> list[Vec]:
            fn = make(site.code, site.inputs[0].dtype)
            return [site.code.map(name, site.out_dtypes[0], fn, *site.aligned())]

        RULES[name] = rule
        return make

    return register


# -- arithmetic -----------------------------------------------------------------------------


def arithmetic(code: Codegen, kind: str, dtype: np.dtype) -> Chunk:
    """add, sub or mul."""
    if is_float(dtype):
        method = getattr(code.b, f"f{kind}")
        return lambda a, b: method(a, b, flags=CONTRACT)
    if dtype == np.bool_:
        return {"add": code.b.or_, "mul": code.b.and_, "sub": code.b.xor}[kind]
    return getattr(code.b, kind)


for _name in ("add", "sub", "mul"):
    chunkwise(_name)(lambda code, dtype, kind=_name: arithmetic(code, kind, dtype))
RULES["add_any"] = RULES["add"]


@chunkwise("square")
def _square(code: Codegen, dtype: np.dtype) -> Chunk:
    return lambda a: arithmetic(code, "mul", dtype)(a, a)


@chunkwise("neg")
def _neg(code: Codegen, dtype: np.dtype) -> Chunk:
    return code.b.fneg if is_float(dtype) else code.b.neg


@chunkwise("abs")
def _abs(code: Codegen, dtype: np.dtype) -> Chunk:
    if is_float(dtype):
        return lambda a: code.intrinsic("fabs", a)
    if not is_signed(dtype):
        return lambda a: a
    return lambda a: code.b.select(compare(code, "<", dtype)(a, code.like(a, 0)), code.b.neg(a), a)


@chunkwise("sign")
def _sign(code: Codegen, dtype: np.dtype) -> Chunk:
    def sign(a: ir.Value) -> ir.Value:
        zero, one = code.like(a, 0), code.like(a, 1)
        above = code.b.select(compare(code, ">", dtype)(a, zero), one, a)
        if not is_float(dtype) and not is_signed(dtype):
            return above
        return code.b.select(compare(code, "<", dtype)(a, zero), code.like(a, -1), above)

    return sign


@chunkwise("div")
def _div(code: Codegen, dtype: np.dtype) -> Chunk:
    if is_float(dtype):
        return code.b.fdiv
    return lambda a, b: _divide(code, dtype, a, b)[0]


@chunkwise("rem")
def _rem(code: Codegen, dtype: np.dtype) -> Chunk:
    if is_float(dtype):
        return code.b.frem
    return lambda a, b: _divide(code, dtype, a, b)[1]


def _divide(code: Codegen, dtype: np.dtype, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Quotient and remainder; x / 0 = -1, x % 0 = x, and the lowest number / -1 = itself."""
    builder, one, zero = code.b, code.like(a, 1), code.like(a, 0)
    by_zero = builder.icmp_unsigned("==", b, zero)
    if not is_signed(dtype):
        safe = builder.select(by_zero, one, b)
        quotient, rest = builder.udiv(a, safe), builder.urem(a, safe)
    else:
        by_minus = builder.icmp_signed("==", b, code.like(a, -1))
        safe = builder.select(builder.or_(by_zero, by_minus), one, b)
        quotient = builder.select(by_minus, builder.neg(a), builder.sdiv(a, safe))
        rest = builder.select(by_minus, zero, builder.srem(a, safe))
    return builder.select(by_zero, code.like(a, -1), quotient), builder.select(by_zero, a, rest)


def extremum(code: Codegen, kind: str, dtype: np.dtype) -> Chunk:
    """max or min of two chunks; NaN wins."""
    relation = ">" if kind == "max" else "<"

    def pick(a: ir.Value, b: ir.Value) -> ir.Value:
        best = code.b.select(compare(code, relation, dtype)(a, b), a, b)
        if not is_float(dtype):
            return best
        return code.b.select(code.b.fcmp_unordered("uno", a, a), a, best)

    return pick


for _name in ("max", "min"):
    chunkwise(_name)(lambda code, dtype, kind=_name: extremum(code, kind, dtype))


@chunkwise("clamp")
def _clamp(code: Codegen, dtype: np.dtype) -> Chunk:
    high, low = extremum(code, "max", dtype), extremum(code, "min", dtype)
    return lambda least, x, most: low(high(x, least), most)


# -- comparison and selection ---------------------------------------------------------------


def compare(code: Codegen, relation: str, dtype: np.dtype) -> Chunk:
    """A comparison; with NaN only `!=` holds."""
    if is_float(dtype):
        method = code.b.fcmp_unordered if relation == "!=" else code.b.fcmp_ordered
    else:
        method = code.b.icmp_signed if is_signed(dtype) else code.b.icmp_unsigned
    return lambda a, b: method(relation, a, b)


def _comparison(name: str, relation: str) -> None:
    def rule(site: Site) -> list[Vec]:
        """16-bit floats are rounded first: gradients of max compare with a *stored* maximum."""
        fn = compare(site.code, relation, site.inputs[0].dtype)
        rounded = [site.code.rounded(v) for v in site.aligned()]
        return [site.code.map(name, site.out_dtypes[0], fn, *rounded)]

    RULES[name] = rule


for _name, _relation in dict(eq="==", ne="!=", lt="<", le="<=", gt=">", ge=">=").items():
    _comparison(_name, _relation)


@chunkwise("is_finite")
def _is_finite(code: Codegen, dtype: np.dtype) -> Chunk:
    return lambda a: code.b.fcmp_ordered("<", code.intrinsic("fabs", a), code.like(a, math.inf))


def _select_n(site: Site) -> list[Vec]:
    code, (which, *cases) = site.code, site.aligned()
    if which.dtype == np.bool_:
        def two(w: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
            return code.b.select(w, b, a)

        return [code.map("select", cases[0].dtype, two, which, *cases)]
    out = cases[-1]
    for number, case in reversed(list(enumerate(cases[:-1]))):
        def choose(w: ir.Value, a: ir.Value, b: ir.Value, number: int = number) -> ir.Value:
            return code.b.select(code.b.icmp_signed("<=", w, code.like(w, number)), a, b)

        out = code.map(("choose", number), case.dtype, choose, which, case, out)
    return [out]


RULES["select_n"] = _select_n


# -- bits -----------------------------------------------------------------------------------

for _name in ("and", "or", "xor"):
    chunkwise(_name)(
        lambda code, _, kind=_name: getattr(code.b, kind if kind == "xor" else f"{kind}_")
    )


@chunkwise("not")
def _not(code: Codegen, _: np.dtype) -> Chunk:
    return code.b.not_


def _shift(name: str, method: str) -> None:
    @chunkwise(name)
    def make(code: Codegen, dtype: np.dtype) -> Chunk:
        last = 8 * dtype.itemsize - 1

        def shift(a: ir.Value, by: ir.Value) -> ir.Value:
            long = code.b.icmp_unsigned(">", by, code.like(by, last))
            out = getattr(code.b, method)(a, code.b.select(long, code.like(by, last), by))
            return out if method == "ashr" else code.b.select(long, code.like(a, 0), out)

        return shift


for _name, _method in dict(
    shift_left="shl", shift_right_logical="lshr", shift_right_arithmetic="ashr"
).items():
    _shift(_name, _method)


# -- functions ------------------------------------------------------------------------------


def _intrinsic(name: str, llvm: str) -> None:
    @chunkwise(name)
    def make(code: Codegen, _: np.dtype) -> Chunk:
        return lambda a: code.intrinsic(llvm, a)


for _name in ("floor", "ceil", "sqrt"):
    _intrinsic(_name, _name)


def _elementary(name: str) -> None:
    """float32 by our own code, float64 by libm."""

    @chunkwise(name)
    def make(code: Codegen, dtype: np.dtype) -> Chunk:
        if dtype != np.float64:
            return getattr(Elementary(code), name)
        return lambda a: code.scalarised(name, a)


for _name in ("exp", "exp2", "expm1", "log", "log1p", "tanh", "erf"):
    _elementary(_name)


@chunkwise("logistic")
def _logistic(code: Codegen, dtype: np.dtype) -> Chunk:
    if dtype != np.float64:
        return Elementary(code).logistic

    def logistic(a: ir.Value) -> ir.Value:
        e = code.scalarised("exp", code.b.fneg(a))
        return code.b.fdiv(code.like(a, 1.0), code.b.fadd(code.like(a, 1.0), e))

    return logistic


def _libm(name: str, function: str) -> None:
    @chunkwise(name)
    def make(code: Codegen, _: np.dtype) -> Chunk:
        return lambda *args: code.scalarised(function, *args)


for _name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh",
              "atanh", "cbrt", "erfc", "atan2"):
    _libm(_name, _name)


@chunkwise("rsqrt")
def _rsqrt(code: Codegen, _: np.dtype) -> Chunk:
    return lambda a: code.b.fdiv(code.like(a, 1.0), code.intrinsic("sqrt", a))


def _round(site: Site) -> list[Vec]:
    kind = "roundeven" if int(site.params["rounding_method"]) == 1 else "round"
    one = lambda a: site.code.intrinsic(kind, a)  # noqa: E731
    return [site.code.map(kind, site.out_dtypes[0], one, *site.inputs)]


RULES["round"] = _round


def _integer_pow(site: Site) -> list[Vec]:
    code, y, dtype = site.code, site.params["y"], site.inputs[0].dtype
    if y < 0 and not is_float(dtype):
        raise Unsupported("integer_pow with a negative exponent of an integer")
    times = arithmetic(code, "mul", dtype)

    def power(a: ir.Value) -> ir.Value:
        out, base, left = None, a, abs(y)
        while left:
            if left & 1:
                out = base if out is None else times(out, base)
            left >>= 1
            base = times(base, base) if left else base
        out = code.like(a, 1) if out is None else out
        return code.b.fdiv(code.like(a, 1.0), out) if y < 0 else out

    return [code.map(("integer_pow", y), site.out_dtypes[0], power, *site.inputs)]


RULES["integer_pow"] = _integer_pow


def _pow(site: Site) -> list[Vec]:
    code, (x, y) = site.code, site.aligned()
    if not is_float(x.dtype):
        raise Unsupported(f"pow of {x.dtype}")
    y = convert(code, y, x.dtype)
    return [code.map("pow", x.dtype, lambda a, b: code.scalarised("pow", a, b), x, y)]


RULES["pow"] = _pow


# -- conversion -----------------------------------------------------------------------------


def convert(code: Codegen, vec: Vec, dtype: np.dtype) -> Vec:
    """`convert_element_type`: floats to integers saturate, NaN becomes 0."""
    if vec.dtype == dtype:
        return vec
    out = code.map(("convert", vec.dtype.name), dtype, lambda a: _converted(code, vec, dtype, a), vec)
    return code.rounded(out) if is_half(dtype) else out


def _converted(code: Codegen, vec: Vec, dtype: np.dtype, a: ir.Value) -> ir.Value:
    b, source, wide = code.b, vec.dtype, ir.VectorType(register_type(dtype), a.type.count)
    if dtype == np.bool_:
        return compare(code, "!=", source)(a, code.like(a, 0))
    if is_float(source) and is_float(dtype):
        if a.type == wide:
            return a
        return b.fpext(a, wide) if source != np.float64 else b.fptrunc(a, wide)
    if is_float(source):
        name = "fptosi" if is_signed(dtype) else "fptoui"
        return code.call(f"llvm.{name}.sat.{mangle(wide)}.{mangle(a.type)}", wide, [a])
    if is_float(dtype):
        return b.sitofp(a, wide) if is_signed(source) else b.uitofp(a, wide)
    if a.type.element.width == wide.element.width:
        return a
    if a.type.element.width > wide.element.width:
        return b.trunc(a, wide)
    return b.sext(a, wide) if is_signed(source) else b.zext(a, wide)


RULES["convert_element_type"] = lambda site: [
    convert(site.code, site.inputs[0], site.out_dtypes[0])
]


def _bitcast(site: Site) -> list[Vec]:
    code, (x,), dtype = site.code, site.inputs, site.out_dtypes[0]
    odd = {np.dtype(np.bool_), np.dtype(np.float16), BF16} & {x.dtype, dtype}
    if odd or x.dtype.itemsize != dtype.itemsize:
        raise Unsupported(f"bitcast_convert_type from {x.dtype} to {dtype}")

    def cast(a: ir.Value) -> ir.Value:
        return code.b.bitcast(a, ir.VectorType(register_type(dtype), a.type.count))

    return [code.map(("bitcast", x.dtype.name), dtype, cast, x)]


RULES["bitcast_convert_type"] = _bitcast
for _name in ("copy", "copy_p", "optimization_barrier", "stop_gradient"):
    RULES[_name] = lambda site: list(site.inputs)

ELEMENTWISE = frozenset(RULES)
"""Primitives that a block of features can be computed with on its own."""
