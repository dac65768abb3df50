"""Graphs as arguments of functions that `jax.export` writes to a file."""

from __future__ import annotations

import json
from typing import Any

from jax import export

from gnnjit.graph.degree_buckets import Buckets
from gnnjit.graph.graph import Bipartite, Graph
from gnnjit.graph.members import Members
from gnnjit.graph.relations import Relations
from gnnjit.graph.row_tasks import RowTasks, TaskList
from gnnjit.graph.structure import Structure
from gnnjit.graph.typed import TypedGraph


def _dump(static: Any) -> bytes:
    """The static fields of a pytree node, which are numbers and names."""
    return json.dumps(static, default=int).encode()


def _load(raw: bytes) -> Any:
    return _as_tuples(json.loads(raw))


def _as_tuples(x: Any) -> Any:
    return tuple(map(_as_tuples, x)) if isinstance(x, list) else x


def register() -> None:
    """Tell JAX how the parts of a graph are written. Both processes import gnnjit then."""
    for kind in (Bipartite, Buckets, Graph, Members, Relations, RowTasks, Structure, TypedGraph):
        export.register_pytree_node_serialization(
            kind,
            serialized_name=f"gnnjit.{kind.__name__}",
            serialize_auxdata=_dump,
            deserialize_auxdata=_load,
        )
    export.register_namedtuple_serialization(TaskList, serialized_name="gnnjit.TaskList")
