"""The lowering of a traversal to the Triton backend of Pallas."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from gnnjit.graph.structure import Structure
from gnnjit.ir.program import Aggregate, Atom, Program
from gnnjit.ir.space import Space
from gnnjit.lower.execute import size
from gnnjit.lower.lowering import LoweringRequest, Reductions, Unsupported
from gnnjit.lower.pallas import index_rules, limits, matmul_rules, tile, timing_inputs, tune
from gnnjit.lower.pallas.outer_products import MAX_SUM, OuterProduct, find_outer_products
from pallas_kernels import edges, rows, triton
from pallas_kernels.traversal import TileOperand, TileOutput, TileProgram, padded

assert matmul_rules.rule is index_rules.rule  # importing them registers their rules

KINDS = ("sum", "max", "min", "exp_sum")


@dataclasses.dataclass(frozen=True)
class KernelPart:
    """The part of a traversal that one kernel computes.

    outputs, inputs: which of the traversal's outputs and operands it has, by number.
    by_row: whether the kernel goes row by row, or over all edges in their order.
    """

    op: Aggregate
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    by_row: bool


def why_not(request: LoweringRequest) -> list[str]:
    """Reasons against this lowering; none means that it runs."""
    body, reductions, by = request.body, request.reductions, request.rows
    out = triton.MISSING + _reductions(body, reductions, by) + limits.reasons(request)
    if out:
        return out
    for part in parts(body, reductions, by):
        outer = _outer(part)
        wanted = _wanted(part, outer)
        out += tile.reasons(part.op.body, wanted) + _too_large(outer)
        try:
            if not out:
                tile.check(part.op.body, wanted)
        except Unsupported as reason:
            out.append(str(reason))
    return list(dict.fromkeys(out))


def _reductions(body: Program, reductions: Reductions, by: Space) -> list[str]:
    out = []
    for r, value in zip(reductions, body.outputs, strict=True):
        if r is None:
            continue
        if r.into not in (by, Space.SHARED):
            out.append(f"a reduction into {r.into.value} in a traversal by {by.value}")
        if r.kind not in KINDS or value.dtype == jnp.bool_:
            out.append(f"no GPU kernel code for {r.kind} of {value.dtype}")
        if r.kind == "exp_sum" and r.into is Space.SHARED:
            out.append("no GPU kernel code for exp_sum over all edges")
    return list(dict.fromkeys(out))


@functools.lru_cache(maxsize=1024)
def parts(body: Program, reductions: Reductions, by: Space) -> tuple[KernelPart, ...]:
    """The kernels of a traversal: one for the outputs of rows, one for those of the whole graph.

    The kernel of the rows, where there is one, also writes the values on the edges.
    """
    owned = [i for i, r in enumerate(reductions) if r is not None and r.into is by]
    loose = [i for i, r in enumerate(reductions) if r is None]
    shared = [i for i, r in enumerate(reductions) if r is not None and r.into is Space.SHARED]
    groups = [(owned + loose, True), (shared, False)] if owned else [(shared + loose, False)]
    op = Aggregate(body, reductions)
    return tuple(KernelPart(*op.select(outputs), by_row) for outputs, by_row in groups if outputs)


def run(request: LoweringRequest, operands: Sequence[Any]) -> list[Any]:
    """On a CPU, the kernels are interpreted."""
    outs: list[Any] = [None] * len(request.reductions)
    for part in parts(request.body, request.reductions, request.rows):
        launch = _by_row if part.by_row else _by_edge
        results = launch(part, request, [operands[i] for i in part.inputs])
        for i, x in zip(part.outputs, results, strict=True):
            outs[i] = x
    return outs


def _by_row(part: KernelPart, request: LoweringRequest, operands: list[Any]) -> list[Any]:
    interpret, num_edges = request.platform == "cpu", request.graph.num_edges
    t = _traversal(part, request.rows, {})
    structure = request.structure
    plan, num_rows = plan_of(structure), structure.num_rows
    timer = None if interpret else timing_inputs.rows_timer(plan, num_rows, num_edges, operands)
    return rows.run(
        t,
        plan,
        structure.neighbor,
        structure.edge,
        operands,
        num_rows,
        tune.choose(_kernel("rows", part, request), t, timer),
        interpret=interpret,
        clear_edges=request.graph.mask is not None,
    )


def _by_edge(part: KernelPart, request: LoweringRequest, operands: list[Any]) -> list[Any]:
    interpret, graph = request.platform == "cpu", request.graph
    t = _traversal(part, request.rows, _outer(part))
    row, neighbor = graph.dst, graph.src
    if request.rows is Space.SRC:
        row, neighbor = neighbor, row
    kernel = _kernel("edges", part, request)
    timer = None if interpret else timing_inputs.edges_timer(*kernel.sizes, operands)
    config = tune.choose(kernel, t, timer)
    return edges.run(t, row, neighbor, graph.mask, operands, config, interpret=interpret)


def _kernel(kind: str, part: KernelPart, request: LoweringRequest) -> tune.TunedKernel:
    """What the choice of tiles depends on."""
    rows, graph = request.rows, request.graph
    sizes = (size(graph, rows), size(graph, rows.flipped), graph.num_edges)
    return tune.TunedKernel(kind, part.op.body, part.op.reductions, sizes)


def _outer(part: KernelPart) -> dict[int, OuterProduct]:
    return {} if part.by_row else find_outer_products(part.op.body, part.op.reductions)


def _too_large(outer: dict[int, OuterProduct]) -> list[str]:
    return [
        f"a sum of outer products of {a.shape[0]} x {b.shape[0]} is larger than a program holds"
        for a, b in ((pair.left, pair.right) for pair in outer.values())
        if padded(a.shape)[0] * padded(b.shape)[0] > MAX_SUM
    ]


def _wanted(part: KernelPart, outer: dict[int, OuterProduct]) -> list[Atom]:
    """The values computed on tiles: the outputs, and the two vectors of each outer product."""
    plain = [o for i, o in enumerate(part.op.body.outputs) if i not in outer]
    return [*plain, *(v for pair in outer.values() for v in (pair.left, pair.right))]


def plan_of(structure: Structure) -> rows.TaskPlan:
    """The tasks of a structure: each row is a long one where the degrees are not known."""
    found = structure.tasks
    if found is not None:
        long, short, hubs = (rows.Tasks(*t) for t in (found.long, found.short, found.hubs))
        return rows.TaskPlan(long, short, hubs, found.pieces)
    row = jnp.arange(structure.num_rows, dtype=structure.indptr.dtype)
    long = rows.Tasks(row, structure.indptr[:-1], structure.degree())
    none = row[:0]
    empty = rows.Tasks(none, none, none)
    return rows.TaskPlan(long, empty, empty, 0)


def _traversal(part: KernelPart, by: Space, outer: dict[int, OuterProduct]) -> TileProgram:
    places = {by: "row", by.flipped: "neighbor", Space.EDGE: "edge", Space.SHARED: "shared"}
    operands = tuple(
        TileOperand(places[v.space], tuple(v.shape), v.dtype) for v in part.op.body.inputs
    )
    outputs = tuple(
        TileOutput(
            "outer_sum" if i in outer else r and r.kind,
            tuple(o.shape),
            o.dtype,
            r and r.score,
        )
        for i, (o, r) in enumerate(zip(part.op.body.outputs, part.op.reductions, strict=True))
    )

    wanted = _wanted(part, outer)

    def evaluate(tiles: Sequence[Any]) -> list[Any]:
        env = tile.evaluate(part.op.body, tiles, wanted)
        return [
            outer[i].tiles(env) if i in outer else _full(tile.read(env, o), tuple(o.shape))
            for i, o in enumerate(part.op.body.outputs)
        ]

    return TileProgram(evaluate, operands, outputs)


def _full(x: Any, shape: tuple[int, ...]) -> Any:
    """A literal output as a tile of its shape."""
    return tile.as_shape(x, () if x.ndim == 1 else shape, shape, x.shape[0])
