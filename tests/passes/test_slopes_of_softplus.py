"""`slopes-of-softplus` finds what JAX makes of the derivative of a softplus, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ir.layers import GRAPH, trace

import gnnjit
from gnnjit.frontend.capture import inline_custom_calls
from gnnjit.ir.program import Program, Value
from gnnjit.ir.space import Space
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.fold_constants import FoldConstants
from gnnjit.passes.share_subexpressions import ShareSubexpressions
from gnnjit.passes.slopes_of_softplus import SlopesOfSoftplus

from .golden import outputs, refuses, same

FUNCTIONS = {"exp", "log1p", "logistic"}


def slope(fn):
    return jax.grad(lambda x: fn(x).sum())


def traced(fn) -> Program:
    x = Value((8,), np.dtype("float32"), Space.SRC, "x")
    found = inline_custom_calls(trace(lambda x: gnnjit.sum(fn(x)), [x]))
    for step in (FoldConstants(), ShareSubexpressions(), DropDead()):
        found = step(found)
    return found


def functions(program: Program) -> list[str]:
    return sorted(e.op.name for e in program.equations if e.op.name in FUNCTIONS)


def after(before: Program) -> Program:
    found = DropDead()(SlopesOfSoftplus()(before))
    same(before, found)
    return found


@pytest.mark.parametrize("fn", [jax.nn.softplus, jax.nn.log_sigmoid])
def test_fires_on_the_derivative_alone(fn):
    before = traced(slope(fn))
    assert functions(before) == ["exp", "exp", "log1p"]
    assert functions(after(before)) == ["logistic"]


def test_fires_beside_the_value():
    before = traced(lambda x: x * slope(jax.nn.softplus)(x) + jax.nn.softplus(x))
    assert functions(after(before)) == ["exp", "log1p", "logistic"]


def test_fires_on_the_second_derivative():
    before = traced(slope(slope(jax.nn.softplus)))
    assert functions(after(before)) == ["logistic"]


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 80.0, -80.0, 3e38, -3e38]


def test_special_numbers():
    before = traced(slope(jax.nn.softplus))
    x = jnp.asarray(np.resize(SPECIAL, (5, 8)), jnp.float32)
    want, have = (outputs(p, GRAPH, [x]) for p in (before, after(before)))
    np.testing.assert_allclose(have[0], want[0], rtol=1e-6)


@pytest.mark.parametrize("fn", [
    slope(lambda x: jnp.logaddexp(x, 1.0)),
    slope(lambda x: jnp.logaddexp(x, x[0])),
    lambda x: jnp.exp(x - jax.nn.softplus(2 * x)),
    lambda x: jnp.exp(jax.nn.softplus(x) - x),
    jax.nn.softplus,
])  # fmt: skip
def test_refuses_other_functions(fn):
    before = traced(fn)
    assert SlopesOfSoftplus()(before) is before or SlopesOfSoftplus()(before) == before


def test_refuses_what_only_looks_like_it():
    refuses(SlopesOfSoftplus(), """\
        layer f(x: f32[dst, 2])
          a: f32[dst, 2] = abs(x)
          n: f32[dst, 2] = -a
          t: f32[dst, 2] = exp(n)
          l: f32[dst, 2] = log1p(t)
          d: f32[dst, 2] = x - l
          s: f32[dst, 2] = exp(d)
          return s
        """)  # fmt: skip
