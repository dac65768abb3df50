"""One kernel of a traversal: its function on tiles, its tiles, its run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit.graph.structure import Structure
from gnnjit.ir.program import Aggregate, Atom, Literal
from gnnjit.ir.space import Space
from gnnjit.lower.execute import size
from gnnjit.lower.lowering import LoweringRequest
from gnnjit.lower.pallas import tile, timing_inputs, tune
from gnnjit.lower.pallas.outer_products import OuterProduct, find_outer_products
from pallas_kernels import edges, rows
from pallas_kernels.traversal import TileOperand, TileOutput, TileProgram, accumulator_dtype


@dataclasses.dataclass(frozen=True)
class KernelPart:
    """The part of a traversal that one kernel computes.

    outputs, inputs: which of the traversal's outputs and operands it has, by number.
    by_row: whether the kernel goes row by row, or over all edges in their order.
    over_rows: which outputs of `op`, reduced into rows there, are then summed over all rows.
    """

    op: Aggregate
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    by_row: bool
    over_rows: frozenset[int] = frozenset()


def by_row(
    part: KernelPart, request: LoweringRequest, operands: list[Any], edge: Any = None
) -> list[Any]:
    """edge: `int[num_edges]`, where a slot's edge lies in operands; by default, at its number."""
    interpret, num_edges = request.platform == "cpu", request.graph.num_edges
    t = tile_program(part, request.rows, {})
    structure = request.structure
    plan, num_rows = plan_of(structure), structure.num_rows
    choices = {}
    for kind, alone in (("long", plan.only_long()), ("short", plan.only_short())):
        timer = None
        if not interpret and alone.count:
            timer = timing_inputs.rows_timer(alone, num_rows, num_edges, operands)
        choices[kind] = tune.choose(_kernel(kind, part, request), t, timer)
    outs = rows.run(
        t,
        plan,
        structure.neighbor,
        structure.edge if edge is None else edge,
        operands,
        num_rows,
        rows.RowTiles(**choices),
        interpret=interpret,
        clear_edges=request.graph.mask is not None,
    )
    for i in part.over_rows:
        outs[i] = jnp.sum(outs[i], axis=0).astype(part.op.body.outputs[i].dtype)
    return outs


def by_edge(part: KernelPart, request: LoweringRequest, operands: list[Any]) -> list[Any]:
    interpret, graph = request.platform == "cpu", request.graph
    t = tile_program(part, request.rows, outer_products_of(part))
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


def outer_products_of(part: KernelPart) -> dict[int, OuterProduct]:
    """By output; those that one kernel sums."""
    return {} if part.by_row else find_outer_products(part.op.body, part.op.reductions)


def wanted_of(part: KernelPart, outer: dict[int, OuterProduct]) -> list[Atom]:
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


def tile_program(part: KernelPart, by: Space, outer: dict[int, OuterProduct]) -> TileProgram:
    places = {by: "row", by.flipped: "neighbor", Space.EDGE: "edge", Space.SHARED: "shared"}
    operands = tuple(
        TileOperand(places[v.space], tuple(v.shape), v.dtype) for v in part.op.body.inputs
    )
    outputs = tuple(
        TileOutput(
            "outer_sum" if i in outer else r and r.kind,
            tuple(o.shape),
            np.dtype(accumulator_dtype(o.dtype)) if i in part.over_rows else o.dtype,
            r and r.score,
        )
        for i, (o, r) in enumerate(zip(part.op.body.outputs, part.op.reductions, strict=True))
    )

    wanted = wanted_of(part, outer)

    def evaluate(tiles: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        left = dict(enumerate(part.op.body.outputs))
        for env in tile.steps(part.op.body, tiles, wanted):
            for i, o in list(left.items()):
                if i in outer:
                    if outer[i].left in env and outer[i].right in env:
                        yield i, outer[i].tiles(env)
                        del left[i]
                elif isinstance(o, Literal) or o in env:
                    yield i, _full(tile.read(env, o), tuple(o.shape))
                    del left[i]

    return TileProgram(evaluate, operands, outputs)


def _full(x: Any, shape: tuple[int, ...]) -> Any:
    """A literal output as a tile of its shape."""
    return tile.as_shape(x, () if x.ndim == 1 else shape, shape, x.shape[0])
