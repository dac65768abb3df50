"""Whether values of a layer on a typed graph differ in nothing but their relation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from gnnjit.frontend.typed_capture import TypedProgram
from gnnjit.ir.program import Atom, Degree, Equation, Index, Lax, Literal, Reduce, Value, op_key
from gnnjit.ir.space import Space

LINEAR = frozenset({
    "mul", "div", "neg", "dot_general", "convert_element_type", "broadcast_in_dim", "reshape",
    "squeeze", "expand_dims", "transpose", "copy", "slice", "reduce_sum",
})  # fmt: skip
"""Operations that are linear in each operand, all others given (a division in its first)."""


class Values:
    """What is known of the values of a typed program.

    same_array: whether two inputs at sources are one array.
    """

    def __init__(self, typed: TypedProgram, same_array: Callable[[Value, Value], bool]):
        self.owner, self.same_array = typed.owner, same_array
        self.made: dict[Atom, Equation] = {}
        self.after_sums: set[Atom] = set()
        self.place: dict[Value, tuple[str, int]] = {}
        counts: Counter[Space] = Counter()
        for v in typed.program.inputs:
            self.place[v] = v.space.kind, counts[v.space]
            counts[v.space] += 1
        for eqn in typed.program.equations:
            self.made.update(dict.fromkeys(eqn.outputs, eqn))
            below = eqn.space is Space.DST and not self.after_sums.isdisjoint(eqn.inputs)
            if isinstance(eqn.op, Reduce) or below:
                self.after_sums.update(eqn.outputs)

    def linear_operand(self, eqn: Equation) -> int | None:
        """The operand that comes after a reduction, if the equation is linear in it and no other
        does; else None."""
        if eqn.op.name not in LINEAR or eqn.space is not Space.DST:
            return None
        found = [i for i, a in enumerate(eqn.inputs) if a in self.after_sums]
        if len(found) != 1 or (eqn.op.name == "div" and found != [0]):
            return None
        return found[0]

    def is_same(self, a: Atom, b: Atom) -> bool:
        """Whether two shared values are computed from the same ones."""
        if a is b or (isinstance(a, Literal) and isinstance(b, Literal)):
            return a is b or (isinstance(a, Literal) and isinstance(b, Literal) and a.key == b.key)
        x, y = self.made.get(a), self.made.get(b)
        if x is None or y is None or op_key(x.op) != op_key(y.op):
            return False
        pairs = zip(x.inputs, y.inputs, strict=True)
        return _number(x, a) == _number(y, b) and all(self.is_same(p, q) for p, q in pairs)

    def alike(self, a: Value, b: Value, names: tuple[str, str]) -> bool:
        """Whether two values of the vertex, linear in a sum over the edges of one relation each,
        are computed alike from what these are of. names: of the relations."""
        return _Pairs(self, names).match(a, b, True)


class _Pairs:
    """Comparisons of values of two relations."""

    def __init__(self, values: Values, names: tuple[str, str]):
        self.values, self.names = values, names
        self.known: dict[tuple[Atom, Atom], bool] = {}

    def match(self, a: Atom, b: Atom, sums: bool) -> bool:
        """sums: the reduction over the edges is still to come, backwards from the result."""
        if a is b:
            return True
        if (a, b) not in self.known:
            self.known[a, b] = self.matches(a, b, sums)
        return self.known[a, b]

    def matches(self, a: Atom, b: Atom, sums: bool) -> bool:
        if isinstance(a, Literal) or isinstance(b, Literal):
            return isinstance(a, Literal) and isinstance(b, Literal) and a.key == b.key
        if (a.shape, a.dtype, a.weak_type) != (b.shape, b.dtype, b.weak_type):
            return False
        if a.space is Space.SHARED and b.space is Space.SHARED:
            return jnp.issubdtype(a.dtype, jnp.number) or a.dtype == np.bool_
        own = a.space.of, b.space.of
        if a.space.kind != b.space.kind or own not in ((None, None), self.names):
            return False
        x, y = self.values.made.get(a), self.values.made.get(b)
        if x is None or y is None:
            return x is y and self.inputs_match(a, b)
        return _number(x, a) == _number(y, b) and self.equations_match(x, y, sums)

    def inputs_match(self, a: Value, b: Value) -> bool:
        if a.space is Space.DST:
            return False
        if a.space.kind == "src" and not self.values.same_array(a, b):
            return False
        return self.values.place[a] == self.values.place[b]

    def equations_match(self, x: Equation, y: Equation, sums: bool) -> bool:
        if op_key(x.op) != op_key(y.op) or isinstance(x.op, Index):
            return False
        if isinstance(x.op, (Reduce, Degree)):
            owner = self.values.owner
            if (owner[x.outputs[0]], owner[y.outputs[0]]) != self.names:
                return False
            is_degree = isinstance(x.op, Degree)
            return is_degree or (sums and self.match(x.inputs[0], y.inputs[0], False))
        if not isinstance(x.op, Lax) or len(x.inputs) != len(y.inputs):
            return False
        at = self.values.linear_operand(x) if sums else None
        pairs = enumerate(zip(x.inputs, y.inputs, strict=True))
        return all(self.match(p, q, k == at) for k, (p, q) in pairs)


def _number(eqn: Equation, a: Atom) -> int:
    """Which output of the equation it is."""
    return next(i for i, out in enumerate(eqn.outputs) if out is a)
