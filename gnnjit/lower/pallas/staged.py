"""Edge networks: one kernel on tiles of edges, then one on rows.

A row of an average graph has a dozen edges, too few for the matrix units. So one kernel goes over
tiles of edges, however many each row has; it writes, for each edge, what rows reduce, and both
factors of the gradients of large matrices. The kernel of rows and a matrix product do the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from gnnjit.ir.large_products import is_large_product
from gnnjit.ir.program import Aggregate, Atom, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.lowering import WRITTEN, LoweringRequest, Reductions
from gnnjit.lower.pallas.launch import KernelPart, by_edge, by_row
from gnnjit.lower.pallas.outer_products import find_outer_products, too_large

TILED = 32 * 32
"""Scalars of a matrix from which edges are multiplied with it in tiles."""

LONG = 1 << 16
"""Edges from which a copy of their values takes more time than a launch."""


@dataclasses.dataclass(frozen=True)
class StagedTraversal:
    """A traversal in two kernels.

    edges: its outputs are the values for each edge, then what it sums over all edges itself.
    rows: its operands are the first outputs of `edges`; None where nothing is reduced into rows.
    products: output of the traversal -> which outputs of `edges` are multiplied.
    kept: output of the traversal -> which output of `edges` it is, none of those: their arrays
        may be longer.
    """

    edges: KernelPart
    rows: KernelPart | None
    products: dict[int, tuple[int, int]]
    kept: dict[int, int]

    @property
    def parts(self) -> tuple[KernelPart, ...]:
        return (self.edges,) if self.rows is None else (self.edges, self.rows)

    @functools.cached_property
    def factors(self) -> frozenset[int]:
        """The outputs of `edges` that are multiplied."""
        return frozenset(n for pair in self.products.values() for n in pair)

    @functools.cached_property
    def written(self) -> list[int]:
        """The scalars of each value that is written for an edge."""
        op = self.edges.op
        each = zip(op.body.outputs, op.reductions, strict=True)
        return [math.prod(atom.shape) for atom, r in each if r is None]


def find(request: LoweringRequest) -> StagedTraversal | None:
    """None where it is no edge network, or what is written would exceed the limit."""
    found = _find(request.body, request.reductions, request.rows)
    if found is None:
        return None
    count, limit = request.graph.num_edges, request.limit
    fits = count * sum(found.written) <= WRITTEN
    if limit is not None:
        fits = count * max(found.written, default=0) <= limit
    return found if fits else None


@functools.lru_cache(maxsize=1024)
def _find(body: Program, reductions: Reductions, by: Space) -> StagedTraversal | None:
    if not any(is_large_product(e, TILED) for e in body.equations):
        return None
    outer = find_outer_products(body, reductions)
    owned = [i for i, r in enumerate(reductions) if r is not None and r.into is by]
    outputs: list[tuple[Atom, Reduce | None]] = [(body.outputs[i], None) for i in owned]
    products: dict[int, tuple[int, int]] = {}
    kept: dict[int, int] = {}

    def factor(atom: Atom) -> int:
        """The output of the kernel: rows and several products may read the same."""
        if (atom, None) not in outputs:
            outputs.append((atom, None))
        return outputs.index((atom, None))

    rest = [i for i in range(len(reductions)) if i not in owned]
    for i in rest:
        if i in outer and too_large(outer[i]):
            products[i] = factor(outer[i].left), factor(outer[i].right)
    for i in rest:
        if i not in products:
            kept[i] = len(outputs)
            outputs.append((body.outputs[i], reductions[i]))
    atoms, into = zip(*outputs, strict=True)
    everything = Program(body.inputs, body.equations, atoms, body.name)
    edges = Aggregate(everything, into).select(range(len(atoms)))
    rows = _rows(body, reductions, owned) if owned else None
    return StagedTraversal(KernelPart(*edges, by_row=False), rows, products, kept)


def _rows(body: Program, reductions: Reductions, owned: list[int]) -> KernelPart:
    """What rows do with values that edges hold."""
    atoms = [body.outputs[i] for i in owned]
    values = tuple(Value(tuple(a.shape), a.dtype, Space.EDGE) for a in atoms)
    whole = Aggregate(body, reductions).select(owned).op.reductions
    op = Aggregate(Program(values, (), values, body.name), whole)
    return KernelPart(op, tuple(owned), tuple(range(len(owned))), by_row=True)


def run(found: StagedTraversal, request: LoweringRequest, operands: Sequence[Any]) -> list[Any]:
    """The outputs of the traversal."""
    outs: list[Any] = [None] * len(request.reductions)
    longer = found.factors if request.graph.num_edges >= LONG else frozenset()
    given = [operands[i] for i in found.edges.inputs]
    values = by_edge(found.edges, request, given, longer)
    if found.rows is not None:
        numbers = found.rows.outputs
        sums = by_row(found.rows, request, values[: len(numbers)])
        for i, x in zip(numbers, sums, strict=True):
            outs[i] = x
    for i, (a, b) in found.products.items():
        over_edges = (((0,), (0,)), ((), ()))
        out = lax.dot_general(values[a], values[b], over_edges, preferred_element_type=jnp.float32)
        outs[i] = out.astype(request.body.outputs[i].dtype)
    for i, k in found.kept.items():
        outs[i] = values[k]
    return outs
