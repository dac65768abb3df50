"""Products of edges that a derivative of higher order reads are computed once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

import gnnjit
from gnnjit._compat import subjaxprs
from gnnjit.cost.current import use
from gnnjit.cost.kinds import INDEX, NAMES
from gnnjit.cost.model import CostModel
from gnnjit.ir.large_products import contracted
from gnnjit.ir.program import Program
from gnnjit.lower.application import aggregate_p

N, E, F = 12, 60, 64
RNG = np.random.default_rng(0)
GRAPH = gnnjit.Graph.from_edges(*RNG.integers(0, N, (2, E)), num_nodes=N)


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape) / shape[-1] ** 0.5, jnp.float32)


POSITIONS, FEATURES, FILTER = draw(N, 3), draw(N, F), {"in": draw(1, F), "out": draw(F, F)}


@gnnjit.layer
def filtered(v: Any, e: Any, p: Any) -> Any:
    step = v["r"] - e.src["r"]
    distance = jnp.sqrt(jnp.sum(step * step, keepdims=True) + 1e-3)
    return gnnjit.sum(e.src["x"] * (jnp.tanh(distance @ p["in"]) @ p["out"]))


def energy(r: Any, p: Any) -> Any:
    return jnp.square(filtered(GRAPH, {"r": r, "x": FEATURES}, p)).sum()


def loss_of_forces(p: Any) -> Any:
    """No feature depends on a position: the forces alone do not need the filters again."""
    return jnp.square(jax.grad(energy)(POSITIONS, p)).sum()


def square_products(jaxpr: Any) -> int:
    """Products of edges with a matrix `[F, F]`, in all aggregates."""
    found = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive is aggregate_p:
            body: Program = eqn.params["body"]
            dots = [e for e in body.equations if e.op.name == "dot_general"]
            found += sum(contracted(e) == F and e.outputs[0].shape == (F,) for e in dots)
        found += sum(map(square_products, subjaxprs(eqn)))
    return found


def count(fn: Any, *args: Any) -> int:
    """Of a function, after JAX has dropped what nobody reads."""
    closed = jax.make_jaxpr(jax.jit(fn))(*args)
    (call,) = closed.jaxpr.eqns
    used = [True] * len(call.outvars)
    return square_products(partial_eval.dce_jaxpr(call.params["jaxpr"].jaxpr, used)[0])


def test_each_product_of_the_forces_is_computed_once():
    """The filter; its cotangent; in the second derivative, the filter's tangent and what each of
    the two products gives for the hidden values."""
    assert count(jax.grad(energy), POSITIONS, FILTER) == 2
    assert count(jax.grad(loss_of_forces), FILTER) == 4


def test_nothing_is_written_for_the_first_derivative_alone():
    """The gradient by positions does not read the filter."""
    lowered = jax.jit(jax.grad(energy)).lower(POSITIONS, FILTER)
    temporaries = lowered.compile().memory_analysis().temp_size_in_bytes
    assert temporaries < E * F * 4


def test_a_budget_keeps_nothing_more():
    """Than the plan does. Here it stores nothing: by its prices, arithmetic costs nothing."""
    prices = np.zeros(len(NAMES))
    prices[INDEX["traversal", "lines"]] = 1
    with gnnjit.memory_budget("100 MiB"), use(CostModel(prices)):
        assert count(jax.grad(loss_of_forces), FILTER) == 5


def test_the_second_derivative():
    have = jax.jit(jax.grad(loss_of_forces))(FILTER)
    with gnnjit.reference():
        want = jax.jit(jax.grad(loss_of_forces))(FILTER)
    for a, b in zip(jax.tree.leaves(have), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.abs(b).max()))
