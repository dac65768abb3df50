"""exp, log, sin, tanh, erf and friends on float32 chunks. libm computes sines of large angles, and
on processors without fused multiply-add all sines and `erfc`.

Coefficients: Cephes (`expf`, `logf`), the rational tanh of Eigen and XLA, N. Juffa's `erff`, `sinf`
and `cosf`; those of `erfc` are a least-squares fit in Chebyshev's polynomials. All keep NaN,
infinities and denormals; errors are one to three units in the last place. float64 calls libm lane
by lane (`math_rules`).
"""

from __future__ import annotations

import math

from llvmlite import ir

from gnnjit.lower.cpu.simd import CONTRACT, F32, I32, Codegen
from gnnjit.system.cpu_features import features, is_x86

MAGIC = 12582912.0  # 1.5 * 2**23: adding it rounds a small float to an integer in its low bits
MAGIC_BITS = 0x4B400000
SQRT_HALF_BITS, FOUR_BITS = 0x3F3504F3, 0x40800000
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
TANH_TOP = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
TANH_BOTTOM = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)
ERF_LARGE = (
    -1.72853470e-5,
    3.83197126e-4,
    -3.88396438e-3,
    2.42546219e-2,
    -1.06777877e-1,
    -6.34846687e-1,
    -1.28717512e-1,
)
ERF_SMALL = (
    -5.96761703e-4,
    4.99119423e-3,
    -2.67681349e-2,
    1.12819925e-1,
    -3.76125336e-1,
    1.28379166e-1,
)
ERFC_CENTRE = 2.0
ERFC = (
    2.53662228e-05,
    -3.65969860e-04,
    -1.25104028e-03,
    1.27679766e-03,
    8.63784707e-03,
    -8.04644412e-03,
    -5.42052733e-02,
    1.64053481e-01,
    -1.66031328e-01,
    -9.27639110e-02,
    2.76978391e-01,
)
"""(1 + 2 a) exp(a^2) erfc(a) - 1 as a polynomial in (a - 2) / (a + 2), for a >= 0."""
HALF_PI = (
    float.fromhex("0x1.921fb0p+00"),
    float.fromhex("0x1.5110b4p-22"),
    float.fromhex("0x1.846988p-48"),
)
"""Three parts of pi / 2: products of the first with whole numbers are nearly exact."""
LARGE_ANGLE = 1e5
"""Beyond it, libm computes sines: three parts have too few digits."""
SIN = (2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1)
COS = (2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -5.0e-1, 1.0)


