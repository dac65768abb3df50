"""`sink-derived-values` has edges do what little arithmetic vertices do on what edges read."""

import pytest

from gnnjit.passes.sink_derived_values import SinkDerivedValues

from .golden import fires, refuses


def test_fires_on_a_choice_between_a_constant_and_what_is_read():
    fires(SinkDerivedValues(), """\
        layer f(m: f32[dst, 4], s: f32[src, 4])
          a: bool[dst, 4] = is_finite(m)
          b: f32[4] = broadcast_in_dim(0.0, broadcast_dimensions=(), shape=(4,))
          c: f32[dst, 4] = select_n(a, b, m)
          d: f32[edge, 4] = s[u] - c[v]
          f: f32[edge, 4] = d * m[v]
          g: f32[src, 4] = sum over (v <- u) of f
          return g
        """, """\
        layer f(m: f32[dst, 4], s: f32[src, 4])
          a: bool[edge, 4] = is_finite(m[v])
          b: f32[edge, 4] = broadcast_in_dim(0.0, broadcast_dimensions=(), shape=(4,))
          c: f32[edge, 4] = select_n(a, b, m[v])
          d: f32[edge, 4] = s[u] - c
          f: f32[edge, 4] = d * m[v]
          g: f32[src, 4] = sum over (v <- u) of f
          return g
        """)  # fmt: skip


def test_edges_have_their_own_of_a_constant_that_others_read():
    fires(SinkDerivedValues(), """\
        layer f(m: f32[dst, 4], s: f32[src, 4])
          a: f32[4] = broadcast_in_dim(0.0, broadcast_dimensions=(), shape=(4,))
          b: f32[edge, 4] = s[u] + m[v]
          c: f32[edge, 4] = max(b, a)
          d: f32[dst, 4] = sum over (u -> v) of c
          f: f32[dst, 4] = max(d, a)
          return f
        """, """\
        layer f(m: f32[dst, 4], s: f32[src, 4])
          a: f32[4] = broadcast_in_dim(0.0, broadcast_dimensions=(), shape=(4,))
          o: f32[edge, 4] = broadcast_in_dim(0.0, broadcast_dimensions=(), shape=(4,))
          b: f32[edge, 4] = s[u] + m[v]
          c: f32[edge, 4] = max(b, o)
          d: f32[dst, 4] = sum over (u -> v) of c
          f: f32[dst, 4] = max(d, a)
          return f
        """)  # fmt: skip


def test_leaves_what_reads_a_value_that_stays():
    """`b` could sink, but its operand `a` cannot, and no edge reads it."""
    fires(SinkDerivedValues(), """\
        layer f(x: f32[dst, 4], y: f32[src, 4])
          a: f32[dst, 4] = exp(x)
          b: f32[dst, 4] = -a
          c: f32[src, 4] = abs(y)
          d: f32[edge, 4] = b[v] * c[u]
          f: f32[edge, 4] = d * y[u]
          g: f32[dst, 4] = sum over (u -> v) of f
          return g
        """, """\
        layer f(x: f32[dst, 4], y: f32[src, 4])
          a: f32[dst, 4] = exp(x)
          b: f32[dst, 4] = -a
          c: f32[edge, 4] = abs(y[u])
          d: f32[edge, 4] = b[v] * c
          f: f32[edge, 4] = d * y[u]
          g: f32[dst, 4] = sum over (u -> v) of f
          return g
        """)  # fmt: skip


NOT_MOVED = {
    "no edge reads the operand": """\
        layer f(x: f32[src, 4], y: f32[dst, 4])
          a: f32[src, 4] = abs(x)
          b: f32[src, 4] = -a
          c: f32[edge, 4] = b[u] * y[v]
          d: f32[dst, 4] = sum over (u -> v) of c
          return d
        """,
    "more than one instruction": """\
        layer f(x: f32[src, 4])
          a: f32[src, 4] = exp(x)
          b: f32[edge, 4] = a[u] * x[u]
          c: f32[dst, 4] = sum over (u -> v) of b
          return c
        """,
    "a result": """\
        layer f(x: f32[src, 4])
          a: f32[src, 4] = abs(x)
          b: f32[edge, 4] = a[u] * x[u]
          c: f32[dst, 4] = sum over (u -> v) of b
          return c, a
        """,
    "a repeated array": """\
        layer f(w: f32[4], x: f32[src, 2, 4])
          a: f32[2, 4] = broadcast_in_dim(w, broadcast_dimensions=(1,), shape=(2, 4))
          b: f32[edge, 2, 4] = a * x[u]
          c: f32[dst, 2, 4] = sum over (u -> v) of b
          return c
        """,
}


@pytest.mark.parametrize("text", NOT_MOVED.values(), ids=NOT_MOVED)
def test_refuses(text):
    refuses(SinkDerivedValues(), text)
