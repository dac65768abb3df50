"""Sharded graphs are no arguments of exported functions (`jax.export`): the error says so."""

from __future__ import annotations

from typing import Any

from jax import export

from gnnjit.errors import GraphError
from gnnjit.sharding.exchange import AllGather, Cover, Halo, Ring
from gnnjit.sharding.sharded_graph import ShardedGraph


def _refuse(_: Any) -> Any:
    raise GraphError(
        "a sharded graph is an argument of an exported function, and it names the devices of this "
        "process. Export a function of its arrays: f(leaves) with leaves, tree = "
        "jax.tree.flatten(graph), which calls jax.tree.unflatten(tree, leaves)"
    )


def register() -> None:
    """Tell JAX the error, for each part of a sharded graph."""
    for kind in (AllGather, Cover, Halo, Ring, ShardedGraph):
        export.register_pytree_node_serialization(
            kind,
            serialized_name=f"gnnjit.{kind.__name__}",
            serialize_auxdata=_refuse,
            deserialize_auxdata=_refuse,
        )