class Elementary:
    """The functions, each from a float32 chunk to one of the same width."""

    def __init__(self, code: Codegen):
        self.code, self.b = code, code.b

    def const(self, x: ir.Value, value: float) -> ir.Constant:
        return self.code.like(x, value)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.code.intrinsic("fmuladd", a, b, c)

    def polynomial(self, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
        """Horner's rule, highest power first."""
        out: ir.Value = self.const(x, coefficients[0])
        for c in coefficients[1:]:
            out = self.fma(out, x, self.const(x, c))
        return out

    def between(self, x: ir.Value, low: float, high: float) -> ir.Value:
        """Clamp; NaN passes through."""
        small = self.b.fcmp_ordered("<", x, self.const(x, low))
        x = self.b.select(small, self.const(x, low), x)
        large = self.b.fcmp_ordered(">", x, self.const(x, high))
        return self.b.select(large, self.const(x, high), x)

    def as_int(self, x: ir.Value) -> ir.Value:
        return self.b.bitcast(x, ir.VectorType(I32, x.type.count))

    def as_float(self, x: ir.Value) -> ir.Value:
        return self.b.bitcast(x, ir.VectorType(F32, x.type.count))

    def power_of_two(self, n: ir.Value) -> ir.Value:
        """2**n for integers -126 <= n <= 127."""
        biased = self.b.add(n, self.code.like(n, 127))
        return self.as_float(self.b.shl(biased, self.code.like(n, 23)))

    def nearest(self, x: ir.Value, factor: float) -> tuple[ir.Value, ir.Value]:
        """The integer nearest to `x * factor`, as a float and as an int.

        It adds `MAGIC`, since converting NaN to an int is undefined.
        """
        shifted = self.fma(x, self.const(x, factor), self.const(x, MAGIC))
        whole = self.b.fsub(shifted, self.const(x, MAGIC))
        bits = self.as_int(shifted)
        return whole, self.b.sub(bits, self.code.like(bits, MAGIC_BITS))

    def scaled(self, x: ir.Value, n: ir.Value) -> ir.Value:
        """x * 2**n in two steps, which reach denormals and infinity."""
        half = self.b.ashr(n, self.code.like(n, 1))
        x = self.b.fmul(x, self.power_of_two(half))
        return self.b.fmul(x, self.power_of_two(self.b.sub(n, half)))

    def times_power(self, x: ir.Value, whole: ir.Value, n: ir.Value) -> ir.Value:
        """x * 2**n, with `n` given as a float too: one instruction where there is one for it."""
        if not self.has_avx512(x):
            return self.scaled(x, n)
        bits = 32 * x.type.count
        rounding = [I32(4)] if bits == 512 else []  # the current mode
        name = f"llvm.x86.avx512.mask.scalef.ps.{bits}"
        return self.code.call(name, x.type, [x, whole, x, self.all_lanes(x), *rounding])

    def reciprocal(self, x: ir.Value) -> ir.Value:
        """1 / x for x from 1 to 2, to one unit in the last place; NaN stays."""
        one = self.const(x, 1.0)
        if not self.has_avx512(x):
            return self.b.fdiv(one, x)
        bits = 32 * x.type.count
        lanes = self.all_lanes(x)
        rough = self.code.call(f"llvm.x86.avx512.rcp14.ps.{bits}", x.type, [x, x, lanes])
        rest = self.fma(self.b.fneg(x), rough, one)
        return self.fma(rough, rest, rough)

    def has_avx512(self, x: ir.Value) -> bool:
        """Whether AVX-512's own instructions exist for chunks as wide as `x`."""
        if not is_x86() or "avx512f" not in features():
            return False
        return x.type.count == 16 or (x.type.count in (4, 8) and "avx512vl" in features())

    def fuses(self) -> bool:
        """Whether `fma` rounds once, which what subtracts a rounded product relies on."""
        return not is_x86() or "fma" in features()

    def all_lanes(self, x: ir.Value) -> ir.Constant:
        return ir.IntType(max(8, x.type.count))(-1)

    def _expm1_part(self, r: ir.Value) -> ir.Value:
        """exp(r) - 1 for |r| <= log(2) / 2."""
        square = self.b.fmul(r, r, flags=CONTRACT)
        return self.fma(self.polynomial(r, EXP), square, r)

    def _reduced(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """`r` and the int `n` with `x = n * log(2) + r`."""
        whole, n = self.nearest(x, math.log2(math.e))
        return self._remainder(x, whole), n

    def _remainder(self, x: ir.Value, whole: ir.Value) -> ir.Value:
        r = self.fma(whole, self.const(x, -LN2_HIGH), x)
        return self.fma(whole, self.const(x, -LN2_LOW), r)

    def exp(self, x: ir.Value) -> ir.Value:
        x = self.between(x, -104.0, 89.0)
        whole, n = self.nearest(x, math.log2(math.e))
        y = self.b.fadd(self._expm1_part(self._remainder(x, whole)), self.const(x, 1.0))
        return self.times_power(y, whole, n)

    def exp2(self, x: ir.Value) -> ir.Value:
        x = self.between(x, -151.0, 129.0)
        whole, n = self.nearest(x, 1.0)
        r = self.b.fmul(self.b.fsub(x, whole), self.const(x, math.log(2)))
        y = self.b.fadd(self._expm1_part(r), self.const(x, 1.0))
        return self.times_power(y, whole, n)

    def expm1(self, x: ir.Value) -> ir.Value:
        """2 * (2**(n-1) * expm1(r) + 2**(n-1) - 1/2): exact near 0, and n may be 128."""
        r, n = self._reduced(self.between(x, -40.0, 89.0))
        scale = self.power_of_two(self.b.sub(n, self.code.like(n, 1)))
        rest = self.b.fadd(scale, self.const(x, -0.5))
        out = self.fma(scale, self._expm1_part(r), rest)
        tiny = self.b.fcmp_ordered("<", self.code.intrinsic("fabs", x), self.const(x, 1e-7))
        return self.b.select(tiny, x, self.b.fadd(out, out))

    def log(self, x: ir.Value) -> ir.Value:
        return self._log_special(x, self._log_sum(*self._mantissa(x)))

    def log2(self, x: ir.Value) -> ir.Value:
        f, e = self._mantissa(x)
        rest = self._log_sum(f, self.const(x, 0.0))
        return self._log_special(x, self.fma(rest, self.const(x, math.log2(math.e)), e))

    def _mantissa(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """`f` and `e` with `x = (1 + f) * 2**e`, and `1 + f` from sqrt(1/2) to sqrt(2)."""
        least = self.const(x, 1.17549435e-38)
        denormal = self.b.fcmp_ordered("<", x, least)
        y = self.b.select(denormal, self.b.fmul(x, self.const(x, 2.0**23)), x)
        bits = self.b.sub(self.as_int(y), self.code.like(self.as_int(y), SQRT_HALF_BITS))
        exponent = self.b.ashr(bits, self.code.like(bits, 23))
        mantissa = self.b.and_(bits, self.code.like(bits, 0x7FFFFF))
        f = self.as_float(self.b.add(mantissa, self.code.like(bits, SQRT_HALF_BITS)))
        f = self.b.fsub(f, self.const(x, 1.0))
        e = self.b.sitofp(exponent, x.type)
        return f, self.b.select(denormal, self.b.fsub(e, self.const(x, 23.0)), e)

    def _log_sum(self, f: ir.Value, e: ir.Value) -> ir.Value:
        """log(1 + f) + e * log(2), for 1 + f from sqrt(1/2) to sqrt(2)."""
        square = self.b.fmul(f, f)
        tail = self.b.fmul(self.b.fmul(f, square), self.polynomial(f, LOG))
        tail = self.fma(e, self.const(f, LN2_LOW), tail)
        tail = self.fma(square, self.const(f, -0.5), tail)
        return self.fma(e, self.const(f, LN2_HIGH), self.b.fadd(f, tail))

    def _log_special(self, x: ir.Value, out: ir.Value) -> ir.Value:
        zero, inf = self.const(x, 0.0), self.const(x, math.inf)
        out = self.b.select(self.b.fcmp_unordered("<", x, zero), self.const(x, math.nan), out)
        out = self.b.select(self.b.fcmp_ordered("==", x, zero), self.const(x, -math.inf), out)
        return self.b.select(self.b.fcmp_ordered("==", x, inf), inf, out)

    def log1p(self, x: ir.Value) -> ir.Value:
        """log of `1 + x`, whose mantissa less 1 comes from `x` itself: `1 + x` would round it."""
        one, inf = self.const(x, 1.0), self.const(x, math.inf)
        u = self.b.fadd(x, one)
        bits = self.b.sub(self.as_int(u), self.code.like(self.as_int(u), SQRT_HALF_BITS))
        exponent = self.b.and_(bits, self.code.like(bits, -(1 << 23)))
        scaled = self.as_float(self.b.sub(self.as_int(x), exponent))
        four = self.as_float(self.b.sub(self.code.like(bits, FOUR_BITS), exponent))
        f = self.b.fadd(scaled, self.fma(four, self.const(x, 0.25), self.const(x, -1.0)))
        e = self.b.sitofp(self.b.ashr(bits, self.code.like(bits, 23)), x.type)
        out = self._log_sum(f, e)
        out = self.b.select(self.b.fcmp_ordered("==", u, one), x, out)
        out = self.b.select(self.b.fcmp_ordered("==", x, inf), inf, out)
        lowest = self.b.fcmp_ordered("==", u, self.const(x, 0.0))
        low = self.b.select(lowest, self.const(x, -math.inf), self.const(x, math.nan))
        return self.b.select(self.b.fcmp_ordered(">", u, self.const(x, 0.0)), out, low)

    def tanh(self, x: ir.Value) -> ir.Value:
        bounded = self.between(x, -7.99881172180175781, 7.99881172180175781)
        square = self.b.fmul(bounded, bounded)
        top = self.b.fmul(bounded, self.polynomial(square, TANH_TOP))
        out = self.b.fdiv(top, self.polynomial(square, TANH_BOTTOM))
        size = self.code.intrinsic("fabs", x)
        out = self.b.select(self.b.fcmp_ordered("<", size, self.const(x, 4e-4)), x, out)
        unit = self.code.intrinsic("copysign", self.const(x, 1.0), x)
        return self.b.select(self.b.fcmp_ordered(">", size, self.const(x, 9.01)), unit, out)

    def logistic(self, x: ir.Value) -> ir.Value:
        """1 / (1 + t), or t / (1 + t), where t = exp(-|x|) cannot overflow."""
        t = self.exp(self.b.fneg(self.code.intrinsic("fabs", x)))
        right = self.reciprocal(self.b.fadd(self.const(x, 1.0), t))
        negative = self.b.fcmp_ordered("<", x, self.const(x, 0.0))
        return self.b.select(negative, self.b.fmul(t, right), right)

    def erf(self, x: ir.Value) -> ir.Value:
        t = self.code.intrinsic("fabs", x)
        square = self.b.fmul(x, x)
        a, b, c, d, *more = ERF_LARGE
        high = self.fma(self.const(x, a), t, self.const(x, b))
        low = self.fma(self.const(x, c), t, self.const(x, d))
        r = self.fma(high, square, low)
        for coefficient in more:
            r = self.fma(r, t, self.const(x, coefficient))
        r = self.fma(r, t, self.b.fneg(t))
        large = self.b.fsub(self.const(x, 1.0), self.exp(r))
        settled = self.b.fcmp_ordered(">", t, self.const(x, 4.0))  # the polynomial ends here
        large = self.b.select(settled, self.const(x, 1.0), large)
        large = self.code.intrinsic("copysign", large, x)
        small = self.fma(self.polynomial(square, ERF_SMALL), x, x)
        return self.b.select(self.b.fcmp_ordered(">", t, self.const(x, 0.927734375)), large, small)

    def erfc(self, x: ir.Value) -> ir.Value:
        if not self.fuses():
            return self.code.scalarised("erfc", x)
        a = self.between(self.code.intrinsic("fabs", x), 0.0, 10.1)  # where it ends
        one, two = self.const(x, 1.0), self.const(x, 2.0)
        centre = self.const(x, ERFC_CENTRE)
        place = self.b.fdiv(self.b.fsub(a, centre), self.b.fadd(a, centre))
        p = self.polynomial(place, ERFC)
        below = self.b.fdiv(one, self.fma(two, a, one))
        ratio = self.fma(p, below, below)
        rest = self.fma(ratio, self.b.fneg(a), self.const(x, 0.5))
        ratio = self.fma(self.fma(rest, two, self.b.fsub(p, ratio)), below, ratio)
        square = self.b.fmul(a, a)
        lost = self.fma(self.b.fneg(a), a, square)
        out = self.b.fmul(ratio, self.exp(self.b.fneg(square)))
        out = self.fma(out, lost, out)
        negative = self.b.fcmp_ordered("<", x, self.const(x, 0.0))
        return self.b.select(negative, self.b.fsub(two, out), out)

    def sin(self, x: ir.Value) -> ir.Value:
        out = self._wave("sin", x, 0)
        return self.b.select(self.b.fcmp_ordered("==", x, self.const(x, 0.0)), x, out)

    def cos(self, x: ir.Value) -> ir.Value:
        return self._wave("cos", x, 1)

    def _wave(self, name: str, x: ir.Value, quarters: int) -> ir.Value:
        """The sine of `x` and so many quarters of a turn; `name`: of the same in libm."""
        if not self.fuses():
            return self.code.scalarised(name, x)
        whole, n = self.nearest(x, 2 / math.pi)
        r = x
        for part in HALF_PI:
            r = self.fma(whole, self.const(x, -part), r)
        square = self.b.fmul(r, r)
        sine = self.fma(self.polynomial(square, SIN), self.b.fmul(r, square), r)
        cosine = self.polynomial(square, COS)
        n = self.b.add(n, self.code.like(n, quarters))
        odd = self.b.trunc(n, ir.VectorType(ir.IntType(1), x.type.count))
        sign = self.b.shl(self.b.and_(n, self.code.like(n, 2)), self.code.like(n, 30))
        out = self.as_float(self.b.xor(self.as_int(self.b.select(odd, cosine, sine)), sign))
        return self._by_libm(name, x, out)

    def _by_libm(self, name: str, x: ir.Value, out: ir.Value) -> ir.Value:
        """`out`, but libm's result in the lanes of large angles."""
        size = self.code.intrinsic("fabs", x)
        large = self.b.fcmp_ordered(">", size, self.const(x, LARGE_ANGLE))
        lanes = self.b.bitcast(large, ir.IntType(x.type.count))
        some = self.b.icmp_unsigned("!=", lanes, lanes.type(0))
        usual = self.b.block
        with self.b.if_then(some, likely=False):
            exact = self.b.select(large, self.code.scalarised(name, x), out)
            seldom = self.b.block
        found = self.b.phi(x.type)
        found.add_incoming(out, usual)
        found.add_incoming(exact, seldom)
        return found
