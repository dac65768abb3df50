"""`place-in-graphs` fires on work on a graph's values alone, refuses what vertices take part in."""

from gnnjit.passes.place_in_graphs import PlaceInGraphs

from .golden import fires, refuses


def test_fires_on_products_and_what_follows():
    fires(PlaceInGraphs(), """\
        layer f(y: f32[dst, 3], z: f32[graph, 2], w: f32[2, 3], b: f32[3])
          a: f32[dst, 2] = z[graph of v]
          c: f32[dst, 3] = a @ w
          d: f32[dst, 3] = c + b
          g: f32[dst, 3] = y + d
          return g
        """, """\
        layer f(y: f32[dst, 3], z: f32[graph, 2], w: f32[2, 3], b: f32[3])
          a: f32[dst, 2] = z[graph of v]
          c: f32[graph, 3] = z @ w
          h: f32[dst, 3] = c[graph of v]
          d: f32[graph, 3] = c + b
          i: f32[dst, 3] = d[graph of v]
          g: f32[dst, 3] = y + i
          return g
        """)  # fmt: skip


def test_fires_where_the_ends_of_an_edge_read_the_same_graph():
    fires(PlaceInGraphs(), """\
        layer f(z: f32[graph])
          a: f32[src] = z[graph of u]
          b: f32[dst] = z[graph of v]
          c: f32[edge] = a[u] * b[v]
          d: f32[dst] = sum over (u -> v) of c
          return d
        """, """\
        layer f(z: f32[graph])
          a: f32[src] = z[graph of u]
          b: f32[dst] = z[graph of v]
          c: f32[graph] = z * z
          g: f32[dst] = c[graph of v]
          d: f32[dst] = sum over (u -> v) of g[v]
          return d
        """)  # fmt: skip


def test_refuses_what_reads_a_vertex():
    refuses(PlaceInGraphs(), """\
        layer f(y: f32[dst, 3], z: f32[graph, 3])
          a: f32[dst, 3] = z[graph of v]
          b: f32[dst, 3] = y * a
          return b
        """)  # fmt: skip


def test_refuses_what_only_repeats():
    refuses(PlaceInGraphs(), """\
        layer f(y: f32[dst, 3], z: f32[graph])
          a: f32[dst] = z[graph of v]
          b: f32[dst, 3] = broadcast_in_dim(a, broadcast_dimensions=())
          c: f32[dst, 3] = y * b
          return c
        """)  # fmt: skip
