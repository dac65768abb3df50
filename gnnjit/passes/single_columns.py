"""`single-columns`: a product on the edges with a single column is a sum of multiples.

before:  s: f32[edge, 1] = h @ w                     after:  p: f32[edge, 64] = h * w
         y: f32[dst, 1] = sum of s                           s: f32[edge, 1] = reduce_sum(p)
         d: f32[edge, 64] = c[v] @ w^T                       y: f32[dst, 1] = sum of s
         o: f32[edge, 64, 1] = h c[v]^T                      d: f32[edge, 64] = c[v] * w
                                                             o: f32[edge, 64, 1] = h * c[v]

A network that ends in one number for each edge has such a product, as EGNN's step and gates do;
`d` and `o` are its gradients. Kernels fill vectors with columns when they multiply: a single column
would fill one lane. As multiples, the features of an edge fill them.

Legal: sums are re-associated. Refuses products with more columns, products with batch axes, and
half precision, which a product sums in float32.
"""

from __future__ import annotations

import dataclasses
import math

from gnnjit.ir import build
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Location, Program, rewrite
from gnnjit.ir.space import Space

_DTYPES = ("float32", "float64")


@dataclasses.dataclass(frozen=True)
class SingleColumns:
    name: str = "single-columns"

    def __call__(self, program: Program) -> Program:
        if all(e.op.name != "dot_general" for e in program.equations):
            return program

        def rule(builder: Builder, eqn: Equation) -> bool:
            inner = _inner(eqn)
            if inner is None:
                return False
            out, where = eqn.outputs[0], eqn.location
            sides = [_vector(builder, builder[x], where) for x in eqn.inputs]
            (length,) = max(x.shape for x in sides)
            a, b = (build.broadcast(builder, x, (length,), where) for x in sides)
            found: Atom = build.mul(builder, a, b, where)
            if inner > 1:
                found = build.emit_op(builder, build.sum_op((0,)), [found], where)
            builder.env[out] = build.reshape(builder, found, tuple(out.shape), where)
            return True

        return rewrite(program, rule)


def _inner(eqn: Equation) -> int | None:
    """The length of the sum, where the pass takes a product."""
    op, (out, *_) = eqn.op, eqn.outputs
    if not isinstance(op, Lax) or op.name != "dot_general" or eqn.space is not Space.EDGE:
        return None
    (axes, _), batches = op["dimension_numbers"]
    if any(batches) or any(str(a.dtype) not in _DTYPES for a in (*eqn.inputs, out)):
        return None
    sizes = [math.prod(a.shape) for a in eqn.inputs]
    inner = math.prod(eqn.inputs[0].shape[axis] for axis in axes)
    single = sizes == [inner, inner] if inner > 1 else min(sizes) == 1
    return inner if single else None


def _vector(builder: Builder, a: Atom, where: Location | None) -> Atom:
    return build.reshape(builder, a, (math.prod(a.shape),), where)
