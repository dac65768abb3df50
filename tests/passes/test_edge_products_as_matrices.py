"""`edge-products-as-matrices` makes of products of arrays products that kernels have loops for."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir.layers import trace, value

import gnnjit
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify
from gnnjit.passes.edge_products_as_matrices import EdgeProductsAsMatrices

from .golden import fires, refuses, same

STEP = EdgeProductsAsMatrices()


def test_axes_of_one_entry_go():
    fires(STEP, """\
        layer f(a: f32[edge, 1, 3, 1], x: f32[src, 1, 32])
          p: f32[edge, 3, 1, 32] = dot_general(a, x[u], dimension_numbers=(((0,), (0,)), ((), ())))
          y: f32[dst, 3, 1, 32] = sum over (u -> v) of p
          return y
        """, """\
        layer f(a: f32[edge, 1, 3, 1], x: f32[src, 1, 32])
          b: f32[edge, 3] = reshape(a)
          c: f32[src, 32] = reshape(x)
          q: f32[edge, 3, 32] = dot_general(b, c[u], dimension_numbers=(((), ()), ((), ())))
          p: f32[edge, 3, 1, 32] = reshape(q)
          y: f32[dst, 3, 1, 32] = sum over (u -> v) of p
          return y
        """)  # fmt: skip


def test_the_longer_factor_is_on_the_right():
    """And what was turned around to be on the left is not turned back."""
    fires(STEP, """\
        layer f(x: f32[src, 5, 1, 32], a: f32[edge, 3, 5, 1])
          p: f32[edge, 32, 3] = dot_general(x[u], a, dimension_numbers=(((0, 1), (1, 2)), ((), ())))
          q: f32[edge, 3, 32] = transpose(p, permutation=(1, 0))
          y: f32[dst, 3, 32] = sum over (u -> v) of q
          return y
        """, """\
        layer f(x: f32[src, 5, 1, 32], a: f32[edge, 3, 5, 1])
          b: f32[edge, 3, 5] = reshape(a)
          c: f32[src, 5, 32] = reshape(x)
          q: f32[edge, 3, 32] = b @ c[u]
          t: f32[edge, 32, 3] = transpose(q, permutation=(1, 0))
          y: f32[dst, 3, 32] = sum over (u -> v) of q
          return y
        """)  # fmt: skip


def test_rows_times_rows_are_without_axes_of_one_entry():
    fires(STEP, """\
        layer f(x: f32[src, 3, 1, 64], a: f32[edge, 5, 64])
          p: f32[edge, 3, 1, 5] = dot_general(x[u], a, dimension_numbers=(((2,), (1,)), ((), ())))
          y: f32[dst, 3, 1, 5] = sum over (u -> v) of p
          return y
        """, """\
        layer f(x: f32[src, 3, 1, 64], a: f32[edge, 5, 64])
          b: f32[src, 3, 64] = reshape(x)
          q: f32[edge, 3, 5] = dot_general(b[u], a, dimension_numbers=(((1,), (1,)), ((), ())))
          p: f32[edge, 3, 1, 5] = reshape(q)
          y: f32[dst, 3, 1, 5] = sum over (u -> v) of p
          return y
        """)  # fmt: skip


REFUSED = {
    "a shared array": ("5, 64], a: f32[5, 3]", "64, 3]", "((0,), (0,)), ((), ())"),
    "short": ("5, 3], a: f32[edge, 5, 2]", "3, 2]", "((0,), (0,)), ((), ())"),
    "batches": ("64, 5], a: f32[edge, 64, 5]", "64]", "((1,), (1,)), ((0,), (0,))"),
    "nothing": ("0, 64], a: f32[edge, 0, 3]", "64, 3]", "((0,), (0,)), ((), ())"),
    "in the middle": ("64, 5, 2], a: f32[edge, 5]", "64, 2]", "((1,), (0,)), ((), ())"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    inputs, shape, numbers = REFUSED[name]
    refuses(STEP, f"""\
        layer f(x: f32[src, {inputs})
          p: f32[edge, {shape} = dot_general(x[u], a, dimension_numbers=({numbers}))
          y: f32[dst, {shape} = sum over (u -> v) of p
          return y
        """)  # fmt: skip


AXES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True).map("".join)
LENGTHS = {"a": 1, "b": 3, "c": 5, "d": 32}


@settings(max_examples=40)
@given(AXES, AXES, st.booleans())
def test_any_product_keeps_its_meaning(one: str, other: str, turned: bool) -> None:
    """Of arrays with any axes, of which those that both have are summed."""
    free = "".join(k for k in one + other if one.count(k) + other.count(k) == 1)
    free = free[::-1] if turned else free
    shapes = [tuple(LENGTHS[k] for k in axes) for axes in (one, other)]

    def f(x: Any, y: Any) -> Any:
        product = jnp.einsum(f"{one},{other}->{free}", x, y)
        return gnnjit.sum(jnp.cos(product)), product * 2

    inputs = [value("x", Space.SRC, *shapes[0]), value("y", Space.EDGE, *shapes[1])]
    old = trace(f, inputs, edge_values=True)
    new = STEP(old)
    verify(new)
    same(old, new, rtol=1e-4)
