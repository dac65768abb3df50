"""Edge networks on a GPU: XLA's operations over arrays of edges, then a kernel over rows.

XLA's matrix products reach 440 TFLOP/s on an H200 where those inside a generated kernel, which
holds a tile of edges and a matrix at once, reach 30 (gnnjit/design/0014). So XLA evaluates the
edge function for all edges at once, in the order in which they were given: nothing is permuted, and
values that stay on the edges are where they belong. It also sums over all edges. What rows reduce
is an array by then, which the kernel of rows reads once, in any order and without atomics.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from gnnjit.cost.memory import CHUNK_SCALARS_STAGED
from gnnjit.ir.large_products import is_large_product
from gnnjit.ir.program import Aggregate, Atom, Equation, Program, Value
from gnnjit.ir.space import Space
from gnnjit.lower import pallas
from gnnjit.lower.lowering import WRITTEN, LoweringRequest, Reductions
from gnnjit.lower.xla.segment import (
    ChunkEdges,
    ChunkStep,
    chunk_size,
    collect,
    over_chunks,
    sum_of_products,
    transposed,
)

MATRIX = 32 * 32
"""Scalars of a matrix from which edges that are multiplied with it are taken together."""

WIDE = 256
"""Scalars of a value of an edge that a kernel does not cut or join."""

PIECES = range(100, 1025)
"""Into how many parts the edges are cut for a matrix gradient, whose products are then added: the
least of these numbers that divides the edges, and one part if none does. Each part is the work of a
multiprocessor, of which an H200 has 132. XLA's own cut takes 0.60 ms in place of 0.20 for 800,000
edges and 128 x 128: it pads both factors, which copies them."""


@dataclasses.dataclass(frozen=True)
class StagedTraversal:
    """A traversal in two stages.

    edges: its first outputs are the values for each edge that `rows` reduces; then come the outputs
        of the traversal that no row owns. `inputs`: which operands it takes.
    rows: its operands are the first outputs of `edges`; None where nothing is reduced into rows.
    owned, others: which outputs of the traversal `rows` gives, and which `edges`.
    """

    edges: Aggregate
    inputs: tuple[int, ...]
    rows: Aggregate | None
    owned: tuple[int, ...]
    others: tuple[int, ...]

    def request_of_rows(self, request: LoweringRequest) -> LoweringRequest | None:
        """What the kernel of rows is asked for."""
        op = self.rows
        return op and dataclasses.replace(request, body=op.body, reductions=op.reductions)


@functools.lru_cache(maxsize=1024)
def stages(body: Program, reductions: Reductions, by: Space) -> StagedTraversal:
    """The two stages of a traversal by rows of `by`."""
    owned = tuple(i for i, r in enumerate(reductions) if r is not None and r.into is by)
    others = tuple(i for i in range(len(reductions)) if i not in owned)
    atoms: tuple[Atom, ...] = tuple(body.outputs[i] for i in (*owned, *others))
    into = (*(None for _ in owned), *(reductions[i] for i in others))
    whole = Aggregate(dataclasses.replace(body, outputs=atoms), into)
    edges, _, inputs = whole.select(range(len(atoms)))
    rows = None
    if owned:
        values = tuple(Value(tuple(a.shape), a.dtype, Space.EDGE) for a in atoms[: len(owned)])
        kinds = Aggregate(body, reductions).select(owned).op.reductions
        rows = Aggregate(Program(values, (), values, body.name), kinds)
    return StagedTraversal(edges, inputs, rows, owned, others)


def _moves_much(eqn: Equation) -> bool:
    """Whether it cuts or joins wide values of an edge, for which a kernel reads and writes all of
    its registers again and again: 15 ms of 28 in tensor products of 320 weights (design 0014)."""
    if eqn.op.name not in ("split", "slice", "concatenate"):
        return False
    wide = max(math.prod(a.shape) for a in (*eqn.inputs, *eqn.outputs))
    return wide >= WIDE and eqn.outputs[0].space is not Space.SHARED


def is_meant(body: Program) -> bool:
    """Whether an edge function has products or moves that a kernel is slow at."""
    return any(is_large_product(e, MATRIX) or _moves_much(e) for e in body.equations)


def why_not(request: LoweringRequest) -> list[str]:
    """Reasons against this lowering; none means that it runs."""
    if not is_meant(request.body):
        return [f"no matrix of {MATRIX} scalars multiplies the edges"]
    found = stages(request.body, request.reductions, request.rows)
    rows = found.request_of_rows(request)
    if rows is None:
        return []
    written = [math.prod(v.shape) for v in rows.body.outputs]
    count, limit = request.graph.num_edges, request.limit
    if count * sum(written) > WRITTEN or (limit is not None and count * max(written) > limit):
        return [f"rows would read {count * sum(written)} scalars of {count} edges from an array"]
    return pallas.why_not(rows)


def run(request: LoweringRequest, operands: Sequence[Any]) -> list[Any]:
    """The outputs of the traversal."""
    found = stages(request.body, request.reductions, request.rows)
    outs: list[Any] = [None] * len(request.reductions)
    values = _over_edges(found.edges, request, [operands[i] for i in found.inputs])
    rows = found.request_of_rows(request)
    if rows is not None:
        given = values[: len(found.owned)]
        for i, x in zip(found.owned, pallas.run(rows, given), strict=True):
            outs[i] = x
    for i, x in zip(found.others, values[len(found.owned) :], strict=True):
        outs[i] = x
    return outs


def _over_edges(op: Aggregate, request: LoweringRequest, operands: list[Any]) -> list[Any]:
    """The outputs of an aggregate that no row owns, in chunks where all edges are too many."""
    num_edges = request.graph.num_edges
    limit = CHUNK_SCALARS_STAGED if request.limit is None else request.limit
    request = dataclasses.replace(request, body=op.body, reductions=op.reductions)
    chunk = chunk_size(op.body, num_edges, limit, op.reductions)
    return over_chunks(_StepInOrder(request, operands, chunk))


class _StepInOrder(ChunkStep):
    """A chunk of edges in the order in which they were given; no output is reduced into rows."""

    def part(self, number: Any) -> ChunkEdges:
        graph, chunk = self.graph, self.chunk
        row, neighbor = graph.dst, graph.src
        if self.rows is Space.SRC:
            row, neighbor = neighbor, row
        if chunk == graph.num_edges:
            return ChunkEdges(0, None, row, neighbor, graph.mask)
        # The last chunk begins early enough to be as long as the others.
        first = number * chunk
        start = jnp.minimum(first, graph.num_edges - chunk).astype(row.dtype)
        valid = start + jnp.arange(chunk, dtype=row.dtype) >= first
        row, neighbor = (lax.dynamic_slice_in_dim(x, start, chunk) for x in (row, neighbor))
        if graph.mask is not None:
            valid &= lax.dynamic_slice_in_dim(graph.mask, start, chunk)
        return ChunkEdges(start, None, row, neighbor, valid)

    def summed(self, product: tuple[Equation, ...], a: Any, b: Any, dtype: Any) -> Any:
        if self.request.platform == "cpu":
            a, b = a.astype(dtype), b.astype(dtype)
        pieces = next((n for n in PIECES if self.chunk % n == 0), 1)
        return transposed(product, sum_of_products(product, a, b, pieces, dtype))

    def of_edges(self, x: Any, part: ChunkEdges) -> Any:
        whole = self.chunk == self.graph.num_edges
        return x if whole else lax.dynamic_slice_in_dim(x, part.start, self.chunk)

    def write(self, written: Any, x: Any, part: ChunkEdges) -> Any:
        return collect(written, x, part)
