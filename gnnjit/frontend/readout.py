"""Readouts: reductions over all vertices, or all edges, of each graph of a batch.

A vertex value (`v`, or what is computed from it and from reductions) is reduced over the vertices
of its graph, an edge value (what is computed from `e.src` or `e.data`) over the edges. `e.src` by
itself is an edge value too, and `e.dst` is `v`. The result has one value for each graph, as
`e.globals` has: it can be combined with values of vertices and edges, and what is computed from
such values alone is computed once a graph. Returned, it comes back as `[num_graphs, ...]`.

Vertices and edges that are padding do not count. A graph that `gnnjit.graph.batch` did not make is
one graph. These words have meaning only inside `@gnnjit.layer`.

Battaglia et al., "Relational inductive biases, deep learning, and graph networks" (2018), section
3.2: the aggregations into the global attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit import _compat
from gnnjit.frontend import formulas
from gnnjit.frontend.formulas import as_by, as_float, real
from gnnjit.frontend.vocabulary import inside, linear_jvp, no_inner_transpose, numbers_to_reduce

__all__ = ["max", "mean", "min", "softmax", "std", "sum"]

pool_p = _compat.Primitive("gnnjit_pool")
"""`kind` is `sum`, `max`, `min`, or `count`: how many values the others would reduce."""


def _one_element(x: Any, kind: str, **_: Any) -> Any:
    return jnp.int32(1) if kind == "count" else x


def _batch(args: Any, dims: Any, *, kind: str, said: str) -> Any:
    (x,), (d,) = args, dims
    if kind == "count":
        x, d = jax.lax.index_in_dim(x, 0, d, keepdims=False), None
    return pool_p.bind(x, kind=kind, said=said), d


pool_p.def_impl(_one_element)
pool_p.def_abstract_eval(
    lambda x, kind, **_: (
        _compat.shaped_array((), np.dtype(np.int32))
        if kind == "count"
        else _compat.shaped_array(x.shape, x.dtype)
    )
)
_compat.batching.primitive_batchers[pool_p] = _batch
_compat.ad.primitive_transposes[pool_p] = lambda *_, **__: no_inner_transpose()
_compat.mlir.register_lowering(pool_p, _compat.mlir.lower_fun(_one_element, multiple_results=False))


def _jvp(primals: Any, tangents: Any, *, kind: str, said: str) -> Any:
    if kind != "count":
        return linear_jvp(pool_p)(primals, tangents, kind=kind, said=said)
    none = _compat.zero_tangent(jax.ShapeDtypeStruct((), jnp.int32))
    return pool_p.bind(*primals, kind=kind, said=said), none


_compat.ad.primitive_jvps[pool_p] = _jvp


class _Graph:
    """The vertices or edges of a graph, as `formulas` reduces over them."""

    def reduce(self, kind: str, x: jax.Array) -> jax.Array:
        x, said = numbers_to_reduce(kind, x)
        return pool_p.bind(x, kind=kind, said=said)

    def count(self, x: jax.Array) -> jax.Array:
        x, said = numbers_to_reduce("sum", x)
        return pool_p.bind(x, kind="count", said=said)


_GRAPH = _Graph()


def _readout(word: str, value: Any, initial: Any, one: Callable[[jax.Array], jax.Array]) -> Any:
    inside(f"readout.{word}", "the vertices and edges of one graph")

    def reduced(leaf: Any) -> jax.Array:
        x = jnp.asarray(leaf)
        out = one(x)
        if initial is None:
            return out
        return jnp.where(_GRAPH.count(x) > 0, out, jnp.asarray(initial, out.dtype))

    return jax.tree.map(reduced, value)


def sum(value: Any, *, initial: Any = None) -> Any:
    """Sum of `value` over the vertices, or the edges, of each graph: the same pytree, one value for
    each graph. Dtypes are those of `gnnjit.sum`.

    Args:
        value: a pytree of `[...]`, one value for each vertex or edge.
        initial: the result for a graph without any; 0 if left out.

    Raises:
        LayerError: outside a layer, or `value` is that of a graph, or shared by all.
    """
    return _readout("sum", value, initial, lambda x: _GRAPH.reduce("sum", as_by("sum", x)))


def mean(value: Any, *, initial: Any = None) -> Any:
    """Arithmetic mean over the vertices, or the edges, of each graph; half precision is summed in
    float32.

    Args:
        value: a pytree of `[...]`, one value for each vertex or edge.
        initial: the result for a graph without any; 0 if left out.

    Raises:
        LayerError: as of `sum`.
    """
    one = formulas.mean
    return _readout("mean", value, initial, lambda x: one(_GRAPH, x).astype(as_float(x).dtype))


def max(value: Any, *, initial: Any = None) -> Any:
    """Elementwise maximum over the vertices, or the edges, of each graph; ties share the gradient
    evenly.

    Args:
        value: a pytree of `[...]`, one value for each vertex or edge.
        initial: the result for a graph without any; 0, with a zero gradient, if left out.

    Raises:
        LayerError: as of `sum`.
    """
    return _readout("max", value, initial, lambda x: _extreme("max", x))


def min(value: Any, *, initial: Any = None) -> Any:
    """Elementwise minimum over the vertices, or the edges, of each graph; ties share the gradient
    evenly.

    Args:
        value: a pytree of `[...]`, one value for each vertex or edge.
        initial: the result for a graph without any; 0, with a zero gradient, if left out.

    Raises:
        LayerError: as of `sum`.
    """
    return _readout("min", value, initial, lambda x: _extreme("min", x))


def _extreme(kind: str, x: jax.Array) -> jax.Array:
    """The compiler reduces truth values as integers."""
    if x.dtype == jnp.bool_:
        return _GRAPH.reduce(kind, x.astype(jnp.int32)) > 0
    return _GRAPH.reduce(kind, x)


def std(value: Any, *, initial: Any = None) -> Any:
    """Population standard deviation over the vertices, or the edges, of each graph: real. As in
    `gnnjit.std`, a spread that rounding alone may have made counts as 0, with gradient 0.

    Args:
        value: a pytree of `[...]`, one value for each vertex or edge.
        initial: the result for a graph without any; 0 if left out.

    Raises:
        LayerError: as of `sum`.
    """
    return _readout("std", value, initial, lambda x: formulas.std(_GRAPH, x).astype(real(x)))


def softmax(value: Any) -> Any:
    """Softmax over the vertices, or the edges, of each graph: a value of the vertex or edge, as
    `value` is. Where all scores of a graph are -inf its weights are 0.

    Args:
        value: a pytree of `[...]`, one score for each vertex or edge; each entry is normalised by
            itself.

    Raises:
        LayerError: as of `sum`.
    """
    return _readout("softmax", value, None, lambda x: formulas.softmax(_GRAPH, x))
