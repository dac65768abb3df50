"""`sink-row-arithmetic` moves into a traversal what its rows' own vertices are asked for."""

import pytest

from gnnjit.passes.sink_row_arithmetic import SinkRowArithmetic

from .golden import fires, refuses


def test_fires_on_a_chain():
    fires(SinkRowArithmetic(), """\
        layer f(x: f32[dst, 4], y: f32[src, 4], s: f32[dst])
          a: f32[dst, 4] = abs(x)
          b: f32[dst, 4] = broadcast_in_dim(s, broadcast_dimensions=(), shape=(4,))
          c: f32[dst, 4] = a * b
          d: f32[edge, 4] = c[v] + y[u]
          e: f32[dst, 4] = sum over (u -> v) of d
          return e
        """, """\
        layer f(x: f32[dst, 4], y: f32[src, 4], s: f32[dst])
          a: f32[edge, 4] = abs(x[v])
          b: f32[edge, 4] = broadcast_in_dim(s[v], broadcast_dimensions=(), shape=(4,))
          c: f32[edge, 4] = a * b
          d: f32[edge, 4] = c + y[u]
          e: f32[dst, 4] = sum over (u -> v) of d
          return e
        """)  # fmt: skip


def test_fires_on_sources_that_own_the_rows():
    fires(SinkRowArithmetic(), """\
        layer f(x: f32[src, 4], y: f32[dst, 4])
          a: f32[src, 4] = -x
          b: f32[edge, 4] = a[u] * y[v]
          c: f32[src, 4] = sum over (v <- u) of b
          d: f32[4] = max over all edges of b
          return c, d
        """, """\
        layer f(x: f32[src, 4], y: f32[dst, 4])
          a: f32[edge, 4] = -x[u]
          b: f32[edge, 4] = a * y[v]
          c: f32[src, 4] = sum over (v <- u) of b
          d: f32[4] = max over all edges of b
          return c, d
        """)  # fmt: skip


NOT_MOVED = {
    "of the other endpoint": """\
        layer f(x: f32[src, 4], y: f32[dst, 4])
          a: f32[src, 4] = -x
          b: f32[edge, 4] = a[u] * y[v]
          c: f32[dst, 4] = sum over (u -> v) of b
          return c
        """,
    "more than arithmetic": """\
        layer f(x: f32[dst, 4], y: f32[src, 4])
          a: f32[dst, 4] = abs(x)
          b: f32[dst, 4] = exp(a)
          c: f32[edge, 4] = b[v] * y[u]
          d: f32[dst, 4] = sum over (u -> v) of c
          return d
        """,
    "a result": """\
        layer f(x: f32[dst, 4], y: f32[src, 4])
          a: f32[dst, 4] = abs(x)
          c: f32[edge, 4] = a[v] * y[u]
          d: f32[dst, 4] = sum over (u -> v) of c
          return d, a
        """,
    "read on the vertices too": """\
        layer f(x: f32[dst, 4], y: f32[src, 4])
          a: f32[dst, 4] = abs(x)
          c: f32[edge, 4] = a[v] * y[u]
          d: f32[dst, 4] = sum over (u -> v) of c
          e: f32[dst, 4] = a + d
          return e
        """,
    "rows of both endpoints": """\
        layer f(x: f32[dst, 4], y: f32[src, 4])
          a: f32[dst, 4] = abs(x)
          b: f32[edge, 4] = a[v] * y[u]
          c: f32[dst, 4] = sum over (u -> v) of b
          d: f32[src, 4] = sum over (v <- u) of b
          return c, d
        """,
}


@pytest.mark.parametrize("text", NOT_MOVED.values(), ids=NOT_MOVED)
def test_refuses(text):
    refuses(SinkRowArithmetic(), text)
