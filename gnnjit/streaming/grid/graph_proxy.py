"""What a streamed function sees of its graph: sizes and degrees, and none of the edges."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax

from gnnjit.errors import StreamError
from gnnjit.graph import Graph
from gnnjit.graph.members import Members
from gnnjit.graph.relations import Relations


@functools.partial(jax.tree_util.register_dataclass, data_fields=["degrees"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class _Degrees:
    """Stands for a sorted structure: its degrees are all that is known of it."""

    degrees: Any

    def degree(self) -> Any:
        return self.degrees

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StreamError(_ABSENT)


_ABSENT = (
    "the edges of a streamed graph are not at hand inside the function: use layers, "
    "graph.in_degree and graph.out_degree (a layer that returns what a source has, edge by edge, "
    "looks at them too), or work on the edges before, outside of it"
)


@jax.tree_util.register_static
class _Absent:
    """Stands for the edges themselves."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Absent)

    def __hash__(self) -> int:
        return hash(_Absent)

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise StreamError(_ABSENT)

    __getitem__ = __iter__ = __len__ = __array__ = _fail
    __jax_array__ = property(_fail)  # which JAX asks for before it looks at anything else
    __add__ = __radd__ = __sub__ = __mul__ = __lt__ = __gt__ = _fail


def graph_proxy(
    num_nodes: int,
    num_edges: int,
    in_degree: Any,
    out_degree: Any,
    members: Members | None,
    relations: Relations | None,
) -> Graph:
    """What a streamed function sees of the graph."""
    nothing: Any = _Absent()
    ins: Any = _Degrees(in_degree)
    outs: Any = _Degrees(out_degree)
    return Graph(
        src=nothing,
        dst=nothing,
        mask=None,
        in_structure=ins,
        out_structure=outs,
        dropped=None,
        num_src=num_nodes,
        num_dst=num_nodes,
        num_edges=num_edges,
        bipartite=False,
        members=members,
        relations=relations,
    )


def no_edges_in(results: Any) -> Any:
    """`results` of a streamed function. Raises StreamError where the graph, or one of the arrays
    that it lacks, is among them."""
    lacking = (Graph, _Absent, _Degrees)
    at = jax.tree_util.tree_leaves_with_path(results, is_leaf=lambda x: isinstance(x, lacking))
    for path, leaf in at:
        if isinstance(leaf, lacking):
            what = "the graph" if isinstance(leaf, Graph) else "edges of the graph"
            raise StreamError(
                f"a streamed function returned {what}{' at ' if path else ''}"
                f"{jax.tree_util.keystr(path)}, expected arrays that it has computed: take the "
                "graph, and its edges, where the function is called"
            )
    return results
