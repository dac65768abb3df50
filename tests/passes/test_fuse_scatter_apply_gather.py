"""`fuse-scatter-apply-gather`: one traversal a level, nothing left on the edges outside."""

from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from strategies import expressions

from gnnjit.ir.program import Aggregate
from gnnjit.ir.space import Space
from gnnjit.passes import pipeline
from gnnjit.passes.fuse_scatter_apply_gather import FuseScatterApplyGather

from .golden import fires, program, refuses, same
from .test_pipeline import written


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


def test_both_ends_are_one_aggregate_where_they_share_work():
    before = """\
        layer f(x: f32[src], y: f32[dst])
          a: f32[edge] = x[u] * y[v]
          b: f32[dst] = sum over (u -> v) of a
          c: f32[src] = sum over (v <- u) of a
          return b, c
        """
    fires(FuseScatterApplyGather(both_ends=True), before, """\
        layer f(x: f32[src], y: f32[dst])
          for each edge (u -> v) of x[u], y[v]
            a: f32[edge] = x[u] * y[v]
            b: f32[dst] = sum over (u -> v) of a
            c: f32[src] = sum over (v <- u) of a
          return b, c
        """)  # fmt: skip
    assert count_aggregates(FuseScatterApplyGather()(program(before))) == 2
    split = FuseScatterApplyGather(split=True, both_ends=True)
    assert count_aggregates(split(program(before))) == 2


def test_both_ends_stay_apart_where_they_share_nothing():
    after = FuseScatterApplyGather(both_ends=True)(
        program("""\
        layer f(x: f32[src], y: f32[dst])
          a: f32[edge] = x[u] * y[v]
          b: f32[dst] = sum over (u -> v) of a
          c: f32[edge] = x[u] + y[v]
          d: f32[src] = sum over (v <- u) of c
          return b, d
        """)
    )
    assert count_aggregates(after) == 2


def count_aggregates(found: Any) -> int:
    return sum(isinstance(e.op, Aggregate) for e in found.equations)


def test_refuses_where_nothing_is_on_the_edges():
    refuses(
        FuseScatterApplyGather(),
        """\
        layer f(y: f32[dst, 2])
          a: f32[dst, 2] = y * 2.0
          return a
        """,
    )


TWO_SUMS = """\
    layer f(x: f32[src], y: f32[dst])
      a: f32[edge] = x[u] * y[v]
      b: f32[dst] = sum over (u -> v) of a
      c: f32[dst] = max over (u -> v) of a
      d: f32[src] = sum over (v <- u) of a
      return b, c, d, a
    """


def test_split_fires_on_several_reductions():
    fires(FuseScatterApplyGather(split=True), TWO_SUMS, """\
        layer f(x: f32[src], y: f32[dst])
          for each edge (u -> v) of x[u], y[v]
            a: f32[edge] = x[u] * y[v]
            b: f32[dst] = sum over (u -> v) of a
            c: f32[edge] = on each edge a
          for each edge (u -> v) of x[u], y[v]
            d: f32[edge] = x[u] * y[v]
            f: f32[dst] = max over (u -> v) of d
          for each edge (u -> v) of x[u], y[v]
            g: f32[edge] = x[u] * y[v]
            h: f32[src] = sum over (v <- u) of g
          return b, f, h, c
        """)  # fmt: skip


def test_split_leaves_an_exp_sum_its_maximum():
    fires(FuseScatterApplyGather(split=True), """\
        layer f(s: f32[edge], x: f32[src, 2])
          a: f32[dst] = max over (u -> v) of s[e]
          b: f32[dst] = sum over (u -> v) of exp(s - max s) * s
          c: f32[dst, 2] = sum over (u -> v) of exp(s - max s) * x[u]
          return a, b, c
        """, """\
        layer f(s: f32[edge], x: f32[src, 2])
          for each edge (u -> v) of s
            a: f32[dst] = max over (u -> v) of s
            b: f32[dst] = sum over (u -> v) of exp(s - max s) * s
          for each edge (u -> v) of x[u], s
            c: f32[dst, 2] = sum over (u -> v) of exp(s - max s) * x[u]
            d: f32[dst] = max over (u -> v) of s
          return a, b, c
        """)  # fmt: skip


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_split_refuses_one_reduction_and_its_edge_value(kind):
    before = program(f"""\
        layer f(x: f32[src], y: f32[dst])
          a: f32[edge] = x[u] * y[v]
          b: f32[dst] = {kind} over (u -> v) of a
          return b, a
        """)
    assert FuseScatterApplyGather(split=True)(before) == FuseScatterApplyGather()(before)


@pytest.mark.long
@given(expressions())
@settings(max_examples=10)
def test_split_keeps_the_meaning_of_generated_functions(fn):
    def layer(g: Any, v: Any, e: Any, p: Any) -> Any:
        m = jnp.tanh(fn(g, v, e, p)) * e.data
        return g.sum(m), g.max(m), g.softmax(m)

    before = written(layer)
    last = FuseScatterApplyGather(split=True)
    after = pipeline.run(before, (*pipeline.default_passes()[:-1], last))
    same(before, after, 1e-3, ["padding"])
    for eqn in after.equations:
        if isinstance(eqn.op, Aggregate):
            into = [r for r in eqn.op.reductions if r is not None and r.into is not Space.SHARED]
            assert len(into) - sum(r.kind == "exp_sum" for r in into) <= 1
