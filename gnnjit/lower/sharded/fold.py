"""`gnnjit.fold` on the shards of a graph: each folds the edges that end at its vertices.

A shard has all incoming edges of its vertices, in the order in which they were given. The rows of
other shards that they read come into a table first, as for an `aggregate`; gradients go back the
same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from gnnjit.errors import LayerError
from gnnjit.ir.program import Fold, Value
from gnnjit.ir.space import Space
from gnnjit.lower import fold as one_device
from gnnjit.lower.sharded.aggregate import Device, spec
from gnnjit.sharding.exchange import Ring
from gnnjit.sharding.sharded_graph import ShardedGraph


def fold(
    graph: ShardedGraph,
    op: Fold,
    order: Any,
    start: Sequence[Any],
    operands: Sequence[Any],
    where: str,
) -> list[Any]:
    """As `gnnjit.lower.fold.fold`, of arrays on the shards. `where` says whose fold it is.

    Raises LayerError for outgoing edges, and where rows pass by in a ring.
    """
    _check(graph, op, where)
    inputs = op.body.inputs[op.carried :]
    given = [] if order is None else [order]

    def run(graph: ShardedGraph, order: Any, start: Any, operands: Any) -> list[Any]:
        device = Device(graph, "", None)  # nothing is lowered for a platform here
        read, at = list(operands), [i for i, v in enumerate(inputs) if v.space is Space.SRC]
        for i, x in zip(at, device.at_tables([read[i] for i in at], device.halo), strict=True):
            read[i] = x
        return one_device.fold(device.sample(), op, order[0] if order else None, start, read)

    def placed(v: Value) -> Any:
        return spec(graph, v.space, v, False)

    rows = graph.spec
    mapped = jax.shard_map(
        run,
        mesh=graph.mesh,
        in_specs=(
            jax.tree.map(lambda _: rows, graph), [rows] * len(given), [rows] * len(start),
            [placed(v) for v in inputs],
        ),
        out_specs=[rows] * len(start),
        check_vma=False,
    )  # fmt: skip
    return list(mapped(graph, given, list(start), list(operands)))


def _check(graph: ShardedGraph, op: Fold, where: str) -> None:
    if op.into is not Space.DST:
        raise LayerError(
            f'{where}: gnnjit.fold with over="out" on a sharded graph, expected incoming edges: '
            "outgoing edges lie on the shards of their ends, which would wait for each other edge "
            'after edge. Call the layer on the reversed graph with over="in", or on a graph that '
            "is not sharded"
        )
    if isinstance(graph.exchange, Ring):
        raise LayerError(
            f"{where}: gnnjit.fold on a graph that is sharded with exchange='ring', expected "
            "another exchange: the rows that edges read pass by shard after shard, in another "
            "order than the edges. Shard it with exchange='halo'"
        )
