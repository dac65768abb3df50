"""Bytes that a sketch needs beside what every plan needs, bounded from above."""

from __future__ import annotations

import dataclasses

from gnnjit.cost.machine import Machine
from gnnjit.cost.sketch import EdgeNode, Sketch, SketchedTraversal
from gnnjit.cost.work import bytes_of, goes_in_chunks, is_large_product
from gnnjit.ir.space import Space

CHUNK_SCALARS = 1 << 20
"""Scalars of a chunk of edges, where nothing limits the lowering in chunks: a cache holds them."""

CHUNK_SCALARS_ON_GPU = 1 << 26
"""A step there is some thirty launches, whatever its size."""

CHUNK_SCALARS_STAGED = 1 << 30
"""Of edges that are multiplied with matrices there, all at once if they are no more."""

_LARGER = 1.02
_SMALL = 1 << 16
"""What padding between buffers, small constants and values of one row add: a share, and bytes."""


@dataclasses.dataclass(frozen=True)
class Scratch:
    """bytes: an upper bound of everything written, as if no buffer were used again.
    steps: chunks of edges, in all traversals that go in chunks.
    """

    bytes: float
    steps: int


def scratch_of(sketch: Sketch, machine: Machine, limit: int | None, results: int) -> Scratch:
    """Arrays that are written, and what the traversals in chunks of `limit` hold beside them.

    results: how many of the outputs are results of the call; the others are gradients, which do
    not count here.
    """
    gradients = {n for n in sketch.outputs[results:] if n.op != "leaf" and n.place > 1}
    total = bytes_of(sketch, machine) - sum(n.place * n.bytes for n in gradients)
    steps = 0
    for t in sketch.traversals:
        nodes = t.nodes()
        total += sum(n.bytes for n in nodes if n.place is Space.SHARED)
        total += _stored(t, nodes, sketch.sizes.edges, limit)
        if goes_in_chunks(nodes, machine):
            held, chunk = _chunk(t, nodes, machine, sketch.sizes.edges, limit)
            total += held
            steps += -(-sketch.sizes.edges // chunk)
    return Scratch(total * _LARGER + _SMALL, steps)


def _stored(t: SketchedTraversal, nodes: list[EdgeNode], edges: int, limit: int | None) -> float:
    """Bytes of what sources reduce, if another traversal writes it (`store-shared-products`)."""
    if not any(is_large_product(n) and n.place is Space.EDGE for n in nodes):
        return 0.0
    values = {n for n, into in t.outputs if into is Space.SRC}
    kept = limit is None or edges * sum(n.width for n in values) <= limit
    return float(edges * sum(n.bytes for n in values)) if kept else 0.0


def _chunk(
    t: SketchedTraversal, nodes: list[EdgeNode], machine: Machine, edges: int, limit: int | None
) -> tuple[float, int]:
    """Bytes of one step if nothing in it is fused, and its edges."""
    summed = {n for n, into in t.outputs if into is Space.SHARED and n.op == "dot_general"}
    held = [n for n in nodes if n.place is not Space.SHARED and n not in summed]
    widest = max([1, *(n.width for n in held)])
    if limit is not None:
        scalars = limit
    elif machine.platform == "cpu":
        scalars = CHUNK_SCALARS
    else:
        product = any(is_large_product(n) for n in nodes)
        scalars = CHUNK_SCALARS_STAGED if product else CHUNK_SCALARS_ON_GPU
    chunk = max(1, min(scalars // widest, edges))
    return float(chunk * sum(n.bytes for n in held)), chunk
