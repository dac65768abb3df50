"""`contract-with-shared-first`: a vertex's factor meets the shared one before the edge's.

before:  g: f32[edge, 32, 8] = x[u] c^T              after:  t: f32[src, 8, 32] = x @ basis
         h: f32[edge, 32] = sum of basis * g                 h: f32[edge, 32] = c @ t[u]

JAX splits `einsum('b,bio,i->o', c, basis, e.src)` into two products of two factors each, in an
order that knows nothing of edges: `c basis^T` would be a matrix for each edge. Both orders give the
same sum of products of three factors.

Legal: sums are re-associated. Refuses unless each edge multiplies and reads less than before, where
something else reads the product in between, and for vertices in `keep`.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator

from jax import lax

from gnnjit.ir.dtypes import is_floating
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Literal, Program, Value, rewrite
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.linear import dot

READ = 4
"""Multiplications that reading a scalar of a vertex costs an edge."""

Labels = tuple[int, ...]
"""A number for each axis; axes that are multiplied with each other have the same."""


@dataclasses.dataclass(frozen=True)
class ContractWithSharedFirst:
    """`keep`: vertex spaces whose work stays on the edges."""

    keep: frozenset[Space] = frozenset()
    name: str = "contract-with-shared-first"

    def __call__(self, program: Program) -> Program:
        made = {o: e for e in program.equations for o in e.outputs}
        reads = collections.Counter(a for e in program.equations for a in e.inputs)
        reads.update(program.outputs)

        def rule(builder: Builder, eqn: Equation) -> bool:
            found = _Three.match(eqn, made, reads)
            if found is None or found.vertex[0].space in self.keep or not found.is_better:
                return False
            builder.env[eqn.outputs[0]] = found.write(builder)
            return True

        return rewrite(program, rule)


@dataclasses.dataclass(frozen=True)
class _Three:
    """`eqn` sums products of a shared factor, one of a vertex space and another one."""

    eqn: Equation
    shared: tuple[Atom, Labels]
    vertex: tuple[Atom, Labels]
    other: tuple[Atom, Labels]
    out: Labels
    before: int
    """Multiplications of an edge as the two products stand."""

    @staticmethod
    def match(eqn: Equation, made: dict[Value, Equation], reads: dict[Atom, int]) -> _Three | None:
        if not _is_product(eqn) or eqn.space is not Space.EDGE:
            return None
        for side in (0, 1):
            between = eqn.inputs[side]
            inner = made.get(between) if isinstance(between, Value) else None
            if inner is None or reads[between] != 1 or not _is_product(inner):
                continue
            if inner.space is Space.EDGE and inner.outputs[0].dtype == eqn.outputs[0].dtype:
                return _three(eqn, inner, side)
        return None

    @property
    def first(self) -> Labels:
        """The labels of the product of the shared factor and the vertex's."""
        kept = {*self.other[1], *self.out}
        (_, a), (_, b) = self.shared, self.vertex
        both = [n for n in a if n in b and n in kept]
        return (*both, *(n for n in (*a, *b) if n in kept and n not in both))

    @property
    def is_better(self) -> bool:
        size = _sizes(self.shared, self.vertex, self.other)
        first = math.prod(size[n] for n in self.first)
        after = math.prod(size[n] for n in {*self.first, *self.other[1]})
        old = math.prod(self.vertex[0].shape)
        return after + READ * first < self.before + READ * old

    def write(self, builder: Builder) -> Value:
        like, (vertex, of_vertex) = self.eqn, self.vertex
        shared = builder[self.shared[0]], self.shared[1]
        own = builder[vertex], of_vertex
        first = _product(builder, like, shared, own, self.first, vertex.space)
        other = builder[self.other[0]], self.other[1]
        last = _product(builder, like, other, (first, self.first), self.out, Space.EDGE)
        return last


def _is_product(eqn: Equation) -> bool:
    plain = isinstance(eqn.op, Lax) and eqn.op.name == "dot_general"
    values = (*eqn.inputs, *eqn.outputs)
    return plain and not any(isinstance(a, Literal) or not is_floating(a.dtype) for a in values)


