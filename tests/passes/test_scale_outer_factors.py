"""`scale-outer-factors`: a number scales the shorter vector of an outer product."""

import pytest

from gnnjit.passes.scale_outer_factors import ScaleOuterFactors

from .golden import fires, refuses

STEP = ScaleOuterFactors()

BEFORE = """\
layer f(x: f32[src, 4], h: f32[edge, 3], s: f32[dst])
  o: f32[edge, 3, 4] = dot_general(h, x[u], dimension_numbers=(((), ()), ((), ())))
  p: f32[edge, 12] = reshape(o)
  c: f32[dst, 12] = broadcast_in_dim(s, broadcast_dimensions=())
  q: f32[edge, 12] = {scaled}
  y: f32[dst, 12] = sum over (u -> v) of q
  return y
"""


@pytest.mark.parametrize(
    ("scaled", "first"),
    [("c[v] * p", "g[v] * h"), ("p * c[v]", "h * g[v]"), ("p / c[v]", "h / g[v]")],
)
def test_fires_behind_a_reshape(scaled, first):
    fires(STEP, BEFORE.format(scaled=scaled), f"""\
        layer f(x: f32[src, 4], h: f32[edge, 3], s: f32[dst])
          o: f32[edge, 3, 4] = dot_general(h, x[u], dimension_numbers=(((), ()), ((), ())))
          p: f32[edge, 12] = reshape(o)
          c: f32[dst, 12] = broadcast_in_dim(s, broadcast_dimensions=())
          g: f32[dst, 3] = broadcast_in_dim(s, broadcast_dimensions=())
          a: f32[edge, 3] = {first}
          b: f32[edge, 3, 4] = dot_general(a, x[u], dimension_numbers=(((), ()), ((), ())))
          q: f32[edge, 12] = reshape(b)
          y: f32[dst, 12] = sum over (u -> v) of q
          return y
        """)  # fmt: skip


def test_fires_on_a_number_that_is_not_repeated():
    fires(STEP, """\
        layer f(x: f32[src, 3], h: f32[edge, 4], s: f32[src])
          o: f32[edge, 4, 3] = dot_general(h, x[u], dimension_numbers=(((), ()), ((), ())))
          q: f32[edge, 4, 3] = s[u] * o
          y: f32[dst, 4, 3] = sum over (u -> v) of q
          return y
        """, """\
        layer f(x: f32[src, 3], h: f32[edge, 4], s: f32[src])
          o: f32[edge, 4, 3] = dot_general(h, x[u], dimension_numbers=(((), ()), ((), ())))
          g: f32[src, 3] = broadcast_in_dim(s, broadcast_dimensions=())
          a: f32[src, 3] = g * x
          q: f32[edge, 4, 3] = dot_general(h, a[u], dimension_numbers=(((), ()), ((), ())))
          y: f32[dst, 4, 3] = sum over (u -> v) of q
          return y
        """)  # fmt: skip


@pytest.mark.parametrize(
    ("scaled", "more"),
    [
        ("c[v] / p", ""),
        ("c[v] - p", ""),
        ("c[v] * p", ", p"),
        ("c[v] * p", ", o"),
    ],
)
def test_refuses_what_is_not_linear_or_read_elsewhere(scaled, more):
    text = BEFORE.format(scaled=scaled).replace("return y", f"return y{more}")
    refuses(STEP, text)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_refuses_half_precision(dtype):
    """A scaled vector may leave its range where the scaled product does not."""
    refuses(STEP, BEFORE.format(scaled="c[v] * p").replace("f32", dtype))


def test_refuses_a_factor_for_each_feature():
    text = BEFORE.format(scaled="c[v] * p").replace("s: f32[dst]", "s: f32[dst, 12]")
    text = text.replace("broadcast_in_dim(s, broadcast_dimensions=())", "tanh(s)")
    refuses(STEP, text)
