"""`place-in-smallest-space` fires on work on one endpoint, refuses what needs both."""

import pytest

from gnnjit.passes.place_in_smallest_space import PlaceInSmallestSpace

from .golden import fires, refuses


def test_fires_on_one_endpoint():
    fires(PlaceInSmallestSpace(), """\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
          a: f32[edge, 3] = x[u] @ w
          b: f32[edge, 3] = tanh(a)
          c: f32[edge, 3] = y[v] @ w
          d: f32[edge, 3] = b + c
          g: f32[dst, 3] = sum over (u -> v) of d
          return g
        """, """\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[src, 3] = tanh(a)
          c: f32[dst, 3] = y @ w
          d: f32[edge, 3] = b[u] + c[v]
          g: f32[dst, 3] = sum over (u -> v) of d
          return g
        """)  # fmt: skip


def test_fires_on_a_maximum_of_what_all_edges_share():
    fires(PlaceInSmallestSpace(), """\
        layer f(y: f32[dst])
          a: f32[dst] = max over (u -> v) of y[v]
          return a
        """, """\
        layer f(y: f32[dst])
          a: i32[dst] = degree of v
          b: bool[dst] = a > 0
          c: f32[dst] = select_n(b, 0.0, y)
          return c
        """)  # fmt: skip


def test_fires_on_a_sum_of_what_all_edges_share():
    fires(PlaceInSmallestSpace(), """\
        layer f(y: f32[dst])
          a: f32[dst] = sum over (u -> v) of y[v]
          return a
        """, """\
        layer f(y: f32[dst])
          a: i32[dst] = degree of v
          b: f32[dst] = convert_element_type(a)
          c: i32[dst] = degree of v
          d: bool[dst] = c > 0
          f: f32[dst] = select_n(d, 0.0, y)
          g: f32[dst] = b * f
          return g
        """)  # fmt: skip


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_refuses_what_needs_both_endpoints(kind):
    refuses(
        PlaceInSmallestSpace(),
        f"""\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
          a: f32[edge, 2] = x[u] * y[v]
          b: f32[edge, 3] = a @ w
          c: f32[dst, 3] = {kind} over (u -> v) of b
          return c
        """,
    )
