"""Mini-batches of roots: the rows of the whole, in shapes that do not depend on the batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import GraphError
from gnnjit.neighborhood import HDG, metapaths, take

from .test_streamed import ragged, total, walks, weighted


def of_vertices() -> tuple[HDG, tuple[Any, ...]]:
    return walks(), (weighted,)


def of_instances() -> tuple[HDG, tuple[Any, ...]]:
    """Each of three vertices, at most four a root."""
    graph = gnnjit.Graph.from_edges(*np.random.default_rng(1).integers(0, 9, (2, 30)), num_nodes=11)
    return metapaths(graph, [2], cap=4), (total, total, total, jnp.add)


def of_types() -> tuple[HDG, tuple[Any, ...]]:
    return ragged(), (total, total, total, jnp.add)


CASES = {f.__name__: f for f in (of_vertices, of_instances, of_types)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [None, 5])
def test_rows_and_gradients_of_some_roots(case: str, size: int | None) -> None:
    hdg, stages = CASES[case]()
    x = jnp.arange(1.0, hdg.sizes[0] + 1)
    roots = np.array([4, 0, 6, 0] if size is None else [4, 0, 6, 2])

    def rows(h: HDG, x: Any) -> Any:
        return h(x, *stages)[:4]

    def loss(f: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))(x)

    some = take(hdg, roots, size=size)
    np.testing.assert_allclose(rows(some, x), hdg(x, *stages)[roots], rtol=1e-6)
    want = loss(lambda x: hdg(x, *stages)[roots])
    np.testing.assert_allclose(loss(lambda x: rows(some, x)), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_batches_run_one_program(case: str) -> None:
    hdg, stages = CASES[case]()
    x, traced = jnp.arange(float(hdg.sizes[0])), []

    @jax.jit
    def step(h: HDG, x: Any) -> Any:
        traced.append(None)
        return h(x, *stages)

    for roots in ([0, 1, 2], [3], [6, 4, 5], []):
        found = step(take(hdg, np.array(roots, int), size=3), x)
        want = hdg(x, *stages)[np.array(roots, int)]
        np.testing.assert_allclose(found[: len(roots)], want, rtol=1e-6)
    assert len(traced) == 1


@pytest.mark.parametrize(
    ("roots", "size", "message"),
    [
        ([0, 11], None, r"roots\[1\] is 11, expected a number from 0 to 10"),
        ([-1], None, r"roots\[0\] is -1, expected a number from 0 to 10"),
        ([0.5], None, r"roots is .*, expected int\[n\]: the numbers of some roots"),
        ([4, 0, 4], 3, "root 4 comes 2 times, expected distinct roots where there is a size"),
        ([0, 1, 2], 2, "3 roots were given, expected at most size=2"),
    ],
)
def test_mistakes_are_named(roots: list[Any], size: int | None, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        take(walks(), np.array(roots), size=size)


def test_traced_roots_are_refused() -> None:
    hdg = walks()
    with pytest.raises(GraphError, match="take batches outside jit"):
        jax.jit(lambda roots: take(hdg, roots).root)(jnp.arange(2))
    with pytest.raises(GraphError, match=r"take\(\) got 3, expected concrete ones"):
        take(3, [0])  # type: ignore[arg-type]
