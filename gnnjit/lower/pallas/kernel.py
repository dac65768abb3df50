"""The lowering of a traversal to the Triton backend of Pallas."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from gnnjit.ir.program import Aggregate, Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.lower.lowering import LoweringRequest, Reductions, Unsupported
from gnnjit.lower.pallas import index_rules, limits, matmul_rules, tile
from gnnjit.lower.pallas.launch import KernelPart, by_edge, by_row, outer_products_of, wanted_of
from gnnjit.lower.pallas.outer_products import find_outer_products, too_large
from pallas_kernels import triton

assert matmul_rules.rule is index_rules.rule  # importing them registers their rules

KINDS = ("sum", "max", "min", "exp_sum")


def why_not(request: LoweringRequest) -> list[str]:
    """Reasons against this lowering; none means that it runs."""
    body, reductions, by = request.body, request.reductions, request.rows
    out = triton.MISSING + _reductions(body, reductions, by) + limits.reasons(request)
    if out:
        return out
    for part in parts(body, reductions, by):
        outer = outer_products_of(part)
        wanted = wanted_of(part, outer)
        out += tile.reasons(part.op.body, wanted)
        out += [reason for pair in outer.values() for reason in too_large(pair)]
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


def _scalars(body: Program, outputs: Sequence[int]) -> int:
    return sum(math.prod(body.outputs[i].shape) for i in outputs)


@functools.lru_cache(maxsize=1024)
def parts(body: Program, reductions: Reductions, by: Space) -> tuple[KernelPart, ...]:
    """The kernels of a traversal: one for the outputs of rows, one for those of the whole graph.

    The kernel of the rows, where there is one, also writes the values on the edges, and sums into
    rows what is summed over all edges, if that is no wider than what the rows keep: a second
    traversal would read both ends of all edges again.
    """
    owned = [i for i, r in enumerate(reductions) if r is not None and r.into is by]
    loose = [i for i, r in enumerate(reductions) if r is None]
    shared = [i for i, r in enumerate(reductions) if r is not None and r.into is Space.SHARED]
    outer = find_outer_products(body, reductions)
    narrow = [i for i in shared if reductions[i] == Reduce("sum", Space.SHARED) and i not in outer]
    if _scalars(body, narrow) > _scalars(body, owned):
        narrow = []
    by_rows = tuple(Reduce("sum", by) if i in narrow else r for i, r in enumerate(reductions))
    rest = [i for i in shared if i not in narrow]
    groups = [(owned + narrow + loose, True), (rest, False)] if owned else [(rest + loose, False)]
    op = Aggregate(body, by_rows)
    found = []
    for outputs, of_rows in groups:
        if outputs:
            part = op.select(outputs)
            over_rows = frozenset(k for k, i in enumerate(part.outputs) if i in narrow)
            found.append(KernelPart(*part, of_rows, over_rows))
    return tuple(found)


def run(request: LoweringRequest, operands: Sequence[Any]) -> list[Any]:
    """On a CPU, the kernels are interpreted."""
    outs: list[Any] = [None] * len(request.reductions)
    for part in parts(request.body, request.reductions, request.rows):
        launch = by_row if part.by_row else by_edge
        results = launch(part, request, [operands[i] for i in part.inputs])
        for i, x in zip(part.outputs, results, strict=True):
            outs[i] = x
    return outs
