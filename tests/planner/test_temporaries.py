"""The memory of temporaries that plans are weighed by is what XLA takes on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit.cost.current import use
from gnnjit.cost.kinds import INDEX
from gnnjit.cost.machine import machine_of
from gnnjit.cost.model import CostModel
from gnnjit.cost.sketch import sketch
from gnnjit.cost.work import _Counter
from gnnjit.nn.gcn import GCN
from gnnjit.nn.sage import SAGE
from gnnjit.planner.plan import Problem
from gnnjit.planner.programs import weighed
from gnnjit.planner.search import force, plan, weigh

from .test_search import problem

N, F = 4_000, 64
RNG = np.random.default_rng(0)
GRAPH = gnnjit.Graph.from_edges(*RNG.integers(0, N, (2, 3 * N)), num_nodes=N)
X = jnp.asarray(RNG.normal(size=(N, F)), jnp.float32)

MODULES: dict[str, Callable[[], nnx.Module]] = {
    "GCN": lambda: GCN(F, F, rngs=nnx.Rngs(0)),
    "SAGE": lambda: SAGE(F, F, rngs=nnx.Rngs(0)),
}
SLACK = {"GCN": 0.2, "SAGE": 1.2}
"""Arrays by which the sketch may differ. XLA tries the memory of results in an order of its own."""


def call(module: nnx.Module) -> tuple[Callable[..., Any], Any]:
    split, state = nnx.split(module)
    return lambda state, x: nnx.merge(split, state)(GRAPH, x), state  # type: ignore[operator]


def step(module: nnx.Module, gradient: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    run, state = call(module)
    if not gradient:
        return run, (state, X)

    def both(state: Any, x: jax.Array, ct: jax.Array) -> Any:
        out, back = jax.vjp(run, state, x)
        return out, back(ct)

    return both, (state, X, X)


def found(what: Problem, choices: Any) -> float:
    program = weighed(what.program, what.padded, choices, online=False)
    made = sketch(program, what.slots, what.sizes, what.differentiated)
    results = {o for o in made.outputs if o.op != "leaf"}
    return _Counter(made, machine_of("cpu")).temporaries(results)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("order", ["aggregate-first", "combine-first"])
@pytest.mark.parametrize("name", ["GCN", "SAGE"])
def test_they_are_those_of_xla(name: str, order: str, gradient: bool) -> None:
    module = MODULES[name]()
    run, state = call(module)
    what = problem(run, state, X, moving="all" if gradient else None)
    (choices,) = (a.choices for a in weigh(what) if a.choices.orders == (order,))
    function, arguments = step(module, gradient)
    with force(choices):
        compiled = jax.jit(function).lower(*arguments).compile()
    taken = compiled.memory_analysis().temp_size_in_bytes  # type: ignore[union-attr]
    assert abs(found(what, choices) - taken) < SLACK[name] * X.nbytes


def test_new_memory_decides_between_orders() -> None:
    """GCN's gradient beside its result holds two arrays if it aggregates first, else one."""
    run, state = call(MODULES["GCN"]())
    large = problem(run, state, X, moving="all")
    sizes = type(large.sizes)(100_000, 100_000, 2_000_000)
    what = Problem(**(vars(large) | {"sizes": sizes, "call_shapes": None}))
    weights = np.zeros(len(INDEX))
    weights[INDEX["memory", "fresh"]] = 1.0
    with use(CostModel(weights)):
        assert plan(what).chosen.choices.orders == ("combine-first",)
