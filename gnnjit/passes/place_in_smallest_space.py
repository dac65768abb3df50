"""`place-in-smallest-space`: per-edge work on one endpoint, once per vertex.

before:  h: f32[edge, 8] = x[u] @ w        after:  h: f32[src, 8] = x @ w

Every value moves to the join of its operands' spaces; that inference is NeuGraph's elimination of
redundant computation (section 3.4). A reduction of a value that is the same on all edges of an
element becomes a product with the degree (sum), or the value itself where there are edges
(max, min). Always legal. Refuses `exp_sum`, which is made after this pass; what truly depends on
both endpoints stays on the edges.
"""

from __future__ import annotations

import dataclasses

import jax

from gnnjit.ir import build
from gnnjit.ir.program import Builder, Equation, Lax, Program, Reduce, Value, rewrite
from gnnjit.ir.space import Space, join


@dataclasses.dataclass(frozen=True)
class PlaceInSmallestSpace:
    name: str = "place-in-smallest-space"

    def __call__(self, program: Program) -> Program:
        return rewrite(program, _place)


def _place(builder: Builder, eqn: Equation) -> bool:
    inputs = [builder[a] for a in eqn.inputs]
    if isinstance(eqn.op, Reduce):
        return _reduce_of_constant(builder, eqn)
    if not isinstance(eqn.op, Lax):
        return False
    space = join(*(a.space for a in inputs)) if inputs else Space.SHARED
    if space is eqn.space:
        return False
    outs = [Value(v.shape, v.dtype, space, v.name) for v in eqn.outputs]
    builder.emit(eqn.op, inputs, outs, eqn.location)
    builder.env.update(zip(eqn.outputs, outs, strict=True))
    return True


def _reduce_of_constant(builder: Builder, eqn: Equation) -> bool:
    op, x, where = eqn.op, builder[eqn.inputs[0]], eqn.location
    assert isinstance(op, Reduce)
    if op.kind == "exp_sum" or op.into is Space.SHARED or not x.space <= op.into:
        return False
    out = eqn.outputs[0]
    if op.kind == "sum":
        count = build.degree_like(builder, op.into, out, where)
        some = build.has_edges(builder, op.into, out.shape, where)
        zero = build.constant(builder, 0, out.shape, out.dtype)
        x = build.broadcast(builder, x, out.shape)
        safe = build.emit_jax(builder, jax.lax.select_n_p.bind, [some, zero, x], where)
        builder.env[out] = build.mul(builder, count, safe, where)
    else:
        some = build.has_edges(builder, op.into, out.shape, where)
        zero = build.constant(builder, 0, out.shape, out.dtype)
        x = build.broadcast(builder, x, out.shape)
        builder.env[out] = build.emit_jax(builder, jax.lax.select_n_p.bind, [some, zero, x], where)
    return True
