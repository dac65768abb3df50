"""What the modules share that take features or weights of the edges."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import LayerError
from gnnjit.graph import Bipartite, Graph


def edge_vector(data: jax.Array, module: str, features: int) -> jax.Array:
    """`e.data` as `[features]`: a number for each edge is a vector of one.

    Raises LayerError on another width; to be called inside a layer.
    """
    data = jnp.atleast_1d(jnp.asarray(data))
    if data.shape != (features,):
        raise LayerError(
            f"{module} was given edges= of {list(data.shape)} per edge, expected [{features}], its "
            "edge_features: pass edges of shape [num_edges, edge_features]"
        )
    return data


def check_weights(edges: Any, module: str) -> None:
    """Raises LayerError unless `edges` is None or one array of a number for each edge."""
    if edges is None:
        return
    if getattr(edges, "ndim", None) != 1:
        shapes = ", ".join(str(list(np.shape(leaf))) for leaf in jax.tree.leaves(edges)[:8])
        raise LayerError(
            f"{module} takes weights as edges=, expected one array of shape [num_edges], got "
            f"shape {shapes or 'nothing'}: of shape [num_edges, 1], pass edges[:, 0]; features of "
            "the edges are read by GAT, GATv2, GIN, GatedGCN, GraphTransformer, PNA, NNConv and "
            "GraphNet (edge_features=...)"
        )


def check_one_set(graph: Any, x: Any, module: str) -> None:
    """Raises LayerError on two vertex sets, of which a layer that runs in steps has no next."""
    if isinstance(x, Bipartite) or graph.num_src != graph.num_dst:
        came = "a Bipartite" if isinstance(x, Bipartite) else "a graph between two vertex sets"
        raise LayerError(
            f"{module} was given {came}, expected one vertex set with x of shape [num_nodes, F]: "
            "what a step computes at the destinations is what the next one reads at the sources. "
            "Make one graph of both sets (number the destinations behind the sources, "
            "dst + num_src), stack their features, and read the destinations' rows of the result"
        )


def check_whole(graph: Any, module: str) -> None:
    """Raises LayerError on a block of a sampled batch, which has no vertices for a second step."""
    if isinstance(graph, Graph) and graph.nested:
        raise LayerError(
            f"{module} was given a block of a sampled batch, expected a whole graph: each of its "
            "steps reads what the one before computed at all vertices. Sample subgraphs instead "
            "(gnnjit.sample.ClusterSampler, WalkSampler, InducedSampler)"
        )
