"""`sink-broadcasts` fires on features repeated for edges, refuses what vertices read too."""

import pytest

from gnnjit.passes.sink_broadcasts import SinkBroadcasts

from .golden import fires, refuses


def test_fires_on_features_repeated_for_each_head():
    fires(SinkBroadcasts(), """\
        layer f(x: f32[src, 2], a: f32[edge, 4, 2])
          h: f32[src, 4, 2] = broadcast_in_dim(x, broadcast_dimensions=(1,))
          b: f32[edge, 4, 2] = a * h[u]
          c: f32[dst, 4, 2] = sum over (u -> v) of b
          return c
        """, """\
        layer f(x: f32[src, 2], a: f32[edge, 4, 2])
          h: f32[edge, 4, 2] = broadcast_in_dim(x[u], broadcast_dimensions=(1,))
          b: f32[edge, 4, 2] = a * h
          c: f32[dst, 4, 2] = sum over (u -> v) of b
          return c
        """)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "result"),
    [("f32[src, 2]", "h"), ("f32[src]", "c")],
    ids=["a vertex's result", "single numbers"],
)
def test_refuses(kind, result):
    shape = "broadcast_dimensions=(1,)" if ", 2" in kind else "broadcast_dimensions=()"
    refuses(
        SinkBroadcasts(),
        f"""\
        layer f(x: {kind}, a: f32[edge, 4, 2])
          h: f32[src, 4, 2] = broadcast_in_dim(x, {shape})
          b: f32[edge, 4, 2] = a * h[u]
          c: f32[dst, 4, 2] = sum over (u -> v) of b
          return {result}
        """,
    )
