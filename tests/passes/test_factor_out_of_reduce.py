"""`factor-out-of-reduce` fires on factors of the row, refuses what is no product or no sum."""

import pytest

from gnnjit.ir.space import Space
from gnnjit.passes.factor_out_of_reduce import FactorOutOfReduce

from .golden import fires, program, refuses, same


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


@pytest.mark.parametrize(
    ("weight", "totals"), [("p", 1), ("c", 1), ("h", 2)], ids=["softmax", "scaled", "squared"]
)
def test_rows_are_multiplied_by_one_number_of_their_head(weight, totals):
    """Divisions of heads, not of features; what else scales the weights is multiplied there."""
    before = program(f"""\
        layer f(s: f32[edge, 2], x: f32[src, 2, 8], a: f32[dst, 2])
          m: f32[dst, 2] = max over (u -> v) of s
          t: f32[dst, 2] = stop_gradient(m)
          b: f32[edge, 2] = at_most(s, t[v])
          d: f32[edge, 2] = b - t[v]
          w: f32[edge, 2] = exp(d)
          n: f32[dst, 2] = sum over (u -> v) of w
          z: bool[dst, 2] = n == 0.0
          o: f32[2] = broadcast_in_dim(1.0, broadcast_dimensions=(), shape=(2,))
          q: f32[dst, 2] = select_n(z, n, o)
          p: f32[edge, 2] = w / q[v]
          c: f32[edge, 2] = p * a[v]
          h: f32[edge, 2] = p * p
          r: f32[edge, 2, 8] = broadcast_in_dim({weight}, broadcast_dimensions=(0,), shape=(2, 8))
          y: f32[edge, 2, 8] = r * x[u]
          g: f32[dst, 2, 8] = sum over (u -> v) of y
          return g
        """)
    after = FactorOutOfReduce()(before)
    same(before, after)
    divided = [e.outputs[0] for e in after.equations if e.op.name == "div"]
    of_heads = [v for v in divided if v.space is Space.DST and v.shape]
    assert [v.shape for v in of_heads] == [(2,)] * totals
    last = after.outputs[0]
    assert next(e.op.name for e in after.equations if last in e.outputs) == "mul"
    of_rows = [e for e in after.equations if e.outputs[0].space is Space.DST]
    wide = [e.op.name for e in of_rows if e.outputs[0].shape == (2, 8)]
    assert sorted(wide) == ["broadcast_in_dim", "mul", "sum"]
