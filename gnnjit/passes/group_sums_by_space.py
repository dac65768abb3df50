"""`group-sums-by-space`: terms of a sum that belong to one endpoint are added once per vertex.

before:  h: f32[edge, 8] = ((x[u] + b) + y[v]) + c        after:  h = (x + (b + c))[u] + y[v]

Such sums are what biases of several linear maps leave behind. Without the pass their gradients
would be summed over all edges, too.

Legal: sums are re-associated, those of half precision in float32. Shared terms join those of one
endpoint. Refuses sums in which no space has two terms and none is shared,
integers (nothing to gain), and terms that are broadcast.
"""

from __future__ import annotations

import collections
import dataclasses

from jax import lax

from gnnjit.ir import build
from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Program, Value, rewrite
from gnnjit.ir.space import Space
from gnnjit.passes.wide import widened, working

_ADD = ("add", "add_any")


@dataclasses.dataclass(frozen=True)
class GroupSumsBySpace:
    name: str = "group-sums-by-space"

    def __call__(self, program: Program) -> Program:
        made = {o: e for e in program.equations for o in e.outputs}
        uses = collections.Counter(a for e in program.equations for a in e.inputs)
        uses.update(program.outputs)

        def rule(builder: Builder, eqn: Equation) -> bool:
            if not _is_sum(eqn):
                return False
            terms = _terms(eqn, made, uses, negative=False)
            spaces = collections.Counter(t.space for t, _ in terms)
            if max(spaces.values()) == 1 and not spaces[Space.SHARED]:
                return False
            if len(terms) - spaces[Space.EDGE] < 2:
                return False
            return _emit(builder, eqn, terms)

        return rewrite(program, rule)


def _is_sum(eqn: Equation | None) -> bool:
    if eqn is None or not isinstance(eqn.op, Lax) or eqn.space is not Space.EDGE:
        return False
    out = eqn.outputs[0]
    same = all(a.shape == out.shape and a.dtype == out.dtype for a in eqn.inputs)
    return eqn.op.name in (*_ADD, "sub") and same and is_inexact(out.dtype)


def _terms(
    eqn: Equation, made: dict[Value, Equation], uses: dict[Atom, int], negative: bool
) -> list[tuple[Atom, bool]]:
    """The terms of a sum and whether each is subtracted; inner sums with one reader are opened."""
    out: list[tuple[Atom, bool]] = []
    for position, atom in enumerate(eqn.inputs):
        minus = negative != (position == 1 and eqn.op.name == "sub")
        inner = made.get(atom) if isinstance(atom, Value) else None
        if inner is not None and _is_sum(inner) and uses[atom] == 1:
            out += _terms(inner, made, uses, minus)
        else:
            out.append((atom, minus))
    return out


def _emit(builder: Builder, eqn: Equation, terms: list[tuple[Atom, bool]]) -> bool:
    """Sum shared terms, then each endpoint's with them, then all."""
    groups: dict[Space, list[tuple[Atom, bool]]] = collections.defaultdict(list)
    dtype = working(eqn.outputs[0].dtype)
    for atom, minus in terms:
        groups[atom.space].append((widened(builder, builder[atom], dtype, eqn.location), minus))
    first = next(s for s in (Space.DST, Space.SRC, Space.EDGE) if groups[s])
    shared = groups[Space.SHARED]
    if shared:
        groups[first].append(_sum(builder, eqn, shared))
    sums = [_sum(builder, eqn, groups[s]) for s in (Space.DST, Space.SRC, Space.EDGE) if groups[s]]
    total, minus = _sum(builder, eqn, sums)
    if minus:
        total = build.elementwise(builder, lax.neg, [total], eqn.location)
    builder.env[eqn.outputs[0]] = widened(builder, total, eqn.outputs[0].dtype, eqn.location)
    return True


def _sum(builder: Builder, eqn: Equation, terms: list[tuple[Atom, bool]]) -> tuple[Atom, bool]:
    """One value, and whether it stands for its negative: a term that is added comes first."""
    (total, minus), *rest = sorted(terms, key=lambda t: t[1])
    for atom, negative in rest:
        fn = lax.add if negative == minus else lax.sub
        total = build.combine(builder, fn, total, atom, eqn.location)
    return total, minus
