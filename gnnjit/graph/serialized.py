"""Graphs as arguments of functions that `jax.export` writes to a file."""

from __future__ import annotations

import json
from typing import Any

from jax import export

from gnnjit.errors import GraphError
from gnnjit.graph.degree_buckets import Buckets
from gnnjit.graph.graph import Bipartite, Graph
from gnnjit.graph.row_tasks import RowTasks, TaskList
from gnnjit.graph.structure import Structure
from gnnjit.sharding.exchange import AllGather, Cover, Halo, Ring
from gnnjit.sharding.sharded_graph import ShardedGraph


def _dump(static: Any) -> bytes:
    """The static fields of a pytree node, which are numbers."""
    return json.dumps(static, default=int).encode()


def _load(raw: bytes) -> Any:
    return _as_tuples(json.loads(raw))


def _as_tuples(x: Any) -> Any:
    return tuple(map(_as_tuples, x)) if isinstance(x, list) else x


def _refuse(_: Any) -> Any:
    raise GraphError(
        "a sharded graph is an argument of an exported function, and it names the devices of this "
        "process. Export a function of its arrays: f(leaves) with leaves, tree = "
        "jax.tree.flatten(graph), which calls jax.tree.unflatten(tree, leaves)"
    )


def register() -> None:
    """Tell JAX how the parts of a graph are written. Both processes import gnnjit then."""
    sharded, single = (AllGather, Cover, Halo, Ring, ShardedGraph), (
        Bipartite, Buckets, Graph, RowTasks, Structure,
    )  # fmt: skip
    for kind in (*sharded, *single):
        export.register_pytree_node_serialization(
            kind,
            serialized_name=f"gnnjit.{kind.__name__}",
            serialize_auxdata=_refuse if kind in sharded else _dump,
            deserialize_auxdata=_refuse if kind in sharded else _load,
        )
    export.register_namedtuple_serialization(TaskList, serialized_name="gnnjit.TaskList")
