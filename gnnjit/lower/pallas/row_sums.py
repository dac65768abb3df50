"""What edges hold already, reduced into rows by the GPU kernel of rows."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from gnnjit.ir.program import Aggregate, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.lowering import LoweringRequest
from gnnjit.lower.pallas.launch import KernelPart, by_row
from pallas_kernels import triton

KINDS = () if triton.MISSING else ("sum", "max", "min")


def run(request: LoweringRequest, kind: str, values: Any) -> Any:
    """`values: [num_edges, *shape]`, by slot of the traversal's structure, reduced into its rows;
    0 in rows without edges."""
    value = Value(values.shape[1:], values.dtype, Space.EDGE)
    op = Aggregate(Program((value,), (), (value,), "rows"), (Reduce(kind, request.rows),))
    part = KernelPart(op, (0,), (0,), by_row=True)
    slots = jnp.arange(values.shape[0], dtype=request.structure.indptr.dtype)
    (out,) = by_row(part, request, [values], edge=slots)
    return out
