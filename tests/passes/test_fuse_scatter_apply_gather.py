"""`fuse-scatter-apply-gather`: one traversal a level, nothing left on the edges outside."""

from gnnjit.passes.fuse_scatter_apply_gather import FuseScatterApplyGather

from .golden import fires, refuses


def test_fires_with_several_outputs_in_one_traversal():
    fires(FuseScatterApplyGather(), """\
        layer f(x: f32[src, 2], y: f32[dst, 2])
          a: f32[edge, 2] = x[u] + y[v]
          b: f32[dst, 2] = sum over (u -> v) of a
          c: f32[edge, 2] = a * x[u]
          d: f32[dst, 2] = max over (u -> v) of c
          return b, d, a
        """, """\
        layer f(x: f32[src, 2], y: f32[dst, 2])
          for each edge (u -> v) of x[u], y[v]
            a: f32[edge, 2] = x[u] + y[v]
            b: f32[edge, 2] = a * x[u]
            c: f32[dst, 2] = sum over (u -> v) of a
            d: f32[dst, 2] = max over (u -> v) of b
            f: f32[edge, 2] = on each edge a
          return c, d, f
        """)  # fmt: skip


def test_fires_once_for_each_level_and_computes_again_what_both_need():
    fires(FuseScatterApplyGather(), """\
        layer f(x: f32[src], y: f32[dst])
          a: f32[edge] = x[u] * y[v]
          b: f32[dst] = max over (u -> v) of a
          c: f32[edge] = a - b[v]
          d: f32[dst] = sum over (u -> v) of c
          return d
        """, """\
        layer f(x: f32[src], y: f32[dst])
          for each edge (u -> v) of x[u], y[v]
            a: f32[edge] = x[u] * y[v]
            b: f32[dst] = max over (u -> v) of a
          for each edge (u -> v) of x[u], y[v], b[v]
            c: f32[edge] = x[u] * y[v]
            d: f32[edge] = c - b[v]
            f: f32[dst] = sum over (u -> v) of d
          return f
        """)  # fmt: skip


def test_refuses_where_nothing_is_on_the_edges():
    refuses(
        FuseScatterApplyGather(),
        """\
        layer f(y: f32[dst, 2])
          a: f32[dst, 2] = y * 2.0
          return a
        """,
    )
