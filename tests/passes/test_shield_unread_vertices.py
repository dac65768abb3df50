"""`shield-unread-vertices` fires on poles that move to the vertices, refuses what is smooth."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from ir.layers import trace, value

import gnnjit
from gnnjit.ir.show import show
from gnnjit.ir.space import Space
from gnnjit.passes.shield_unread_vertices import ShieldUnreadVertices

from .golden import fires, refuses


def test_fires_on_a_pole_on_either_endpoint():
    fires(ShieldUnreadVertices(), """\
        layer f(x: f32[src], y: f32[dst])
          a: f32[edge] = exp(x[u])
          b: f32[edge] = acosh(y[v])
          c: f32[edge] = a * b
          d: f32[dst] = sum over (u -> v) of c
          return d
        """, """\
        layer f(x: f32[src], y: f32[dst])
          a: i32[src] = degree of u
          b: bool[src] = a > 0
          c: f32[src] = select_n(b, 0.5, x)
          d: f32[edge] = exp(c[u])
          f: i32[dst] = degree of v
          g: bool[dst] = f > 0
          h: f32[dst] = select_n(g, 2.0, y)
          i: f32[edge] = acosh(h[v])
          j: f32[edge] = d * i
          k: f32[dst] = sum over (u -> v) of j
          return k
        """)  # fmt: skip


def test_fires_at_the_pole_not_at_the_features():
    fires(ShieldUnreadVertices(), """\
        layer f(x: f32[src])
          a: f32[edge] = x[u] - 1.0
          b: f32[edge] = log(a)
          c: f32[dst] = sum over (u -> v) of b
          return c
        """, """\
        layer f(x: f32[src])
          a: f32[edge] = x[u] - 1.0
          b: i32[src] = degree of u
          c: bool[src] = b > 0
          d: f32[edge] = select_n(c[u], 0.5, a)
          f: f32[edge] = log(d)
          g: f32[dst] = sum over (u -> v) of f
          return g
        """)  # fmt: skip


def test_fires_on_features_where_edges_are_padded():
    fires(ShieldUnreadVertices(padded=True), """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[edge, 3] = x[u] @ w
          b: f32[dst, 3] = sum over (u -> v) of a
          return b
        """, """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: i32[src] = degree of u
          b: bool[src] = a > 0
          c: bool[src, 2] = broadcast_in_dim(b, broadcast_dimensions=())
          d: f32[2] = broadcast_in_dim(0.5, broadcast_dimensions=())
          f: f32[src, 2] = select_n(c[u], d, x[u])
          g: f32[edge, 3] = f[u] @ w
          h: f32[dst, 3] = sum over (u -> v) of g
          return h
        """)  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("work", [
    "a: f32[edge] = x[u] / y[v]",  # stays on the edges
    "a: f32[edge] = x[u] * y[v]",
    "a: f32[edge] = log(d)",
])  # fmt: skip
def test_refuses_work_that_stays_on_the_edges(work, padded):
    refuses(
        ShieldUnreadVertices(padded),
        f"""\
        layer f(x: f32[src], y: f32[dst], d: f32[edge])
          {work}
          b: f32[dst] = sum over (u -> v) of a
          return b
        """,
    )


@pytest.mark.parametrize("work", [
    "a: f32[edge] = tanh(x[u])",
    "a: f32[edge] = x[u] / p",
    "a: f32[edge] = log(p)",
])  # fmt: skip
def test_refuses_what_is_smooth_or_shared(work):
    refuses(
        ShieldUnreadVertices(),
        f"""\
        layer f(x: f32[src], p: f32[])
          {work}
          b: f32[dst] = sum over (u -> v) of a
          return b
        """,
    )


def test_refuses_divisors_held_away_from_zero():
    refuses(ShieldUnreadVertices(), """\
        layer f(y: f32[dst])
          a: f32[edge] = max(y[v], 1.0)
          b: f32[edge] = y[v] / a
          c: f32[dst] = sum over (u -> v) of b
          return c
        """)  # fmt: skip


def test_refuses_work_that_is_an_output():
    refuses(
        ShieldUnreadVertices(padded=True),
        """\
        layer f(y: f32[dst])
          a: f32[dst] = log(y)
          return a
        """,
    )


def test_the_work_that_only_edges_read_is_written_on_the_edges():
    def layer(x: Any, y: Any) -> Any:
        a, b = jnp.log(y), jnp.sqrt(y)
        return gnnjit.sum(x * a + b) + a

    program = trace(layer, [value("x", Space.SRC), value("y", Space.DST)], edge_values=True)
    spaces = {e.op.name: e.space for e in program.equations}
    assert (spaces["log"], spaces["sqrt"]) == (Space.DST, Space.EDGE), show(program)
