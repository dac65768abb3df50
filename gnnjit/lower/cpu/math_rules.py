"""Rules for elementary functions, rounding, powers and conversions of dtype."""

from __future__ import annotations

import functools
import math

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu.elementwise_rules import (
    RULES,
    CodeSite,
    arithmetic,
    chunkwise,
    compare,
)
from gnnjit.lower.cpu.simd import (
    BF16,
    Chunk,
    Codegen,
    Vec,
    is_float,
    is_half,
    is_signed,
    mangle,
    register_type,
)
from gnnjit.lower.cpu.transcendentals import Elementary
from gnnjit.lower.lowering import Unsupported

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


for _name in ("exp", "exp2", "expm1", "log", "log1p", "log2", "tanh", "erf", "erfc", "sin", "cos"):
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


for _name in (
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "cbrt",
    "atan2",
):
    _libm(_name, _name)


@chunkwise("one_minus_square")
def _one_minus_square(code: Codegen, dtype: np.dtype) -> Chunk:
    plus, minus, times = (arithmetic(code, kind, dtype) for kind in ("add", "sub", "mul"))
    return lambda a: times(plus(code.like(a, 1), a), minus(code.like(a, 1), a))


@chunkwise("rsqrt")
def _rsqrt(code: Codegen, _: np.dtype) -> Chunk:
    return lambda a: code.b.fdiv(code.like(a, 1.0), code.intrinsic("sqrt", a))


def _round(site: CodeSite) -> list[Vec]:
    kind = "roundeven" if int(site.params["rounding_method"]) == 1 else "round"
    one = lambda a: site.code.intrinsic(kind, a)  # noqa: E731
    return [site.code.map(kind, site.out_dtypes[0], one, *site.inputs)]


RULES["round"] = _round


def _integer_pow(site: CodeSite) -> list[Vec]:
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


def _pow(site: CodeSite) -> list[Vec]:
    code, (x, y) = site.code, site.aligned()
    if not is_float(x.dtype):
        raise Unsupported(f"pow of {x.dtype}")
    if (exponent := _constant(site.inputs[1])) in (0.5, -0.5):
        root = functools.partial(_root, code, exponent < 0)
        return [code.map(("pow", exponent), x.dtype, root, x)]
    y = convert(code, y, x.dtype)
    return [code.map("pow", x.dtype, lambda a, b: code.scalarised("pow", a, b), x, y)]


RULES["pow"] = _pow


def _constant(vec: Vec) -> float:
    """The number that all scalars are, where it is known; else NaN."""
    found = set()
    for chunk in vec.chunks:
        lanes = getattr(chunk, "constant", None)
        if not isinstance(lanes, list):
            return math.nan
        found.update(lane.constant for lane in lanes)
    return float(found.pop()) if len(found) == 1 else math.nan


def _root(code: Codegen, inverse: bool, a: ir.Value) -> ir.Value:
    """`pow(a, 0.5)` or `pow(a, -0.5)`: as a square root, but for -0.0 and -inf."""
    b, zero, inf = code.b, code.like(a, 0.0), code.like(a, math.inf)
    out = code.intrinsic("sqrt", b.fadd(a, zero))
    out = b.fdiv(code.like(a, 1.0), out) if inverse else out
    return b.select(b.fcmp_ordered("==", a, b.fneg(inf)), zero if inverse else inf, out)


def _polynomial(site: CodeSite) -> list[Vec]:
    """Horner's rule; the coefficients come after the argument, lowest power first."""
    code, (x, *coefficients) = site.code, site.aligned()
    out = coefficients[-1]
    plus, times = (arithmetic(code, kind, x.dtype) for kind in ("add", "mul"))
    for c in reversed(coefficients[:-1]):
        out = code.map("horner", x.dtype, lambda o, a, c: plus(times(o, a), c), out, x, c)
    return [out]


RULES["polynomial"] = _polynomial


# -- conversion -----------------------------------------------------------------------------


def convert(code: Codegen, vec: Vec, dtype: np.dtype) -> Vec:
    """`convert_element_type`: floats to integers saturate, NaN becomes 0."""
    if vec.dtype == dtype:
        return vec
    one = lambda a: _converted(code, vec, dtype, a)  # noqa: E731
    out = code.map("convert", dtype, one, vec)
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


def _bitcast(site: CodeSite) -> list[Vec]:
    code, (x,), dtype = site.code, site.inputs, site.out_dtypes[0]
    odd = {np.dtype(np.bool_), np.dtype(np.float16), BF16} & {x.dtype, dtype}
    if odd or x.dtype.itemsize != dtype.itemsize:
        raise Unsupported(f"bitcast_convert_type from {x.dtype} to {dtype}")

    def cast(a: ir.Value) -> ir.Value:
        return code.b.bitcast(a, ir.VectorType(register_type(dtype), a.type.count))

    return [code.map(("bitcast", x.dtype.name), dtype, cast, x)]


RULES["bitcast_convert_type"] = _bitcast
for _name in ("copy", "copy_p", "kept", "optimization_barrier", "stop_gradient"):
    RULES[_name] = lambda site: list(site.inputs)

ELEMENTWISE = frozenset(RULES)
"""Primitives that compute one block of features without the others."""
