"""`factor-out-of-reduce` fires on factors of the row, refuses what is no product or no sum."""

import pytest

from gnnjit.passes.factor_out_of_reduce import FactorOutOfReduce

from .golden import fires, refuses


def test_fires_on_a_factor():
    fires(FactorOutOfReduce(), """\
        layer f(x: f32[src], y: f32[dst])
          a: f32[edge] = y[v] * x[u]
          b: f32[dst] = sum over (u -> v) of a
          return b
        """, """\
        layer f(x: f32[src], y: f32[dst])
          a: f32[edge] = y[v] * x[u]
          b: i32[dst] = degree of v
          c: i32[dst] = max(b, 1)
          d: f32[dst] = convert_element_type(c)
          f: f32[dst] = d * 1.5
          g: f32[dst] = reduce_precision(f, exponent_bits=8, mantissa_bits=0)
          h: f32[dst] = 1.0 / g
          i: f32[edge] = h[v] * x[u]
          j: f32[dst] = sum over (u -> v) of i
          k: i32[dst] = degree of v
          m: bool[dst] = k > 0
          n: f32[dst] = select_n(m, 1.0, y)
          p: f32[dst] = n * j
          q: f32[dst] = p * g
          return q
        """)  # fmt: skip


def test_fires_on_a_sign_and_a_number():
    fires(FactorOutOfReduce(), """\
        layer f(x: f32[src], d: f32[edge])
          a: f32[edge] = x[u] * d
          b: f32[edge] = -a
          c: f32[dst] = sum over (u -> v) of b
          return c
        """, """\
        layer f(x: f32[src], d: f32[edge])
          a: f32[edge] = x[u] * d
          b: f32[edge] = -a
          c: f32[edge] = x[u] * d
          f: f32[dst] = sum over (u -> v) of c
          g: f32[dst] = -1.0 * f
          return g
        """)  # fmt: skip


@pytest.mark.parametrize("kind", ["max", "min"])
def test_refuses_maxima_and_minima(kind):
    refuses(
        FactorOutOfReduce(),
        f"""\
        layer f(x: f32[src, 2], y: f32[dst, 2])
          a: f32[edge, 2] = y[v] * x[u]
          b: f32[dst, 2] = {kind} over (u -> v) of a
          return b
        """,
    )


@pytest.mark.parametrize("op", ["y[v] / d", "y[v] + d", "d * x[u]"])
def test_refuses_denominators_sums_and_factors_of_the_edge(op):
    refuses(
        FactorOutOfReduce(),
        f"""\
        layer f(x: f32[src, 2], y: f32[dst, 2], d: f32[edge, 2])
          a: f32[edge, 2] = {op}
          b: f32[dst, 2] = sum over (u -> v) of a
          return b
        """,
    )


def test_refuses_integers():
    refuses(
        FactorOutOfReduce(),
        """\
        layer f(x: i32[src], y: i32[dst])
          a: i32[edge] = y[v] * x[u]
          b: i32[dst] = sum over (u -> v) of a
          return b
        """,
    )
