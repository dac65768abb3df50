"""`sink-scaling` moves a vertex's own factor to where its features are read."""

import pytest

from gnnjit.passes.factor_out_of_reduce import FactorOutOfReduce
from gnnjit.passes.sink_scaling import SinkScaling

from .golden import fires, refuses


def test_fires_on_features_times_a_number():
    fires(SinkScaling(every=True), """\
        layer f(x: f32[src, 4], s: f32[src])
          a: f32[src, 4] = s * x
          b: f32[dst, 4] = sum over (u -> v) of a[u]
          return b
        """, """\
        layer f(x: f32[src, 4], s: f32[src])
          a: f32[edge, 4] = s[u] * x[u]
          b: f32[dst, 4] = sum over (u -> v) of a
          return b
        """)  # fmt: skip


def test_fires_together_with_the_broadcast():
    fires(SinkScaling(every=True), """\
        layer f(x: f32[src, 4], y: f32[dst, 4], s: f32[src])
          a: f32[src, 4] = broadcast_in_dim(s, broadcast_dimensions=())
          b: f32[src, 4] = x * a
          c: f32[edge, 4] = b[u] + y[v]
          d: f32[dst, 4] = max over (u -> v) of c
          return d
        """, """\
        layer f(x: f32[src, 4], y: f32[dst, 4], s: f32[src])
          a: f32[edge, 4] = broadcast_in_dim(s[u], broadcast_dimensions=())
          b: f32[edge, 4] = x[u] * a
          c: f32[edge, 4] = b + y[v]
          d: f32[dst, 4] = max over (u -> v) of c
          return d
        """)  # fmt: skip


@pytest.mark.parametrize(
    "number", ["stop_gradient(s)", "convert_element_type(n)"], ids=["stopped", "integer"]
)
def test_fires_before_differentiation_on_what_has_no_gradient(number):
    fires(SinkScaling(), f"""\
        layer f(x: f32[src, 4], s: f32[src], n: i32[src])
          a: f32[src] = {number}
          b: f32[src, 4] = a * x
          c: f32[dst, 4] = sum over (u -> v) of b[u]
          return c
        """, f"""\
        layer f(x: f32[src, 4], s: f32[src], n: i32[src])
          a: f32[src] = {number}
          b: f32[edge, 4] = a[u] * x[u]
          c: f32[dst, 4] = sum over (u -> v) of b
          return c
        """)  # fmt: skip


def test_refuses_a_number_with_a_gradient():
    refuses(
        SinkScaling(),
        """\
        layer f(x: f32[src, 4], s: f32[src])
          a: f32[src, 4] = s * x
          b: f32[dst, 4] = sum over (u -> v) of a[u]
          return b
        """,
    )


@pytest.mark.parametrize(
    ("product", "result"),
    [
        ("a: f32[src, 4] = y * x", "b"),
        ("a: f32[src, 4] = s + x", "b"),
        ("a: f32[src, 4] = w * x", "b"),
        ("a: f32[src, 4] = s * x", "a"),
    ],
    ids=["two arrays", "no product", "shared", "returned"],
)
def test_refuses(product, result):
    refuses(
        SinkScaling(every=True),
        f"""\
        layer f(x: f32[src, 4], y: f32[src, 4], s: f32[src], w: f32[])
          {product}
          b: f32[dst, 4] = sum over (u -> v) of a[u]
          return b, {result}
        """,
    )


def test_refuses_what_a_vertex_computes_with():
    refuses(
        SinkScaling(every=True),
        """\
        layer f(x: f32[src, 4], s: f32[src])
          a: f32[src, 4] = s * x
          b: f32[src, 4] = exp(a)
          c: f32[edge, 4] = a[u] + b[u]
          d: f32[dst, 4] = sum over (u -> v) of c
          return d
        """,
    )


def test_a_fixed_factor_stays_in_the_sum():
    text = """\
        layer f(x: f32[src, 4], s: f32[dst])
          a: f32[dst] = stop_gradient(s)
          b: f32[edge, 4] = a[v] * x[u]
          c: f32[dst, 4] = sum over (u -> v) of b
          return c
        """
    refuses(FactorOutOfReduce(keep_fixed=True), text)
    with pytest.raises(AssertionError):
        refuses(FactorOutOfReduce(), text)
