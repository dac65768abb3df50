"""`edge-matrices-as-products`: products with an edge's own matrix become outer products times a
shared matrix, where a sum follows."""

import pytest

from gnnjit.passes.edge_matrices_as_products import EdgeMatricesAsProducts

from .golden import fires, refuses

STEP = EdgeMatricesAsProducts()

PLAIN = """\
layer f(x: f32[{space}, 4], h: f32[edge, 8], w: f32[8, 12])
  g: f32[edge, 12] = h @ w
  k: f32[edge, 4, 3] = reshape(g)
  m: f32[edge, 3] = x{at} @ k
  y: f32[dst, 3] = sum over (u -> v) of m
  return y
"""

PLAIN_AFTER = """\
layer f(x: f32[{space}, 4], h: f32[edge, 8], w: f32[8, 12])
  g: f32[edge, 12] = h @ w
  k: f32[edge, 4, 3] = reshape(g)
  r: f32[8, 4, 3] = reshape(w)
  o: f32[edge, 8, 4] = dot_general(h, x{at}, dimension_numbers=(((), ()), ((), ())))
  p: f32[edge, 32] = reshape(o)
  q: f32[32, 3] = reshape(r)
  m: f32[edge, 3] = p @ q
  y: f32[dst, 3] = sum over (u -> v) of m
  return y
"""


@pytest.mark.parametrize(("space", "at"), [("src", "[u]"), ("dst", "[v]"), ("edge", "")])
def test_fires_on_the_vector_of_a_source_a_destination_or_an_edge(space, at):
    names = {"space": space, "at": at}
    fires(STEP, PLAIN.format(**names), PLAIN_AFTER.format(**names))


def test_a_bias_is_the_matrix_of_the_number_one():
    fires(STEP, """\
        layer f(x: f32[src, 4], h: f32[edge, 8], w: f32[8, 12], b: f32[12])
          g: f32[edge, 12] = h @ w
          c: f32[edge, 12] = g + b
          k: f32[edge, 4, 3] = reshape(c)
          m: f32[edge, 3] = x[u] @ k
          y: f32[dst, 3] = sum over (u -> v) of m
          return y
        """, """\
        layer f(x: f32[src, 4], h: f32[edge, 8], w: f32[8, 12], b: f32[12])
          g: f32[edge, 12] = h @ w
          c: f32[edge, 12] = g + b
          k: f32[edge, 4, 3] = reshape(c)
          i: f32[1, 12] = reshape(b)
          r: f32[8, 4, 3] = reshape(w)
          s: f32[1, 4, 3] = reshape(i)
          a: f32[9, 4, 3] = concatenate(r, s, dimension=0)
          n: f32[1] = broadcast_in_dim(1.0, broadcast_dimensions=())
          e: f32[edge, 9] = concatenate(h, n, dimension=0)
          o: f32[edge, 9, 4] = dot_general(e, x[u], dimension_numbers=(((), ()), ((), ())))
          p: f32[edge, 36] = reshape(o)
          q: f32[36, 3] = reshape(a)
          m: f32[edge, 3] = p @ q
          y: f32[dst, 3] = sum over (u -> v) of m
          return y
        """)  # fmt: skip


def test_a_turned_matrix_and_a_scaled_product():
    """`[3, 4] @ [4]`, of weights `[3, 4, 8]`; what reads the product is linear in it."""
    fires(STEP, """\
        layer f(x: f32[src, 4], h: f32[edge, 8], w: f32[3, 4, 8], c: f32[edge, 3])
          k: f32[edge, 3, 4] = dot_general(w, h, dimension_numbers=(((2,), (0,)), ((), ())))
          m: f32[edge, 3] = k @ x[u]
          n: f32[edge, 3] = m * c
          y: f32[dst, 3] = sum over (u -> v) of n
          return y
        """, """\
        layer f(x: f32[src, 4], h: f32[edge, 8], w: f32[3, 4, 8], c: f32[edge, 3])
          k: f32[edge, 3, 4] = dot_general(w, h, dimension_numbers=(((2,), (0,)), ((), ())))
          a: f32[8, 3, 4] = transpose(w, permutation=(2, 0, 1))
          b: f32[8, 4, 3] = transpose(a, permutation=(0, 2, 1))
          o: f32[edge, 8, 4] = dot_general(h, x[u], dimension_numbers=(((), ()), ((), ())))
          p: f32[edge, 32] = reshape(o)
          q: f32[32, 3] = reshape(b)
          m: f32[edge, 3] = p @ q
          n: f32[edge, 3] = m * c
          y: f32[dst, 3] = sum over (u -> v) of n
          return y
        """)  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("sum over (u -> v) of m", "max over (u -> v) of m", id="a maximum"),
        pytest.param("return y", "return y, m", id="the product is returned"),
        pytest.param("return y", "return y, k", id="something else reads the matrix"),
    ],
)
def test_refuses(old, new):
    refuses(STEP, PLAIN.format(space="src", at="[u]").replace(old, new))


def test_refuses_few_numbers():
    text = PLAIN.format(space="src", at="[u]").replace("edge, 8", "edge, 7")
    refuses(STEP, text.replace("f32[8, 12]", "f32[7, 12]"))


def test_refuses_the_matrix_of_a_source():
    refuses(STEP, """\
        layer f(x: f32[src, 4], h: f32[src, 8], w: f32[8, 12])
          g: f32[src, 12] = h @ w
          k: f32[src, 4, 3] = reshape(g)
          m: f32[src, 3] = x @ k
          y: f32[dst, 3] = sum over (u -> v) of m[u]
          return y
        """)  # fmt: skip
