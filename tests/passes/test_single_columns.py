"""`single-columns` replaces products with one column on the edges, and no other products."""

import pytest

from gnnjit.passes.single_columns import SingleColumns

from .golden import fires, refuses

STEP = SingleColumns()


def test_fires_on_a_column():
    fires(STEP, """\
        layer f(h: f32[edge, 8], w: f32[8, 1])
          s: f32[edge, 1] = h @ w
          y: f32[dst, 1] = sum over (u -> v) of s
          return y
        """, """\
        layer f(h: f32[edge, 8], w: f32[8, 1])
          a: f32[8] = reshape(w)
          p: f32[edge, 8] = h * a
          t: f32[edge] = reduce_sum(p, axes=(0,))
          s: f32[edge, 1] = reshape(t)
          y: f32[dst, 1] = sum over (u -> v) of s
          return y
        """)  # fmt: skip


def test_fires_on_a_vector():
    fires(STEP, """\
        layer f(h: f32[edge, 8], w: f32[8])
          s: f32[edge] = h @ w
          y: f32[dst] = sum over (u -> v) of s
          return y
        """, """\
        layer f(h: f32[edge, 8], w: f32[8])
          p: f32[edge, 8] = h * w
          s: f32[edge] = reduce_sum(p, axes=(0,))
          y: f32[dst] = sum over (u -> v) of s
          return y
        """)  # fmt: skip


def test_fires_on_both_gradients():
    fires(STEP, """\
        layer f(h: f32[edge, 8], d: f32[edge, 1], w: f32[8, 1])
          a: f32[1, 8] = transpose(w, permutation=(1, 0))
          g: f32[edge, 8] = d @ a
          o: f32[edge, 8, 1] = dot_general(h, d, dimension_numbers=(((), ()), ((), ())))
          y: f32[dst, 8] = sum over (u -> v) of g
          k: f32[8, 1] = sum over all edges of o
          return y, k
        """, """\
        layer f(h: f32[edge, 8], d: f32[edge, 1], w: f32[8, 1])
          a: f32[1, 8] = transpose(w, permutation=(1, 0))
          b: f32[8] = reshape(a)
          c: f32[edge, 8] = broadcast_in_dim(d, shape=(8,), broadcast_dimensions=(0,))
          g: f32[edge, 8] = c * b
          i: f32[edge, 8] = broadcast_in_dim(d, shape=(8,), broadcast_dimensions=(0,))
          j: f32[edge, 8] = h * i
          o: f32[edge, 8, 1] = reshape(j)
          y: f32[dst, 8] = sum over (u -> v) of g
          k: f32[8, 1] = sum over all edges of o
          return y, k
        """)  # fmt: skip


@pytest.mark.parametrize(("inputs", "product"), [
    ("h: f32[edge, 8], w: f32[8, 2]", "s: f32[edge, 2] = h @ w"),
    ("h: bf16[edge, 8], w: bf16[8, 1]", "s: bf16[edge, 1] = h @ w"),
    ("h: f32[edge, 2, 8], w: f32[8, 1]", "s: f32[edge, 2, 1] = h @ w"),
    ("h: f32[dst, 8], w: f32[8, 1]", "s: f32[dst, 1] = h @ w"),
])  # fmt: skip
def test_refuses_other_products(inputs, product):
    refuses(STEP, f"layer f({inputs})\n  {product}\n  return s\n")
