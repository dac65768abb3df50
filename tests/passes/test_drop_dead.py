"""`drop-dead` fires on what nobody reads, and on outputs of a traversal that nobody reads."""

from gnnjit.passes.drop_dead import DropDead

from .golden import fires, refuses


def test_fires():
    fires(DropDead(), """\
        layer f(x: f32[src, 2], y: f32[dst, 2])
          a: f32[edge, 2] = x[u] + y[v]
          b: f32[dst, 2] = sum over (u -> v) of a
          c: f32[edge, 2] = x[u] * y[v]
          d: f32[dst, 2] = sum over (u -> v) of c
          return d
        """, """\
        layer f(x: f32[src, 2], y: f32[dst, 2])
          a: f32[edge, 2] = x[u] * y[v]
          b: f32[dst, 2] = sum over (u -> v) of a
          return b
        """)  # fmt: skip


def test_fires_inside_a_traversal():
    fires(DropDead(), """\
        layer f(x: f32[src, 2], y: f32[dst, 2])
          for each edge (u -> v) of x[u], y[v]
            a: f32[edge, 2] = exp(x[u])
            b: f32[edge, 2] = a * y[v]
            c: f32[dst, 2] = sum over (u -> v) of a
            d: f32[dst, 2] = sum over (u -> v) of b
          return c
        """, """\
        layer f(x: f32[src, 2], y: f32[dst, 2])
          for each edge (u -> v) of x[u]
            a: f32[edge, 2] = exp(x[u])
            b: f32[dst, 2] = sum over (u -> v) of a
          return b
        """)  # fmt: skip


def test_refuses_what_is_read_through_another_value():
    refuses(
        DropDead(),
        """\
        layer f(x: f32[src, 2])
          a: f32[src, 2] = exp(x)
          b: f32[dst, 2] = sum over (u -> v) of a[u]
          return b, a
        """,
    )
