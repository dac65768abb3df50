"""What stands in `kept` is itself; a derivative reads what was written of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.kept import kept, kept_values, recalled, with_products_kept
from gnnjit.ir.parse import parse
from gnnjit.ir.show import show

TEXT = """\
layer f(x: f32[edge, 64], y: f32[dst, 64], w: f32[64, 64], n: f32[64, 16])
  a: f32[edge, 64] = x @ w
  k: f32[edge, 64] = kept(a)
  b: f32[edge, 64] = tanh(k)
  c: f32[edge, 16] = b @ n
  d: f32[dst, 64] = y @ w
  return b, c, d
"""


def test_it_is_itself_in_every_order():
    x, t = jnp.float32(0.3), jnp.float32(2)

    def f(x: jax.Array) -> jax.Array:
        return jnp.sin(kept(x)) * x

    assert f(x) == jnp.sin(x) * x
    for have, want in (
        (jax.grad(f)(x), jax.grad(lambda x: jnp.sin(x) * x)(x)),
        (jax.jit(jax.grad(jax.grad(f)))(x), jax.grad(jax.grad(lambda x: jnp.sin(x) * x))(x)),
        (jax.jvp(f, [x], [t])[1], jax.jvp(lambda x: jnp.sin(x) * x, [x], [t])[1]),
        (jax.vmap(kept)(jnp.arange(3)), jnp.arange(3)),
    ):
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_what_is_recalled_has_the_number_that_was_written_and_the_slope_of_its_own():
    value, slope = jax.jvp(lambda x: recalled(x * x, jnp.float32(7)), [3.0], [1.0])
    assert (value, slope) == (7, 6)


def test_a_body_reads_it_from_memory():
    body = parse(TEXT)
    (value,) = kept_values(body)
    arrays = [jnp.ones(v.shape) for v in body.inputs]
    written = jnp.linspace(0, 1, 64)
    found = evaluate_element(body, arrays, {value: written})[0]
    np.testing.assert_array_equal(found, jnp.tanh(written))


def test_it_has_a_name():
    assert "kept(a)" in show(parse(TEXT))


@pytest.mark.parametrize("times", [1, 2])
def test_products_are_kept_where_that_is_worth_it(times):
    """Not the narrow one, nor that of vertices."""
    body = parse(TEXT.replace("kept(a)", "-a"))
    assert kept_values(body) == []
    for _ in range(times):
        body = with_products_kept(body)
    assert [v.shape for v in kept_values(body)] == [(64,)] * times
    assert "kept(a)" in show(body)
