"""Rules for primitives that act scalar by scalar.

A rule takes a `CodeSite` and returns the values of the equation's outputs. Semantics are XLA's: max
and min propagate NaN, integer division by zero and over-long shifts are defined.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu.simd import CONTRACT, Chunk, Codegen, Vec, is_float, is_signed


@dataclasses.dataclass(frozen=True)
class CodeSite:
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


Rule = Callable[[CodeSite], list[Vec]]
RULES: dict[str, Rule] = {}


def chunkwise(name: str) -> Callable[[Callable[[Codegen, np.dtype], Chunk]], Any]:
    """Register `make(code, operand dtype) -> function of chunks`."""

    def register(make: Callable[[Codegen, np.dtype], Chunk]) -> Any:
        def rule(site: CodeSite) -> list[Vec]:
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


@chunkwise("at_most")
def _at_most(code: Codegen, dtype: np.dtype) -> Chunk:
    """The smaller of `x` and `top`; `top` if either is NaN. `top` is the largest `x` of a row, so
    it is NaN wherever an `x` is. One instruction."""
    below = compare(code, "<", dtype)
    return lambda x, top: code.b.select(below(x, top), x, top)


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
    def rule(site: CodeSite) -> list[Vec]:
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


def _select_n(site: CodeSite) -> list[Vec]:
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


@chunkwise("population_count")
def _population_count(code: Codegen, _: np.dtype) -> Chunk:
    return lambda a: code.intrinsic("ctpop", a)


@chunkwise("mulhi")
def _mulhi(code: Codegen, dtype: np.dtype) -> Chunk:
    """The upper half of the product, computed at twice the width."""
    bits = 8 * dtype.itemsize
    extend = code.b.sext if is_signed(dtype) else code.b.zext

    def high(a: ir.Value, b: ir.Value) -> ir.Value:
        wide = ir.VectorType(ir.IntType(2 * bits), a.type.count)
        product = code.b.mul(extend(a, wide), extend(b, wide))
        return code.b.trunc(code.b.lshr(product, code.like(product, bits)), a.type)

    return high


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
