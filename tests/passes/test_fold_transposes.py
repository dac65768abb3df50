"""`fold-transposes` fires on products of edge and vertex values, refuses shared arrays."""

import pytest

from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.fold_transposes import FoldTransposes

from .golden import fires, refuses


def step(program):
    return DropDead()(FoldTransposes()(program))


def dims(summed="((), ())", batch="((), ())"):
    return f"dimension_numbers=({summed}, {batch})"


def test_a_product_reads_what_was_transposed():
    fires(step, f"""\
        layer f(x: f32[src, 3, 4], d: f32[edge, 3])
          t: f32[src, 4, 3] = transpose(x, permutation=(1, 0))
          h: f32[edge, 4] = dot_general(t[u], d, {dims("((1,), (0,))")})
          c: f32[dst, 4] = sum over (u -> v) of h
          return c
        """, f"""\
        layer f(x: f32[src, 3, 4], d: f32[edge, 3])
          h: f32[edge, 4] = dot_general(x[u], d, {dims("((0,), (0,))")})
          c: f32[dst, 4] = sum over (u -> v) of h
          return c
        """)  # fmt: skip


def test_a_product_in_step_reads_both_as_they_lie():
    fires(step, f"""\
        layer f(x: f32[src, 3, 4], d: f32[edge, 3, 4])
          t: f32[src, 4, 3] = transpose(x, permutation=(1, 0))
          h: f32[edge, 4] = dot_general(t[u], d, {dims("((1,), (0,))", "((0,), (1,))")})
          c: f32[dst, 4] = sum over (u -> v) of h
          return c
        """, f"""\
        layer f(x: f32[src, 3, 4], d: f32[edge, 3, 4])
          h: f32[edge, 4] = dot_general(x[u], d, {dims("((0,), (0,))", "((1,), (1,))")})
          c: f32[dst, 4] = sum over (u -> v) of h
          return c
        """)  # fmt: skip


def test_a_product_that_sums_nothing_is_a_multiplication():
    fires(step, f"""\
        layer f(x: f32[src, 3, 4], d: f32[edge, 4])
          h: f32[edge, 4, 3] = dot_general(x[u], d, {dims(batch="((1,), (0,))")})
          t: f32[edge, 3, 4] = transpose(h, permutation=(1, 0))
          c: f32[dst, 3, 4] = sum over (u -> v) of t
          return c
        """, """\
        layer f(x: f32[src, 3, 4], d: f32[edge, 4])
          r: f32[edge, 3, 4] = broadcast_in_dim(d, broadcast_dimensions=(1,))
          t: f32[edge, 3, 4] = x[u] * r
          c: f32[dst, 3, 4] = sum over (u -> v) of t
          return c
        """)  # fmt: skip


def test_a_multiplication_keeps_the_order_of_its_axes():
    fires(step, f"""\
        layer f(d: f32[edge, 4], x: f32[src, 3, 4])
          h: f32[edge, 4, 3] = dot_general(d, x[u], {dims(batch="((0,), (1,))")})
          c: f32[dst, 4, 3] = sum over (u -> v) of h
          return c
        """, """\
        layer f(d: f32[edge, 4], x: f32[src, 3, 4])
          r: f32[edge, 3, 4] = broadcast_in_dim(d, broadcast_dimensions=(1,))
          t: f32[edge, 3, 4] = x[u] * r
          h: f32[edge, 4, 3] = transpose(t, permutation=(1, 0))
          c: f32[dst, 4, 3] = sum over (u -> v) of h
          return c
        """)  # fmt: skip


def test_a_transpose_of_a_transpose():
    fires(step, """\
        layer f(x: f32[src, 2, 3, 4])
          t: f32[src, 4, 2, 3] = transpose(x, permutation=(2, 0, 1))
          y: f32[src, 3, 4, 2] = transpose(t, permutation=(2, 0, 1))
          c: f32[dst, 3, 4, 2] = sum over (u -> v) of y[u]
          return c
        """, """\
        layer f(x: f32[src, 2, 3, 4])
          y: f32[src, 3, 4, 2] = transpose(x, permutation=(1, 2, 0))
          c: f32[dst, 3, 4, 2] = sum over (u -> v) of y[u]
          return c
        """)  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        # a shared array
        f"""\
        layer f(x: f32[src, 3], w: f32[4, 3])
          t: f32[3, 4] = transpose(w, permutation=(1, 0))
          h: f32[src, 4] = dot_general(x, t, {dims("((0,), (0,))")})
          c: f32[dst, 4] = sum over (u -> v) of h[u]
          return c
        """,
        # axes of the result would swap
        f"""\
        layer f(x: f32[src, 2, 3, 4], d: f32[edge, 4])
          t: f32[src, 3, 2, 4] = transpose(x, permutation=(1, 0, 2))
          h: f32[edge, 3, 2] = dot_general(t[u], d, {dims("((2,), (0,))")})
          c: f32[dst, 3, 2] = sum over (u -> v) of h
          return c
        """,
        # an outer product for each number of a batch
        f"""\
        layer f(x: f32[src, 3, 4], d: f32[edge, 3, 2])
          h: f32[edge, 3, 4, 2] = dot_general(x[u], d, {dims(batch="((0,), (0,))")})
          c: f32[dst, 3, 4, 2] = sum over (u -> v) of h
          return c
        """,
    ],
    ids=["shared", "order", "outer products"],
)
def test_refuses(text):
    refuses(step, text)
