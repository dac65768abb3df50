"""`place-in-smallest-space`: per-edge work on one endpoint, once per vertex.

before:  h: f32[edge, 8] = x[u] @ w        after:  h: f32[src, 8] = x @ w

Every value moves to the join of its operands' spaces; that inference is NeuGraph's elimination of
redundant computation (section 3.4). A reduction of a value that is the same on all edges of an
element becomes a product with the degree (sum; of half precision, in float32), or the value itself
where there are edges (max, min). A `store` of what leaves the edges is dropped. Always legal.
Refuses `prod`, and `exp_sum`, which is made after this pass; what truly depends on both endpoints
stays on the edges, and so does work of the vertices in `keep` (that `sink-vertex-work` put there).
"""

from __future__ import annotations

import dataclasses
import functools

import jax

from gnnjit.ir import build
from gnnjit.ir.program import (
    Atom,
    AtVertex,
    Builder,
    Equation,
    Lax,
    Program,
    Reduce,
    Store,
    Value,
    rewrite,
)
from gnnjit.ir.space import Space, join
from gnnjit.passes.wide import widened, working


@dataclasses.dataclass(frozen=True)
class PlaceInSmallestSpace:
    """`keep`: vertex spaces (`src`, `dst`) whose work does not leave the edges."""

    keep: frozenset[Space] = frozenset()
    name: str = "place-in-smallest-space"

    def __call__(self, program: Program) -> Program:
        return rewrite(program, functools.partial(_place, self.keep))


def _place(keep: frozenset[Space], builder: Builder, eqn: Equation) -> bool:
    inputs = [builder[a] for a in eqn.inputs]
    if isinstance(eqn.op, Reduce):
        return _reduce_of_constant(builder, eqn)
    if isinstance(eqn.op, Store) and inputs[0].space is not Space.EDGE:
        builder.env[eqn.outputs[0]] = inputs[0]
        return True
    if isinstance(eqn.op, AtVertex) and inputs[0].space is Space.SHARED:
        builder.env[eqn.outputs[0]] = inputs[0]
        return True
    if not isinstance(eqn.op, Lax):
        return False
    space = join(*(a.space for a in inputs)) if inputs else Space.SHARED
    if space is eqn.space or (space in keep and eqn.space is Space.EDGE):
        return False
    outs = [Value(v.shape, v.dtype, space, v.name) for v in eqn.outputs]
    builder.emit(eqn.op, inputs, outs, eqn.location)
    builder.env.update(zip(eqn.outputs, outs, strict=True))
    return True


def homes(program: Program) -> dict[Atom, Space]:
    """The space that the pass gives each value, where it keeps nothing on the edges."""
    home: dict[Atom, Space] = {v: v.space for v in program.inputs}
    for eqn in program.equations:
        operands = join(*(home.get(a, Space.SHARED) for a in eqn.inputs))
        for out in eqn.outputs:
            home[out] = operands if isinstance(eqn.op, Lax | Store) else out.space
    return home


def _reduce_of_constant(builder: Builder, eqn: Equation) -> bool:
    op, x, where = eqn.op, builder[eqn.inputs[0]], eqn.location
    assert isinstance(op, Reduce)
    if op.kind in ("exp_sum", "prod") or op.into is Space.SHARED or not x.space <= op.into:
        return False
    out = eqn.outputs[0]
    if op.kind == "sum":
        dtype = working(out.dtype)
        count = build.degree_like(builder, op.into, Value(out.shape, dtype, op.into), where)
        some = build.has_edges(builder, op.into, out.shape, where)
        zero = build.constant(builder, 0, out.shape, dtype)
        x = build.broadcast(builder, widened(builder, x, dtype, where), out.shape)
        safe = build.elementwise(builder, jax.lax.select_n_p.bind, [some, zero, x], where)
        total = build.mul(builder, count, safe, where)
        builder.env[out] = widened(builder, total, out.dtype, where)
    else:
        some = build.has_edges(builder, op.into, out.shape, where)
        zero = build.constant(builder, 0, out.shape, out.dtype)
        x = build.broadcast(builder, x, out.shape)
        builder.env[out] = build.elementwise(
            builder, jax.lax.select_n_p.bind, [some, zero, x], where
        )
    return True
