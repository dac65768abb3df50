"""`store-shared-products`: sources reduce an array where they would compute products again."""

import pytest

from gnnjit.passes.store_shared_products import StoreSharedProducts

from .golden import fires, refuses

BOTH = """\
    layer f(x: f32[edge, {n}], w: f32[{n}, {n}], c: f32[edge, {n}])
      h: f32[edge, {n}] = x @ w
      y: f32[dst, {n}] = sum over (u -> v) of h
      m: f32[edge, {n}] = h * c
      g: f32[{into}, {n}] = {kind} over ({arrow}) of m
      return y, g
    """


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_fires_where_both_ends_reduce_a_product(kind):
    fires(StoreSharedProducts(), BOTH.format(n=32, kind=kind, into="src", arrow="v <- u"), f"""\
        layer f(x: f32[edge, 32], w: f32[32, 32], c: f32[edge, 32])
          h: f32[edge, 32] = x @ w
          y: f32[dst, 32] = sum over (u -> v) of h
          m: f32[edge, 32] = h * c
          s: f32[edge, 32] = store(m)
          g: f32[src, 32] = {kind} over (v <- u) of s
          return y, g
        """)  # fmt: skip


def test_a_value_that_is_returned_is_written_once():
    fires(StoreSharedProducts(), """\
        layer f(x: f32[edge, 32], w: f32[32, 32])
          h: f32[edge, 32] = x @ w
          y: f32[dst, 32] = sum over (u -> v) of h
          g: f32[src, 32] = sum over (v <- u) of h
          return y, g, h
        """, """\
        layer f(x: f32[edge, 32], w: f32[32, 32])
          h: f32[edge, 32] = x @ w
          y: f32[dst, 32] = sum over (u -> v) of h
          s: f32[edge, 32] = store(h)
          g: f32[src, 32] = sum over (v <- u) of s
          return y, g, s
        """)  # fmt: skip


def test_fires_on_products_that_are_returned_on_the_edges():
    fires(StoreSharedProducts(), """\
        layer f(x: f32[edge, 32], w: f32[32, 32])
          h: f32[edge, 32] = x @ w
          m: f32[edge, 32] = h * x
          y: f32[dst, 32] = sum over (u -> v) of x
          g: f32[src, 32] = sum over (v <- u) of h
          return y, g, m
        """, """\
        layer f(x: f32[edge, 32], w: f32[32, 32])
          h: f32[edge, 32] = x @ w
          m: f32[edge, 32] = h * x
          y: f32[dst, 32] = sum over (u -> v) of x
          s: f32[edge, 32] = store(h)
          g: f32[src, 32] = sum over (v <- u) of s
          return y, g, m
        """)  # fmt: skip


def test_reductions_without_products_stay():
    fires(StoreSharedProducts(), """\
        layer f(x: f32[edge, 32], w: f32[32, 32])
          h: f32[edge, 32] = x @ w
          y: f32[dst, 32] = sum over (u -> v) of h
          g: f32[src, 32] = sum over (v <- u) of h
          k: f32[src, 32] = sum over (v <- u) of x
          return y, g, k
        """, """\
        layer f(x: f32[edge, 32], w: f32[32, 32])
          h: f32[edge, 32] = x @ w
          y: f32[dst, 32] = sum over (u -> v) of h
          s: f32[edge, 32] = store(h)
          g: f32[src, 32] = sum over (v <- u) of s
          k: f32[src, 32] = sum over (v <- u) of x
          return y, g, k
        """)  # fmt: skip


def test_refuses_small_products():
    refuses(StoreSharedProducts(), BOTH.format(n=15, kind="sum", into="src", arrow="v <- u"))


def test_refuses_one_traversal():
    refuses(StoreSharedProducts(), BOTH.format(n=32, kind="sum", into="dst", arrow="u -> v"))


def test_refuses_products_of_one_end_alone():
    refuses(StoreSharedProducts(), """\
        layer f(x: f32[edge, 32], w: f32[32, 32])
          h: f32[edge, 32] = x @ w
          y: f32[dst, 32] = sum over (u -> v) of x
          g: f32[src, 32] = sum over (v <- u) of h
          return y, g
        """)  # fmt: skip


def test_refuses_an_exponential_sum():
    refuses(StoreSharedProducts(), """\
        layer f(x: f32[edge, 32], w: f32[32, 32], c: f32[edge])
          h: f32[edge, 32] = x @ w
          y: f32[dst, 32] = sum over (u -> v) of h
          g: f32[src, 32] = sum over (v <- u) of exp(c - max c) * h
          k: f32[src, 32] = sum over (v <- u) of h
          return y, g, k
        """)  # fmt: skip


def test_refuses_what_edges_read_again():
    refuses(StoreSharedProducts(), """\
        layer f(x: f32[edge, 32], w: f32[32, 32])
          h: f32[edge, 32] = x @ w
          y: f32[dst, 32] = sum over (u -> v) of h
          g: f32[src, 32] = sum over (v <- u) of h
          m: f32[edge, 32] = x * g[u]
          z: f32[dst, 32] = sum over (u -> v) of m
          return y, z
        """)  # fmt: skip


WIDE = """\
    layer f(x: f32[src, 16], h: f32[edge, {k}], d: f32[dst, {k}, 16])
      g: f32[edge, 16] = dot_general(h, d[v], dimension_numbers=(((0,), (0,)), ((), ())))
      y: f32[src, 16] = sum over (v <- u) of g
      return y
    """


def test_fires_where_a_destination_has_much_for_each_edge():
    """The gradient of sums of outer products: a traversal by sources would fetch `d`."""
    fires(StoreSharedProducts(), WIDE.format(k=32), """\
        layer f(x: f32[src, 16], h: f32[edge, 32], d: f32[dst, 32, 16])
          g: f32[edge, 16] = dot_general(h, d[v], dimension_numbers=(((0,), (0,)), ((), ())))
          s: f32[edge, 16] = store(g)
          y: f32[src, 16] = sum over (v <- u) of s
          return y
        """)  # fmt: skip


def test_refuses_where_a_destination_has_little():
    refuses(StoreSharedProducts(), WIDE.format(k=31))


def test_refuses_where_a_source_has_as_much():
    refuses(StoreSharedProducts(), """\
        layer f(x: f32[src, 32, 16], h: f32[edge, 32], d: f32[dst, 32, 16])
          g: f32[edge, 16] = dot_general(h, d[v], dimension_numbers=(((0,), (0,)), ((), ())))
          r: f32[edge, 16] = dot_general(h, x[u], dimension_numbers=(((0,), (0,)), ((), ())))
          t: f32[edge, 16] = g * r
          y: f32[src, 16] = sum over (v <- u) of t
          return y
        """)  # fmt: skip
