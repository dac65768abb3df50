"""`edge-products-as-matrices`: what edges multiply are matrices, the longer one on the right.

before:  p: f32[edge, 64, 3] = dot_general(x[u], a),      after:  q: f32[edge, 3, 64] = a @ x[u]
            over axis 0 of x: f32[src, 5, 64]
            and axis 1 of a: f32[edge, 3, 5]
         q: f32[edge, 3, 64] = transpose(p)

Tensor products (`einsum`) and their derivatives multiply arrays of several axes, some of one entry.
Kernels have loops for outer products, for a matrix times a vector, and for two matrices if the rows
of the right one are long, or those of both are long and summed.

Legal: sums are re-associated. Refuses products with a shared array, which kernels read where it
lies, products with batch axes, half precision, which a product sums in float32, what is short
enough to be written out, and products whose axes lie in another order in memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from jax import lax

from gnnjit.ir import build
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Location, Program, Value, rewrite
from gnnjit.ir.space import Space

SHORT = 64
"""Scalars of a value that is written out."""

_DTYPES = ({"float32"}, {"float64"})


@dataclasses.dataclass(frozen=True)
class EdgeProductsAsMatrices:
    name: str = "edge-products-as-matrices"

    def __call__(self, program: Program) -> Program:
        if not any(map(_is_product, program.equations)):
            return program
        turned: dict[Atom, Atom] = {}  # results, as the transposes that they were made as

        def rule(builder: Builder, eqn: Equation) -> bool:
            if _is_product(eqn):
                return _product(builder, eqn, turned)
            return _moved(builder, eqn, turned)

        return rewrite(program, rule)


def _is_product(eqn: Equation) -> bool:
    op = eqn.op
    if not isinstance(op, Lax) or op.name != "dot_general" or eqn.space is not Space.EDGE:
        return False
    every: tuple[Atom, ...] = (*eqn.inputs, *eqn.outputs)
    return (
        not any(op["dimension_numbers"][1])
        and {str(a.dtype) for a in every} in _DTYPES
        and all(a.space is not Space.SHARED for a in every)
        and all(math.prod(a.shape) for a in every)
        and max(math.prod(a.shape) for a in every) > SHORT
    )


@dataclasses.dataclass(frozen=True)
class _Side:
    """A factor as a matrix: what is summed comes first (`leads`) or last."""

    atom: Atom
    free: int
    leads: bool

    @staticmethod
    def of(atom: Atom, summed: Sequence[int]) -> _Side | None:
        """None where the axes that are summed, in this order, are not side by side at an end."""
        wide = [k for k, n in enumerate(atom.shape) if n != 1]
        axes = [k for k in summed if atom.shape[k] != 1]
        free = math.prod(n for k, n in enumerate(atom.shape) if k not in summed)
        if wide[: len(axes)] == axes:
            return _Side(atom, free, True)
        return _Side(atom, free, False) if wide[len(wide) - len(axes) :] == axes else None

    def matrix(self, builder: Builder, inner: int, where: Location | None) -> Atom:
        """`[inner, free]` or `[free, inner]`, without axes of one entry."""
        shape = (inner, self.free) if self.leads else (self.free, inner)
        return build.reshape(builder, self.atom, tuple(n for n in shape if n != 1), where)


def _product(builder: Builder, eqn: Equation, turned: dict[Atom, Atom]) -> bool:
    assert isinstance(eqn.op, Lax)
    (out,), where = eqn.outputs, eqn.location
    summed = eqn.op["dimension_numbers"][0]
    factors = [builder[a] for a in eqn.inputs]
    inner = math.prod(factors[0].shape[k] for k in summed[0])
    sides = [_Side.of(a, axes) for a, axes in zip(factors, summed, strict=True)]
    left, right = sides
    if left is None or right is None:
        return False
    swapped = left.free > right.free
    if swapped:
        left, right = right, left
    rows_times_rows = inner > 1 and not right.leads and left.free > 1
    if rows_times_rows and (left.leads or inner < right.free):
        return False
    found = _matrices(builder, eqn.op, left, right, inner, where)
    if swapped and left.free > 1:
        turned[out] = found
        order = build.transpose_op((1, 0))
        found = build.emit_op(builder, order, [found], where)
    builder.env[out] = build.reshape(builder, found, tuple(out.shape), where)
    return True


def _matrices(
    builder: Builder, op: Lax, left: _Side, right: _Side, inner: int, where: Location | None
) -> Atom:
    """`[left's, right's]`, without axes of one entry."""
    a, b = (side.matrix(builder, inner, where) for side in (left, right))
    if inner == 1:
        if not a.shape or not b.shape:
            return build.elementwise(builder, lax.mul, [a, b], where)
        axes: tuple[tuple[int, ...], ...] = ((), ())
    else:
        axes = ((0 if left.leads else len(a.shape) - 1,), (0 if right.leads else len(b.shape) - 1,))
    numbers = (axes, ((), ()))
    return build.emit_op(builder, build.with_params(op, dimension_numbers=numbers), [a, b], where)


def _moved(builder: Builder, eqn: Equation, turned: dict[Atom, Atom]) -> bool:
    """A transpose back, with axes of one entry here or there."""
    if not isinstance(eqn.op, Lax) or len(eqn.inputs) != 1 or eqn.inputs[0] not in turned:
        return False
    (x,), (out,) = eqn.inputs, eqn.outputs
    assert isinstance(x, Value)
    if eqn.op.name in ("reshape", "squeeze", "expand_dims"):
        if _wide(x.shape) == _wide(out.shape):
            turned[out] = turned[x]
        return False
    if eqn.op.name != "transpose":
        return False
    moved = [k for k in eqn.op["permutation"] if x.shape[k] != 1]
    if len(moved) != 2 or moved == sorted(moved):
        return False
    builder.env[out] = build.reshape(builder, turned[x], tuple(out.shape), eqn.location)
    return True


def _wide(shape: Sequence[int]) -> list[int]:
    return [n for n in shape if n != 1]
