"""`share-subexpressions` fires on equal operations, refuses other operands and other spaces."""

import pytest

from gnnjit.passes.share_subexpressions import ShareSubexpressions

from .golden import fires, refuses


def test_fires():
    fires(ShareSubexpressions(), """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[src, 3] = x @ w
          c: f32[edge, 3] = a[u] + b[u]
          d: f32[dst, 3] = sum over (u -> v) of c
          return d
        """, """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[edge, 3] = a[u] + a[u]
          c: f32[dst, 3] = sum over (u -> v) of b
          return c
        """)  # fmt: skip


def test_fires_on_reductions():
    fires(ShareSubexpressions(), """\
        layer f(x: f32[src, 2])
          a: f32[dst, 2] = sum over (u -> v) of x[u]
          b: f32[dst, 2] = sum over (u -> v) of x[u]
          c: f32[dst, 2] = a * b
          return c
        """, """\
        layer f(x: f32[src, 2])
          a: f32[dst, 2] = sum over (u -> v) of x[u]
          b: f32[dst, 2] = a * a
          return b
        """)  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second"),
    [("x - y", "y - x"), ("x + 0.0", "x + -0.0"), ("x * 1.0", "x / 1.0")],
)
def test_refuses_other_operands(first, second):
    refuses(
        ShareSubexpressions(),
        f"""\
        layer f(x: f32[dst, 2], y: f32[dst, 2])
          a: f32[dst, 2] = {first}
          b: f32[dst, 2] = {second}
          return a, b
        """,
    )


def test_refuses_other_spaces():
    refuses(
        ShareSubexpressions(),
        """\
        layer f(x: f32[dst, 2])
          a: f32[dst, 2] = exp(x)
          b: f32[edge, 2] = exp(x[v])
          return a, b
        """,
    )
