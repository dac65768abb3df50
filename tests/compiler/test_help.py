"""How a layer is shown: its signature, the names of a module's parameters, pictures of checks."""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

import gnnjit
from gnnjit import nn

GRAPH = gnnjit.Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1], num_nodes=4)
X = jnp.linspace(0, 1, 8).reshape(4, 2)


@gnnjit.layer
def attention(v: Any, e: Any, w: Any, *, slope: float = 0.2) -> Any:
    """Attends."""
    return gnnjit.sum(jnp.where(e.src @ w > 0, e.src, slope * e.src))


@gnnjit.layer
def of_its_own(v: Any, e: Any, x: Any) -> Any:
    return gnnjit.sum(e.src) * x


def test_help_shows_how_a_layer_is_called() -> None:
    text = pydoc.plain(pydoc.render_doc(attention))
    given = "edges=None, globals=None, slope: 'float' = 0.2"
    assert f"attention(graph, x, /, w: 'Any', *, {given})" in text
    assert "Attends." in text


def test_methods_keep_self() -> None:
    assert list(inspect.signature(nn.GATv2.__call__).parameters)[:3] == ["self", "graph", "x"]


def test_a_parameter_of_the_name_x() -> None:
    assert list(inspect.signature(of_its_own).parameters) == ["v", "e", "x"]
    assert of_its_own(GRAPH, X, 2.0).shape == (4, 2)


def test_parameters_of_nnx_by_their_names() -> None:
    model = nn.GAT(2, 3, heads=2, rngs=nnx.Rngs(0))
    (story,) = gnnjit.explain(model, GRAPH, X, backward=False)
    assert "self.linear.kernel: f32[2, 6]" in story.written
    assert "self.linear.kernel" in story.program
    assert "self.attend_dst" in story.program
    report = gnnjit.check(model, GRAPH, X)
    assert "gradient of self.linear.kernel: equal" in str(report)


def test_parameters_of_linen_by_their_names() -> None:
    class Module(linen.Module):
        @linen.compact
        @gnnjit.layer
        def __call__(self, v: Any, e: Any) -> Any:
            return gnnjit.sum(linen.Dense(3, name="project")(e.src))

    module = Module()
    variables = module.init(jax.random.key(0), GRAPH, X)
    (story,) = gnnjit.explain(lambda: module.apply(variables, GRAPH, X), backward=False)
    assert "self.project.kernel: f32[2, 3]" in story.written


def test_kernels_say_what_they_read() -> None:
    (kernel, *_) = attention.explain(GRAPH, X, jnp.ones(2), backward=False).kernels
    first = kernel.traversal.splitlines()[0]
    assert re.match(r"reads [\w.]+: f32\[src, 2\]", first)


def test_passes_are_shown_by_what_they_change() -> None:
    text = str(attention.explain(GRAPH, X, jnp.ones(2), backward=False))
    assert "lines as before)" in text
    assert text.count("\nlayer ") == 2  # as written, and what runs


def test_checks_in_a_notebook() -> None:
    model = nn.SAGE(2, 3, rngs=nnx.Rngs(0))
    reports = gnnjit.check(model, GRAPH, X)
    shown = reports._repr_html_()
    assert shown.count("<table>") == 1
    assert "<td>output 0</td><td>equal</td>" in shown
    assert "SAGE" in shown
    assert "optimised against interpreted" in str(reports)
