"""`scale-outer-factors`: a number that scales an outer product scales one of its vectors.

before:  o: f32[edge, 33, 64] = h (x) x[u]        after:  c: f32[dst, 33] = broadcast_in_dim(s)
         p: f32[edge, 2112] = reshape(o)                  g: f32[edge, 33] = c[v] * h
         c: f32[dst, 2112] = broadcast_in_dim(s)          o: f32[edge, 33, 64] = g (x) x[u]
         q: f32[edge, 2112] = c[v] * p                    q: f32[edge, 2112] = reshape(o)

The shorter vector is scaled. The number is never repeated at full width, and kernels that sum outer
products of a row see one.

Legal: each scalar is the same product of three, multiplied in another order. Refuses what something
else reads, and half precision, whose range a scaled vector may leave.
"""

from __future__ import annotations

import collections
import dataclasses
import math

from gnnjit.ir import build
from gnnjit.ir.dtypes import is_half
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Program, Value, rewrite
from gnnjit.ir.space import Space


@dataclasses.dataclass(frozen=True)
class ScaleOuterFactors:
    name: str = "scale-outer-factors"

    def __call__(self, program: Program) -> Program:
        made: dict[Atom, Equation] = {o: e for e in program.equations for o in e.outputs}
        reads = collections.Counter(a for e in program.equations for a in e.inputs)
        reads.update(program.outputs)

        def outer(atom: Atom) -> Equation | None:
            """The outer product that `atom` is, perhaps in another shape."""
            eqn = made.get(atom)
            if eqn is None or eqn.space is not Space.EDGE or reads[atom] != 1:
                return None
            if eqn.op.name == "reshape":
                return outer(eqn.inputs[0])
            return eqn if _is_outer(eqn) else None

        def rule(builder: Builder, eqn: Equation) -> bool:
            if eqn.op.name not in ("mul", "div") or eqn.space is not Space.EDGE:
                return False
            sides = (0, 1) if eqn.op.name == "mul" else (0,)
            for side in sides:
                product, number = outer(eqn.inputs[side]), _number(eqn.inputs[1 - side], made)
                if product is not None and number is not None:
                    builder.env[eqn.outputs[0]] = _scaled(builder, eqn, side, product, number)
                    return True
            return False

        return rewrite(program, rule)


def _number(atom: Atom, made: dict[Atom, Equation]) -> Atom | None:
    """The number that fills `atom`."""
    fill = made.get(atom)
    if fill is not None and fill.op.name == "broadcast_in_dim":
        atom = fill.inputs[0]
    return atom if math.prod(atom.shape) == 1 else None


def _is_outer(eqn: Equation) -> bool:
    if not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
        return False
    contracted, batch = eqn.op["dimension_numbers"]
    out = eqn.outputs[0]
    alike = all(a.dtype == out.dtype for a in eqn.inputs)
    plain = alike and not is_half(out.dtype) and len(out.shape) == 2
    return plain and not any((*contracted, *batch))


def _scaled(builder: Builder, eqn: Equation, side: int, product: Equation, number: Atom) -> Atom:
    where, out = eqn.location, eqn.outputs[0]
    vectors = [builder[a] for a in product.inputs]
    at = min(
        (0, 1), key=lambda k: (math.prod(vectors[k].shape), vectors[k].space is not Space.EDGE)
    )
    scalar = build.reshape(builder, builder[number], (), where)
    factor = build.broadcast(builder, scalar, tuple(vectors[at].shape), where)
    pair: list[Atom] = [factor, factor]
    pair[side] = vectors[at]
    assert isinstance(eqn.op, Lax)
    vectors[at] = build.emit_op(builder, eqn.op, pair, where)
    assert isinstance(product.op, Lax)
    found: Value = build.emit_op(builder, product.op, vectors, product.location, Space.EDGE)
    return build.reshape(builder, found, tuple(out.shape), where)
