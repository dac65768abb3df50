"""`scores-as-products`: a vertex's features times a shared array, summed, are a matrix product.

before:  m: f32[src, 4, 16] = z * a                  after:  y: f32[src, 64] = reshape(z)
         s: f32[src, 4] = reduce_sum(m, axes=(1,))           s: f32[src, 4] = y @ A

with A: f32[64, 4] the block-diagonal matrix of a, made once for all vertices. So attention scores,
and the gradients of z and a, are products of tall arrays. XLA's loop over a product and a sum
within each element takes 3 to 50 times as long on a CPU, most with a single head.

Legal: the zeros outside of the blocks add nothing (sums are re-associated; an infinite or NaN
feature of one head reaches the others, so values that are not finite spread within a vertex).
Refuses sums over other axes than the last, more than `MOST` heads, products that something else
reads, and dtypes other than float32 and float64.
"""

from __future__ import annotations

import collections
import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit.ir import build
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Location, Program, Value, rewrite
from gnnjit.ir.space import Space

MOST = 16
"""Heads at most: the product has as many times the multiplications of the sum."""


@dataclasses.dataclass(frozen=True)
class ScoresAsProducts:
    """`most`: heads at most."""

    most: int = MOST
    name: str = "scores-as-products"

    def __call__(self, program: Program) -> Program:
        found = scores(program, self.most)
        if not found:
            return program

        def rule(builder: Builder, eqn: Equation) -> bool:
            product = found.get(eqn.outputs[0])
            if product is None:
                return False
            builder.env[eqn.outputs[0]] = _product(builder, eqn, *product)
            return True

        return rewrite(program, rule)


def scores(program: Program, most: int = MOST) -> dict[Value, tuple[Value, Value]]:
    """The sums that the pass replaces: of which vertex value, and which shared array."""
    made = {o: e for e in program.equations for o in e.outputs}
    uses = collections.Counter(a for e in program.equations for a in e.inputs)
    uses.update(program.outputs)
    found = {}
    for eqn in program.equations:
        pair = _pair(eqn, made, uses)
        if pair is not None and eqn.outputs[0].size <= most:
            found[eqn.outputs[0]] = pair
    return found


def _pair(
    eqn: Equation, made: dict[Value, Equation], uses: collections.Counter[Atom]
) -> tuple[Value, Value] | None:
    if eqn.op.name != "reduce_sum" or not eqn.space.is_vertex or not isinstance(eqn.op, Lax):
        return None
    summed = eqn.inputs[0]
    product = made.get(summed) if isinstance(summed, Value) else None
    if product is None or product.op.name != "mul" or uses[summed] > 1:
        return None
    shape, last = summed.shape, len(summed.shape) - 1
    if tuple(eqn.op["axes"]) != (last,) or len(shape) > 2 or shape[:-1] > (MOST,):
        return None
    a, b = product.inputs
    if not (isinstance(a, Value) and isinstance(b, Value) and a.shape == b.shape):
        return None
    shared = [x for x in (a, b) if x.space is Space.SHARED]
    if len(shared) != 1 or summed.dtype not in (jnp.float32, jnp.float64):
        return None
    return (b, a) if shared[0] is a else (a, b)


def _product(builder: Builder, eqn: Equation, features: Value, vector: Value) -> Atom:
    where, z, a = eqn.location, builder[features], builder[vector]
    size, heads = features.size, eqn.outputs[0].size
    matrix = _blocks(builder, a, heads, where) if heads > 1 else a
    sides = [
        build.reshape(builder, z, (size,), where),
        build.reshape(builder, matrix, (size, heads), where),
    ]
    out = build.emit_op(builder, build.dot_op(z.dtype), sides, where)
    return build.reshape(builder, out, eqn.outputs[0].shape, where)


def _blocks(builder: Builder, a: Atom, heads: int, where: Location | None) -> Atom:
    """`[heads, C]` as the blocks of `[heads, C, heads]`, 0 elsewhere."""
    shape = (*a.shape, heads)

    def number(axis: int) -> Value:
        return build.emit_op(builder, build.iota_op(np.int32, shape, axis), [], where)

    wide = build.emit_op(builder, build.broadcast_in_dim_op(shape, (0, 1)), [a], where)
    same_head = build.elementwise(builder, lax.eq, [number(0), number(2)], where)
    zero = build.constant(builder, 0, shape, wide.dtype)
    return build.elementwise(builder, lax.select_n_p.bind, [same_head, zero, wide], where)
