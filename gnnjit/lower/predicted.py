"""What the cost model predicts for the two lowerings of a schema level: a traversal, or dense.

Wang et al., "FlexGraph" (2021), section 4.2, choose by the kind of level. Here the weights are
those that plans are chosen by, which `gnnjit calibrate` fits to a machine.
"""

from __future__ import annotations

import math

from gnnjit.cost.current import current
from gnnjit.cost.machine import machine_of
from gnnjit.cost.model import Work
from gnnjit.cost.operations import UnknownOperation, cost
from gnnjit.cost.sketch import GraphSizes, sketch
from gnnjit.cost.work import work_of
from gnnjit.graph import Graph
from gnnjit.ir.program import Aggregate, Equation, Lax, Program, Value
from gnnjit.ir.space import Space


def seconds(op: Aggregate, graph: Graph, platform: str) -> tuple[float, float] | None:
    """Of a generated kernel, and of a dense reshape and reduction; None where the model has no
    figure for an operation."""
    sizes = GraphSizes(graph.num_src, graph.num_dst, graph.num_edges)
    model = current(platform)
    try:
        return model.seconds(_kernel(op, sizes, platform)), model.seconds(
            _dense(op, sizes, platform)
        )
    except UnknownOperation:
        return None


def _kernel(op: Aggregate, sizes: GraphSizes, platform: str) -> Work:
    each = zip(op.body.outputs, op.reductions, strict=True)
    outputs = tuple(Value(a.shape, a.dtype, r.into if r else Space.EDGE) for a, r in each)
    alone = Program(op.body.inputs, (Equation(op, op.body.inputs, outputs),), outputs)
    made = sketch(alone, range(len(alone.inputs)), sizes, None)
    return work_of(made, machine_of(platform))


def _dense(op: Aggregate, sizes: GraphSizes, platform: str) -> Work:
    """XLA runs the body in a loop for each output, which reads all operands; functions it evaluates
    no faster than a traversal does, and memory for results it asks for as well."""
    read = sum(sizes[v.space] * v.size * v.dtype.itemsize for v in op.body.inputs)
    functions = sum(
        sizes.edges * out.size * cost(eqn.op, out.dtype).transcendental
        for eqn in op.body.equations
        if isinstance(eqn.op, Lax)
        for out in eqn.outputs
    )
    fresh, work = machine_of(platform).fresh, Work.of("call", calls=1)
    work += Work.of("traversal", functions=functions)
    for out, r in zip(op.body.outputs, op.reductions, strict=True):
        size = math.prod(out.shape)
        written = sizes[r.into if r else Space.EDGE] * size * out.dtype.itemsize
        rate = "single" if size == 1 else "bytes"
        work += Work.of("reduce", count=1, **{rate: float(read + written)})
        work += Work.of("memory", fresh=written if written > fresh else 0)
    return work
