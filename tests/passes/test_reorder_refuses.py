"""`reorder-aggregate-combine` has no site where a matrix cannot pass the sums."""

from __future__ import annotations

import pytest

from gnnjit.passes.reorder_aggregate_combine import Order, ReorderAggregateCombine, movable_matmuls

from .golden import program, refuses

REFUSED = {
    "no sum": """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          return a
        """,
    "maximum": """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[dst, 2] = max over (u -> v) of x[u]
          b: f32[dst, 3] = a @ w
          return b
        """,
    "maximum beside a sum": """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[dst, 2] = max over (u -> v) of x[u]
          b: f32[dst, 2] = sum over (u -> v) of x[u]
          c: f32[dst, 2] = a + b
          d: f32[dst, 3] = c @ w
          return d
        """,
    "minimum of products": """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[dst, 3] = min over (u -> v) of a[u]
          return b
        """,
    "gate": """\
        layer f(x: f32[src, 2], g: f32[edge, 3], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[edge, 3] = g * a[u]
          c: f32[dst, 3] = sum over (u -> v) of b
          return c
        """,
    "gate after the sum": """\
        layer f(x: f32[src, 2], g: f32[dst, 2], w: f32[2, 3])
          a: f32[dst, 2] = sum over (u -> v) of x[u]
          b: f32[dst, 2] = g * a
          c: f32[dst, 3] = b @ w
          return c
        """,
    "gate within a head": """\
        layer f(x: f32[src, 2], g: f32[edge, 2], w: f32[2, 4])
          a: f32[src, 4] = x @ w
          b: f32[src, 2, 2] = reshape(a)
          d: f32[edge, 2, 2] = broadcast_in_dim(g, broadcast_dimensions=(1,))
          h: f32[edge, 2, 2] = d * b[u]
          c: f32[dst, 2, 2] = sum over (u -> v) of h
          return c
        """,
    "divisor": """\
        layer f(x: f32[src, 2], s: f32[edge], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          d: f32[edge, 3] = broadcast_in_dim(s, broadcast_dimensions=())
          b: f32[edge, 3] = d / a[u]
          c: f32[dst, 3] = sum over (u -> v) of b
          return c
        """,
    "integers": """\
        layer f(x: i32[src, 2], w: i32[2, 3])
          a: i32[dst, 2] = sum over (u -> v) of x[u]
          b: i32[dst, 3] = dot_general(a, w, preferred_element_type=int32)
          return b
        """,
    "another dtype": """\
        layer f(x: bf16[src, 2], w: bf16[2, 3])
          a: bf16[dst, 2] = sum over (u -> v) of x[u]
          b: f32[dst, 3] = dot_general(a, w, preferred_element_type=float32)
          return b
        """,
    "stop_gradient": """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[src, 3] = stop_gradient(a)
          c: f32[dst, 3] = sum over (u -> v) of b[u]
          return c
        """,
    "a matrix per vertex": """\
        layer f(x: f32[src, 2], w: f32[dst, 2, 3])
          a: f32[dst, 2] = sum over (u -> v) of x[u]
          b: f32[dst, 3] = a @ w
          return b
        """,
    "a sum over the graph": """\
        layer f(x: f32[src, 2], w: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[3] = sum over all edges of a[u]
          return b
        """,
    "two matrices": """\
        layer f(x: f32[src, 2], d: f32[edge, 2], w: f32[2, 3], q: f32[2, 3])
          a: f32[src, 3] = x @ w
          b: f32[edge, 3] = d @ q
          c: f32[edge, 3] = a[u] + b
          g: f32[dst, 3] = sum over (u -> v) of c
          return g
        """,
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("order", ["aggregate-first", "combine-first"])
def test_refuses(name: str, order: Order):
    assert movable_matmuls(program(REFUSED[name])) == ()
    refuses(ReorderAggregateCombine((order,)), REFUSED[name])


@pytest.mark.parametrize(("count", "expected"), [(60, 1), (64, 0), (2000, 0)])
def test_refuses_what_is_too_large(count: int, expected: int):
    def text(inputs: str, first: list[str], last: list[str]) -> str:
        lines = [f"a{i + 1}: f32[dst, 2] = -a{i}" for i in range(count)]
        start = "a0: f32[dst, 2] = sum over (u -> v) of x[u]"
        return "\n  ".join([f"layer f({inputs}, w: f32[2, 2])", *first, start, *lines, *last])

    last = f"a{count}"
    backward = text("x: f32[src, 2]", [], [f"b: f32[dst, 2] = {last} @ w", "return b"])
    forward = text("y: f32[src, 2]", ["x: f32[src, 2] = y @ w"], [f"return {last}"])
    assert [len(movable_matmuls(program(t))) for t in (backward, forward)] == [expected, expected]
