"""What the modules share that normalise by degrees: `D^-1/2 A D^-1/2`, a step or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import gnnjit
from gnnjit.errors import LayerError
from gnnjit.graph import Bipartite, Graph
from gnnjit.nn.arguments import float_features


def degree_factors(
    module: str, graph: Graph, x: Any, weights: jax.Array | None, own: int
) -> tuple[Any, Any]:
    """`x` as floating-point numbers, and `(degree + own) ** -0.5` (0 where that is not positive).

    Both are an array, or a `Bipartite` of two. Raises GraphError and LayerError for what is no
    array of features.
    """
    if isinstance(graph, Graph):
        x = graph.at_both_ends(x)
    if not isinstance(x, Bipartite):
        if graph.num_src != graph.num_dst:
            raise LayerError(
                f"nn.{module}: the graph has {graph.num_src} sources and {graph.num_dst} "
                "destinations, but x is one array, expected one for each: pass "
                "gnnjit.Bipartite(src=..., dst=...)"
            )
        x = float_features(module, x)
        return x, _inverse_root(_degree(graph, weights), own, x.dtype)
    x = Bipartite(float_features(module, x.src), float_features(module, x.dst))
    if isinstance(graph, Graph) and graph.whole_degree is not None:
        of_src, of_dst = graph.whole_degree, graph.whole_degree[: graph.num_dst]
    else:
        of_src, of_dst = _degree(graph.reverse(), weights), _degree(graph, weights)
    at_src = _inverse_root(of_src, own, x.src.dtype)
    at_dst = _inverse_root(of_dst, own, x.dst.dtype)
    return x, Bipartite(at_src, at_dst)


def paired(x: Any, at: Any) -> Any:
    """The features with their factors, as a layer takes them."""
    return Bipartite((x.src, at.src), (x.dst, at.dst)) if isinstance(x, Bipartite) else (x, at)


def neighbours(v: Any, u: Any, weight: Any = None) -> jax.Array:
    """`sum over (u -> v) of h[u] / sqrt(d[u] d[v])`, `[F]`; to be called inside a layer.

    `v` and `u` are `paired` features of the edge's ends; each term times `weight`, if given.
    """
    (_, at_v), (h, at_u) = v, u
    if weight is None:  # degrees have no gradient
        at_v, at_u = jax.lax.stop_gradient((at_v, at_u))
    message = at_v * (at_u * h)
    return gnnjit.sum(message if weight is None else weight * message)


def own_term(v: Any, weighted: bool) -> jax.Array:
    """`h[v] / d[v]`, the term of the vertex itself beside its `neighbours`; inside a layer."""
    own, at_v = v
    at_v = at_v if weighted else jax.lax.stop_gradient(at_v)
    return at_v * (at_v * own)


def normalized_sum(graph: Graph, x: Any, edges: jax.Array | None = None) -> jax.Array:
    """`D^-1/2 A D^-1/2 h` at the destinations, of `paired` features, with weights in A if given."""
    return _normalized_sum(graph, x, edges=edges, weighted=edges is not None)


@gnnjit.layer(static_argnames="weighted")
def _normalized_sum(v: Any, e: Any, *, weighted: bool) -> jax.Array:
    return neighbours(v, e.src, e.data if weighted else None)


def both_ways(graph: Graph, x: Any, step: Callable[[Graph, Any], Any]) -> Any:
    """`step(graph, x)`; of a `Bipartite` x also at the sources, along the reversed edges.

    `x` and the result are arrays, or a `Bipartite` of them: what one step computes, the next reads.
    """
    if not isinstance(x, Bipartite):
        return step(graph, x)
    return Bipartite(step(graph.reverse(), Bipartite(x.dst, x.src)), step(graph, x))


def _degree(graph: Graph, weights: jax.Array | None) -> jax.Array:
    return graph.in_degree if weights is None else _total(graph, Bipartite(), edges=weights)


@gnnjit.layer
def _total(v: Any, e: Any) -> jax.Array:
    return gnnjit.sum(e.data.astype(jnp.promote_types(e.data.dtype, jnp.float32)))


def _inverse_root(degree: jax.Array, own: int, dtype: Any) -> jax.Array:
    """In float32 for half precision, in which a degree may be no number."""
    degree = degree.astype(jnp.promote_types(dtype, jnp.float32)) + own
    some = degree > 0
    return jnp.where(some, jax.lax.rsqrt(jnp.where(some, degree, 1)), 0).astype(dtype)
