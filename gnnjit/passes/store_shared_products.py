"""`store-shared-products`: what sources reduce is written where destinations compute it anyway.

before:  h: f32[edge, 64] = tanh(a @ w)    after:  h: f32[edge, 64] = tanh(a @ w)
         y: f32[dst, 64] = sum of h * c            y: f32[dst, 64] = sum of h * c
         g: f32[src, 64] = sum of h * d            m: f32[edge, 64] = h * d
                                                   s: f32[edge, 64] = store(m)
                                                   g: f32[src, 64] = sum of s

The gradient of an edge network is such a program. Reductions into sources and into destinations are
two traversals, each of which would compute the edge function with all its products; now the second
reads an array. Nothing is differentiated any more, so that no other traversal needs the products.

Destinations also write what sources reduce where it is made of much more that lies at a
destination, as the gradient of sums of outer products: a traversal by sources would fetch that for
each edge.

Legal: the same values, but that half precision is rounded where it is stored, as plain JAX rounds
it, and was summed unrounded in kernels. Refuses where no large product (`large_products`) would be
computed twice and no destination has `WIDE` scalars for the edge; where a reduction needs the
products nevertheless, as an `exp_sum` does; and where edges read what is reduced, which would split
the traversals after it.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from gnnjit.ir.large_products import large_products
from gnnjit.ir.program import Atom, Builder, Equation, Program, Reduce, Store, Value, rewrite
from gnnjit.ir.space import Space
from gnnjit.passes.fuse_scatter_apply_gather import levels

WIDE, TIMES = 512, 8
"""Scalars of a destination that edges are not to fetch, and how many times as many as they write
instead."""


@dataclasses.dataclass(frozen=True)
class StoreSharedProducts:
    name: str = "store-shared-products"

    def __call__(self, program: Program) -> Program:
        reductions = _worth_storing(program)
        stored: dict[Atom, Value] = {}

        def rule(builder: Builder, eqn: Equation) -> bool:
            if eqn not in reductions:
                return False
            value = eqn.inputs[0]
            if value not in stored:
                kept = Value(tuple(value.shape), value.dtype, Space.EDGE)
                stored[value] = builder.emit(Store(), [builder[value]], [kept], eqn.location)[0]
            builder.emit(eqn.op, [stored[value]], eqn.outputs, eqn.location)
            return True

        after = rewrite(program, rule)
        outputs = tuple(stored.get(o, o) for o in after.outputs)
        return dataclasses.replace(after, outputs=outputs)


def _worth_storing(program: Program) -> list[Equation]:
    """The reductions into sources that will read what destinations' traversals store."""
    products, level = large_products(program), levels(program.inputs, program.equations)
    groups: dict[tuple[int, Space], list[Equation]] = collections.defaultdict(list)
    for eqn in program.equations:
        if isinstance(eqn.op, Reduce):
            groups[level[eqn.outputs[0]] - 1, eqn.op.into].append(eqn)
    fed, far, found = _fed(program), _far(program), []
    for (at, into), group in groups.items():
        if into is not Space.SRC:
            continue
        again = [e for e in group if far.get(e.inputs[0], 0) >= TIMES * e.outputs[0].size]
        if (at, Space.DST) in groups:
            again += [e for e in _shared(program, groups, at, products, level) if e not in again]
        if all(len(e.inputs) == 1 and e.outputs[0] not in fed for e in again):
            found += again
    return found


def _shared(
    program: Program,
    groups: dict[tuple[int, Space], list[Equation]],
    at: int,
    products: dict[Atom, frozenset[Any]],
    level: dict[Value, int],
) -> list[Equation]:
    """The reductions into sources that need large products which destinations need, too."""
    others = [*groups[at, Space.DST], *groups.get((at, Space.SHARED), [])]
    theirs = [a for e in others for a in e.inputs]
    theirs += [o for o in program.outputs if isinstance(o, Value) and level[o] == at]
    shared = frozenset(p for a in theirs for p in products.get(a, ()))
    group = groups[at, Space.SRC]
    return [e for e in group if any(shared & products.get(a, frozenset()) for a in e.inputs)]


def _far(program: Program) -> dict[Atom, int]:
    """For values of edges, the scalars of the widest destination's value that they are made of, if
    it has `WIDE` and no source has one as wide."""
    most: dict[Atom, tuple[int, int]] = {v: _scalars(v) for v in program.inputs}
    for eqn in program.equations:
        below = [(0, 0), *(most[a] for a in eqn.inputs if a in most)]
        found = max(src for src, _ in below), max(dst for _, dst in below)
        for out in eqn.outputs:
            most[out] = _scalars(out) if out.space.is_vertex else found
    return {v: dst for v, (src, dst) in most.items() if dst >= WIDE and dst > src}


def _scalars(value: Value) -> tuple[int, int]:
    """Of a source's value, and of a destination's."""
    return value.size * (value.space is Space.SRC), value.size * (value.space is Space.DST)


def _fed(program: Program) -> set[Atom]:
    """What a reduction, a stored value or an output on the edges is computed from."""
    found: set[Atom] = {a for a in program.outputs if a.space is Space.EDGE}
    for eqn in reversed(program.equations):
        if isinstance(eqn.op, (Reduce, Store)) or not found.isdisjoint(eqn.outputs):
            found.update(eqn.inputs)
    return found
