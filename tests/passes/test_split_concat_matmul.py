"""`split-concat-matmul` fires on linear combinations of smaller spaces, refuses the others."""

import pytest

from gnnjit.passes.split_concat_matmul import SplitConcatMatmul

from .golden import fires, program, refuses

CONCAT = """\
    layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[4, 3])
      a: f32[edge, 4] = concatenate(x[u], y[v], dimension=0)
      b: f32[edge, 3] = a @ w
      c: f32[dst, 3] = max over (u -> v) of b
      return c
    """


def test_fires_on_a_concatenation():
    fires(SplitConcatMatmul(), CONCAT, """\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[4, 3])
          a: f32[edge, 4] = concatenate(x[u], y[v], dimension=0)
          b: f32[2, 3] = slice(w, limit_indices=(4, 3), start_indices=(2, 0), strides=(1, 1))
          c: f32[dst, 3] = y @ b
          d: f32[2, 3] = slice(w, limit_indices=(2, 3), start_indices=(0, 0), strides=(1, 1))
          f: f32[src, 3] = x @ d
          g: f32[edge, 3] = c[v] + f[u]
          h: f32[dst, 3] = max over (u -> v) of g
          return h
        """)  # fmt: skip


def test_fires_on_a_difference():
    fires(SplitConcatMatmul(), """\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
          a: f32[edge, 2] = y[v] - x[u]
          b: f32[edge, 3] = a @ w
          return b
        """, """\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
          a: f32[edge, 2] = y[v] - x[u]
          b: f32[dst, 3] = y @ w
          c: f32[src, 3] = x @ w
          d: f32[src, 3] = -c
          f: f32[edge, 3] = b[v] + d[u]
          return f
        """)  # fmt: skip


def test_refuses_what_is_not_linear():
    refuses(
        SplitConcatMatmul(),
        """\
        layer f(x: f32[src, 2], y: f32[dst, 2], w: f32[2, 3])
          a: f32[edge, 2] = x[u] - y[v]
          b: f32[edge, 2] = tanh(a)
          c: f32[edge, 3] = b @ w
          return c
        """,
    )


def test_refuses_where_as_many_columns_are_left_on_the_edges():
    refuses(
        SplitConcatMatmul(),
        """\
        layer f(d: f32[edge, 2], z: f32[edge, 2], w: f32[4, 3])
          a: f32[edge, 4] = concatenate(d, z, dimension=0)
          b: f32[edge, 3] = a @ w
          return b
        """,
    )


@pytest.mark.parametrize(("cheaper", "split"), [("after", True), ("before", False)])
def test_a_score_decides(cheaper, split):
    before = program(CONCAT)

    def score(p):
        return len(p.equations) * (1 if cheaper == "before" else -1)

    assert (SplitConcatMatmul(score)(before) != before) is split