def _three(eqn: Equation, inner: Equation, side: int) -> _Three | None:
    fresh = iter(range(100))
    of_between = tuple(next(fresh) for _ in inner.outputs[0].shape)
    of_inner = _labels(inner, of_between, fresh)
    last, out = _outer(eqn, of_between, side, fresh)
    factors = [*zip(inner.inputs, of_inner, strict=True), (eqn.inputs[1 - side], last)]
    by_space = {Space.SHARED: [], Space.SRC: [], Space.DST: [], Space.EDGE: []}
    for factor in factors:
        by_space[factor[0].space].append(factor)
    vertices = [f for s in (Space.SRC, Space.DST) for f in by_space[s]]
    if len(by_space[Space.SHARED]) != 1 or not vertices:
        return None
    (shared,) = by_space[Space.SHARED]
    size = _sizes(*factors)
    work = [{*of_inner[0], *of_inner[1]}, {*of_between, *last}]
    before = sum(math.prod(size[n] for n in some) for some in work)
    found = []
    for vertex in vertices:
        (other,) = (f for f in factors if f is not shared and f is not vertex)
        found.append(_Three(eqn, shared, vertex, other, out, before))
    return min(found, key=lambda f: math.prod(size[n] for n in f.first))


def _labels(eqn: Equation, out: Labels, fresh: Iterator[int]) -> tuple[Labels, Labels]:
    """Labels of the operands of a product whose result has the labels `out`."""
    assert isinstance(eqn.op, Lax)
    (contracted, batch), found = eqn.op["dimension_numbers"], []
    both = [next(fresh) for _ in contracted[0]]
    at = len(batch[0])
    for k, atom in enumerate(eqn.inputs):
        given = dict(zip(batch[k], out, strict=False)) | dict(zip(contracted[k], both, strict=True))
        for axis in range(len(atom.shape)):
            if axis not in given:
                given[axis] = out[at]
                at += 1
        found.append(tuple(given[axis] for axis in range(len(atom.shape))))
    return found[0], found[1]


def _outer(
    eqn: Equation, between: Labels, side: int, fresh: Iterator[int]
) -> tuple[Labels, Labels]:
    """Labels of the other operand of `eqn` and of its result, given those of operand `side`."""
    assert isinstance(eqn.op, Lax)
    contracted, batch = eqn.op["dimension_numbers"]
    pairs = zip((*contracted[side], *batch[side]), (*contracted[1 - side], *batch[1 - side]),
                strict=True)  # fmt: skip
    given = {theirs: between[mine] for mine, theirs in pairs}
    shape = eqn.inputs[1 - side].shape
    other = tuple(given[a] if a in given else next(fresh)
                  for a in range(len(shape)))  # fmt: skip
    labels = [between, other] if side == 0 else [other, between]
    out = [labels[0][a] for a in batch[0]]
    for k in (0, 1):
        used = {*contracted[k], *batch[k]}
        out += [n for a, n in enumerate(labels[k]) if a not in used]
    return other, tuple(out)


def _sizes(*factors: tuple[Atom, Labels]) -> dict[int, int]:
    return {n: s for atom, labels in factors for n, s in zip(labels, atom.shape, strict=True)}


def _product(
    builder: Builder,
    like: Equation,
    a: tuple[Atom, Labels],
    b: tuple[Atom, Labels],
    out: Labels,
    space: Space,
) -> Value:
    """Append the product of two factors, its axes in the order `out`."""
    (left, of_left), (right, of_right) = a, b
    both = [n for n in of_left if n in of_right]
    batch, summed = [n for n in both if n in out], [n for n in both if n not in out]
    where = lambda labels, some: tuple(labels.index(n) for n in some)  # noqa: E731
    numbers = ((where(of_left, summed), where(of_right, summed)),
               (where(of_left, batch), where(of_right, batch)))  # fmt: skip
    value = dot(builder, like, left, right, numbers, space)
    free = [n for labels in (of_left, of_right) for n in labels if n not in both]
    order = where([*batch, *free], out)
    if order == tuple(range(len(order))):
        return value
    op = Lax(lax.transpose_p, (("permutation", order),))
    shape = tuple(value.shape[k] for k in order)
    return builder.emit(op, [value], [Value(shape, value.dtype, space)], like.location)[0]
