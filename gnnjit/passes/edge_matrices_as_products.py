"""`edge-matrices-as-products`: an edge's own matrix is never made where its products are summed.

before:  g: f32[edge, 4096] = h @ W                after:  h: f32[edge, 33] = concatenate(h, 1)
         k: f32[edge, 64, 64] = reshape(g + b)             o: f32[edge, 33, 64] = h (x) x[u]
         m: f32[edge, 64] = x[u] @ k                       m: f32[edge, 64] = o @ W'
         y: f32[dst, 64] = sum over (u -> v) of m          y: f32[dst, 64] = sum over (u -> v) of m

with W': f32[33 * 64, 64] the rows of W and b. Both multiply as often; but the second one's product
is with a shared matrix, which `reorder-aggregate-combine` moves behind the sum: vertices multiply
then, and edges have 33 x 64 multiplications each. These are the edge networks of Gilmer et al.,
"Neural Message Passing for Quantum Chemistry" (2017), section 5 (PyG's NNConv).

Legal: sums are re-associated, and an edge's numbers meet its vector first: of half precision, in
float32, whose range they do not leave. Refuses matrices that something else reads or that fewer
than `LEAST` numbers make (`contract-with-shared-first` has these), products that no sum into a
vertex space is linear in, and products of different precisions.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from jax import lax

from gnnjit.ir import build
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Program, Reduce, Value, rewrite
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.linear import ADD, dot, reshape
from gnnjit.passes.analysis.movable_matmuls import is_plain, precision_of
from gnnjit.passes.wide import widened, working

LEAST = 8
"""Numbers of an edge that make its matrix."""

_LINEAR = (*ADD, "neg", "mul", "div", "reshape", "convert_element_type")


@dataclasses.dataclass(frozen=True)
class EdgeMatricesAsProducts:
    name: str = "edge-matrices-as-products"

    def __call__(self, program: Program) -> Program:
        found = _Search(program).found
        if not found:
            return program

        def rule(builder: Builder, eqn: Equation) -> bool:
            product = found.get(eqn)
            if product is None:
                return False
            builder.env[eqn.outputs[0]] = product.write(builder)
            return True

        return rewrite(program, rule)


@dataclasses.dataclass(frozen=True)
class _Product:
    """A vector of an edge times its own matrix.

    vector, axis: the vector, and the axis of the matrix that is contracted.
    inner: the product that makes the matrix. numbers: which of its operands the edge's numbers are.
    steps: what is done with its result until it is the matrix: shapes, and shared terms.
    """

    eqn: Equation
    vector: Value
    axis: int
    inner: Equation
    numbers: int
    steps: tuple[tuple[int, ...] | Value, ...]

    def write(self, builder: Builder) -> Atom:
        where, (out,) = self.eqn.location, self.eqn.outputs
        parts: list[Atom] = [builder[self.inner.inputs[self.numbers]], builder[self.vector]]
        numbers, vector = (widened(builder, a, working(out.dtype), where) for a in parts)
        matrices, bias = self.matrices(builder)
        if bias is not None:
            matrices = _concatenated(builder, [matrices, bias], where)
            one = build.constant(builder, 1, (1,), numbers.dtype)
            numbers = _concatenated(builder, [numbers, one], where)
        pairs = dot(builder, self.eqn, numbers, vector, (((), ()), ((), ())), out.space)
        rows = reshape(builder, pairs, (pairs.size,), where)
        shared = reshape(builder, matrices, (pairs.size, out.size), where)
        shared = widened(builder, shared, numbers.dtype, where)
        found = dot(builder, self.eqn, rows, shared, (((0,), (0,)), ((), ())), out.space)
        return widened(builder, found, out.dtype, where)

    def matrices(self, builder: Builder) -> tuple[Atom, Atom | None]:
        """`[K, F, G]`, one for each of an edge's numbers, and `[1, F, G]`, the one that all edges
        have in common."""
        where, side = self.inner.location, 1 - self.numbers
        matrices: Atom = builder[self.inner.inputs[side]]
        assert isinstance(self.inner.op, Lax)
        first = self.inner.op["dimension_numbers"][0][side][0]
        matrices = _moved(builder, matrices, first, 0, where)
        bias: Atom | None = None
        for step in self.steps:
            if isinstance(step, Value):
                more = reshape(builder, builder[step], (1, *step.shape), where)
                bias = more if bias is None else build.combine(builder, lax.add, bias, more, where)
                continue
            matrices = reshape(builder, matrices, (matrices.shape[0], *step), where)
            bias = None if bias is None else reshape(builder, bias, (1, *step), where)
        matrices = _moved(builder, matrices, 1 + self.axis, 1, where)
        return matrices, None if bias is None else _moved(builder, bias, 1 + self.axis, 1, where)


class _Search:
    """`found`: the products to rewrite."""

    def __init__(self, program: Program):
        self.made = {o: e for e in program.equations for o in e.outputs}
        self.readers: dict[Atom, list[Equation]] = collections.defaultdict(list)
        for eqn in program.equations:
            for atom in eqn.inputs:
                self.readers[atom].append(eqn)
        self.outputs = set(program.outputs)
        every = [self.match(e) for e in program.equations]
        self.found = {p.eqn: p for p in every if p is not None}

    def match(self, eqn: Equation) -> _Product | None:
        if not _is_product(eqn) or eqn.space is not Space.EDGE:
            return None
        ranks = [len(a.shape) for a in eqn.inputs]
        if sorted(ranks) != [1, 2]:
            return None
        side = ranks.index(2)
        (matrix, vector) = eqn.inputs[side], eqn.inputs[1 - side]
        steps = self.steps(matrix)
        if steps is None or not isinstance(vector, Value) or not self.is_summed(eqn.outputs[0]):
            return None
        assert isinstance(eqn.op, Lax)
        axis = eqn.op["dimension_numbers"][0][side][0]
        inner, numbers, steps_of_matrix = steps
        if precision_of(inner) != precision_of(eqn) or vector.space is Space.SHARED:
            return None
        return _Product(eqn, vector, axis, inner, numbers, steps_of_matrix)

    def steps(self, matrix: Atom) -> tuple[Equation, int, tuple[Any, ...]] | None:
        """The product that makes a matrix, where the edge's numbers are in it, and the steps."""
        found: list[tuple[int, ...] | Value] = []
        while self.is_read_once(matrix):
            eqn = self.made[matrix]  # type: ignore[index]
            if _is_product(eqn):
                spaces = [a.space for a in eqn.inputs]
                if sorted(s.value for s in spaces) != ["edge", "shared"]:
                    return None
                numbers = spaces.index(Space.EDGE)
                shape = eqn.inputs[numbers].shape
                enough = len(shape) == 1 and shape[0] >= LEAST
                return (eqn, numbers, tuple(found[::-1])) if enough else None
            if eqn.op.name == "reshape":
                found.append(tuple(matrix.shape))
                (matrix,) = eqn.inputs
            elif eqn.op.name == "add":
                shared = [a for a in eqn.inputs if a.space is Space.SHARED]
                if len(shared) != 1 or not isinstance(shared[0], Value):
                    return None
                if any(a.shape != matrix.shape for a in eqn.inputs):
                    return None
                found.append(shared[0])
                matrix = next(a for a in eqn.inputs if a is not shared[0])
            else:
                return None
        return None

    def is_read_once(self, atom: Atom) -> bool:
        made = isinstance(atom, Value) and atom in self.made and atom.space is Space.EDGE
        return made and len(self.readers[atom]) == 1 and atom not in self.outputs

    def is_summed(self, value: Value) -> bool:
        """Whether nothing but sums into a vertex space, and what is linear in it, reads a value."""
        readers = self.readers[value]
        if value in self.outputs or not readers:
            return False
        return all(
            (isinstance(e.op, Reduce) and e.op.kind == "sum" and e.op.into.is_vertex)
            or (e.op.name in _LINEAR and e.space is Space.EDGE and self.is_summed(e.outputs[0]))
            for e in readers
        )


def _is_product(eqn: Equation) -> bool:
    return isinstance(eqn.op, Lax) and eqn.op.name == "dot_general" and is_plain(eqn)


def _moved(builder: Builder, a: Atom, axis: int, to: int, where: Any) -> Atom:
    """`a` with an axis moved."""
    order = [k for k in range(len(a.shape)) if k != axis]
    order.insert(to, axis)
    if order == sorted(order):
        return a
    return build.emit_op(builder, build.transpose_op(tuple(order)), [a], where)


def _concatenated(builder: Builder, parts: list[Atom], where: Any) -> Value:
    """Along the first axis."""
    return build.emit_op(builder, Lax(lax.concatenate_p, (("dimension", 0),)), parts, where)
