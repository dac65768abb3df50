"""What the modules for typed graphs share: types, relations, and a linear map for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx

from gnnjit.errors import GraphError, LayerError
from gnnjit.graph import TypedGraph
from gnnjit.graph.parted import PartedTypedGraph
from gnnjit.graph.schema import Relation, check_key, shown_key
from gnnjit.graph.validate import shown
from gnnjit.nn.arguments import check_sizes
from gnnjit.nn.init import glorot
from gnnjit.sharding import ShardedTypedGraph

AnyTypedGraph = TypedGraph | ShardedTypedGraph | PartedTypedGraph
"""In memory, over several devices, or with its edges in a store."""


def of_relation(key: Relation) -> str:
    """The name of a relation's parameters, as in PyG."""
    return "__".join(key)


def check_schema(module: str, types: Any, relations: Any) -> None:
    """Raises LayerError unless `relations` are relations between `types`."""
    if isinstance(types, str) or not isinstance(types, Sequence):
        raise LayerError(
            f"nn.{module}: types is {shown(types)}, expected the names of vertex types: pass "
            "graph.types"
        )
    if isinstance(relations, str) or not isinstance(relations, Sequence):
        raise LayerError(
            f"nn.{module}: relations is {shown(relations)}, expected keys of relations: pass "
            "graph.relations"
        )
    for key in relations:
        try:
            check_key(key)
        except GraphError as error:
            raise LayerError(f"nn.{module}: relations: {error}") from None
        if missing := [t for t in (key[0], key[2]) if t not in types]:
            raise LayerError(
                f"nn.{module}: the relation {shown_key(key)} has the type {missing[0]!r}, which "
                "types lacks: pass graph.types and graph.relations of one graph"
            )


def widths(module: str, in_features: Any, types: Sequence[str]) -> dict[str, int]:
    """The width of each type's features. Raises LayerError where one is missing or no size."""
    if not isinstance(in_features, Mapping):
        in_features = dict.fromkeys(types, in_features)
    if missing := [t for t in types if t not in in_features]:
        raise LayerError(
            f"nn.{module}: in_features has no {missing[0]!r}, expected a width for each vertex "
            "type: pass one number for all, or a dictionary of all types"
        )
    for t in types:
        check_sizes(module, **{f"in_features[{t!r}]": in_features[t]})
    return {t: int(in_features[t]) for t in types}


def linear_of_types(
    sizes: Mapping[str, int], out_features: int, rngs: nnx.Rngs, use_bias: bool = True
) -> nnx.Dict:
    """A linear map for each vertex type."""
    return nnx.Dict(
        {t: nnx.Linear(n, out_features, use_bias=use_bias, kernel_init=glorot, rngs=rngs)
         for t, n in sizes.items()}
    )  # fmt: skip


def real_rows(graph: AnyTypedGraph, node_type: str) -> jax.Array | None:
    """`bool[N]`, False on the vertices of a type that are padding; None where nothing says so."""
    if isinstance(graph, ShardedTypedGraph):
        return graph.vertex_mask[node_type]
    if isinstance(graph, PartedTypedGraph):
        return None
    for key in graph.into(node_type):
        members = graph[key].members
        if members is not None and members.real_dst is not None:
            return members.real_dst
    return None
