"""`group-sums-by-space`: firing, refusing, and keeping meaning."""

import jax.numpy as jnp
import numpy as np
import pytest

from gnnjit.ir.interpret import Incidence, interpret
from gnnjit.ir.parse import parse
from gnnjit.ir.show import show
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.group_sums_by_space import GroupSumsBySpace

BIASES = """\
layer biases(x: f32[src, 2], y: f32[dst, 2], w: f32[edge, 2], b: f32[2], c: f32[2])
  a: f32[src, 2] = x + b
  d: f32[edge, 2] = a[u] + y[v]
  f: f32[edge, 2] = d + c
  g: f32[edge, 2] = f - w
  h: f32[dst, 2] = sum over (u -> v) of g
  return h"""

GROUPED = """\
layer biases(x: f32[src, 2], y: f32[dst, 2], w: f32[edge, 2], b: f32[2], c: f32[2])
  a: f32[src, 2] = x + b
  d: f32[dst, 2] = y + c
  f: f32[edge, 2] = d[v] + a[u]
  g: f32[edge, 2] = f - w
  h: f32[dst, 2] = sum over (u -> v) of g
  return h"""

REFUSED = {
    "one term of each space": """\
layer f(x: f32[src], y: f32[dst])
  a: f32[edge] = x[u] - y[v]
  b: f32[dst] = sum over (u -> v) of a
  return b""",
    "edge values alone": """\
layer f(w: f32[edge], z: f32[edge])
  a: f32[edge] = w + z
  b: f32[edge] = a + w
  c: f32[dst] = sum over (u -> v) of b
  return c""",
    "an inner sum that is read twice": """\
layer f(x: f32[src], y: f32[dst], z: f32[dst])
  a: f32[edge] = x[u] + y[v]
  b: f32[edge] = a + z[v]
  c: f32[edge] = a * b
  d: f32[dst] = sum over (u -> v) of c
  return d""",
    "integers": """\
layer f(x: i32[src], y: i32[dst], z: i32[dst])
  a: i32[edge] = x[u] + y[v]
  b: i32[edge] = a + z[v]
  c: i32[dst] = sum over (u -> v) of b
  return c""",
}


def test_biases_go_to_an_endpoint():
    grouped = DropDead()(GroupSumsBySpace()(parse(BIASES)))
    assert show(grouped, locations=False) == GROUPED


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_refuses(text):
    assert show(GroupSumsBySpace()(parse(text)), locations=False) == text


@pytest.mark.parametrize("signs", ["+++", "+-+", "--+", "---", "-++"])
def test_signs_are_kept(signs):
    first, second, third = signs
    program = parse(
        f"""\
layer f(x: f32[src], y: f32[dst], z: f32[dst], b: f32[])
  n: f32[edge] = -x[u]
  a: f32[edge] = n {first} y[v]
  c: f32[edge] = b {second} a
  d: f32[edge] = c {third} z[v]
  h: f32[dst] = sum over (u -> v) of d
  return h"""
    )
    rng = np.random.default_rng(0)
    src, dst = (jnp.asarray(rng.integers(0, 4, 9)) for _ in range(2))
    x, y, z = (jnp.asarray(rng.integers(-5, 5, 4), jnp.float32) for _ in range(3))
    args = [x, y, z, jnp.float32(3)]
    grouped = GroupSumsBySpace()(program)
    assert grouped != program
    got, expected = (interpret(p, Incidence(src, dst, 4, 4), args) for p in (grouped, program))
    np.testing.assert_array_equal(got[0], expected[0])
