"""Mistakes with values of graphs: each has a message that says what came and what to do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import readout
from gnnjit.errors import GnnjitWarning, GraphError, LayerError

ONE = gnnjit.Graph.from_edges([0, 1], [1, 2], 3)
TWO, _ = gnnjit.graph.batch([ONE, ONE])
X1, X2 = jnp.ones((3, 4)), jnp.ones((6, 4))


def message(fn: Any, *args: Any, error: type[Exception] = LayerError, **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        gnnjit.layer(fn)(*args, **kwargs)
    return str(caught.value)


def test_globals_are_missing():
    text = message(lambda v, e: v + e.globals, TWO, X2)
    assert "reads e.globals, but no features of graphs were given: call it with globals=..." in text
    assert "[num_graphs, ...]" in text


def test_globals_of_another_number_of_graphs():
    text = message(lambda v, e: v + e.globals, TWO, X2, globals=jnp.ones((3, 4)), error=GraphError)
    assert (
        "globals has 3 rows, but the graph has 2 graphs: pass arrays with one row per graph" in text
    )


def test_globals_on_a_graph_that_was_not_batched():
    text = message(lambda v, e: v + e.globals, ONE, X1, globals=jnp.ones((2, 4)), error=GraphError)
    assert "globals has 2 rows, but the graph has 1 graph: pass arrays [1, ...], or make" in text
    assert "gnnjit.graph.batch, which remembers its graphs" in text


def test_globals_that_are_no_array():
    text = message(lambda v, e: v + e.globals["a"], TWO, X2, globals={"a": "red"})
    assert "globals['a'] is a str, expected an array of numbers" in text


def test_globals_that_nothing_reads():
    text = message(lambda v, e: gnnjit.sum(e.src), TWO, X2, globals=jnp.ones((2, 4)))
    assert "was given globals=, and its results depend on none of it (per graph: " in text
    assert "e.globals: float32[4]). Read it in the layer as e.globals" in text


def test_readout_outside_of_a_layer():
    with pytest.raises(
        LayerError, match=r"gnnjit.readout.sum\(\) was called outside a layer: it re"
    ):
        readout.sum(X1)


@pytest.mark.parametrize("word", ["sum", "max", "mean", "std", "softmax"])
def test_readout_of_a_shared_value(word: str):
    text = message(lambda v, e, w: getattr(readout, word)(w), TWO, X2, jnp.ones(4))
    assert f"readout.{word}() needs a value on edges or vertices, got the shared value w: " in text
    assert f"Combine it with v or e.src first, as in readout.{word}(w * v)" in text


def test_readout_of_a_value_of_the_graph():
    text = message(lambda v, e: readout.sum(readout.max(v)), TWO, X2)
    assert (
        "readout.sum() needs a value on edges or vertices, got a value of the whole graph: " in text
    )
    text = message(lambda v, e: readout.mean(e.globals), TWO, X2, globals=jnp.ones((2, 4)))
    assert "got a value of the whole graph e.globals: float32[4], which there is once" in text


def test_readout_of_complex_numbers():
    text = message(lambda v, e: readout.max(v * 1j), TWO, X2)
    assert "readout.max() got complex64[4], expected real numbers" in text


def test_readout_in_a_loop():
    def fn(v: Any, e: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda _, x: x + readout.sum(v), jnp.zeros(4))

    assert "a gnnjit reduction sits inside " in message(fn, TWO, X2)


def test_differentiating_a_maximum_inside_of_a_layer():
    text = message(lambda v, e: jax.grad(lambda x: readout.max(x).sum())(v), TWO, X2)
    assert "inside a layer reached gnnjit.readout.max()" in text


def test_a_sum_over_edges_of_a_value_of_the_graph_is_suspicious():
    with pytest.warns(GnnjitWarning, match="the same for all incoming edges"):
        gnnjit.layer(lambda v, e: gnnjit.sum(e.globals))(TWO, X2, globals=jnp.ones((2, 4)))


def test_by_hand_such_a_layer_is_compiled_after_all():
    layer = gnnjit.layer(lambda v, e: readout.sum(v))
    with jax.disable_jit(), pytest.warns(GnnjitWarning, match="values of whole graphs"):
        found = layer(TWO, X2)
    np.testing.assert_array_equal(found, np.full((2, 4), 3.0))


def test_solvers_need_a_linear_readout():
    layer = gnnjit.layer(lambda v, e: readout.max(v) + 0 * readout.sum(v))
    with pytest.raises(LayerError, match="it is not linear in what it is transposed for: pool"):
        jax.linear_transpose(lambda x: layer(TWO, x), X2)(jnp.ones((2, 4)))
    linear = gnnjit.layer(lambda v, e: v + readout.sum(v))
    (back,) = jax.linear_transpose(lambda x: linear(TWO, x), X2)(X2)
    np.testing.assert_array_equal(back, np.full((6, 4), 4.0))


def test_a_capacity_below_the_number_of_graphs():
    with pytest.raises(GraphError, match="num_graphs=1 is below the 2 that the graph has"):
        TWO.pad(10, 10, num_graphs=1)
