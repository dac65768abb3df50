"""`shield-unread-vertices`: what edges compute has no effect where there are no edges.

before:  a: f32[edge] = log(y[v])        after:  some: bool[dst] = degree of v > 0
                                                 z: f32[dst] = some ? y : 0.5
                                                 a: f32[edge] = log(z[v])

What the user computes on an edge is about to be computed once per vertex, also for vertices that
no edge reads. Nobody reads the result there; yet 0 times the slope of `log` at 0 is NaN, and would
reach the gradient of `y`. So the operands of primitives with poles or overflow are replaced where
there are no edges, by a number at which the primitive is smooth.

On padded graphs the features of padding may be NaN, and 0 times a matmul's operand is then NaN too.
So there the features that edges read are replaced first, if any work on the edges may move to the
vertices.

Always legal: an edge reads no other value than before. Refuses primitives that are smooth
everywhere (an attention or convolution layer stays as it is), divisors held away from 0 by a
literal (`mean` has one), integers, and work on vertices that is an output itself: its NaN is meant.
"""

from __future__ import annotations

import dataclasses
import operator

from jax import lax

from gnnjit import _compat
from gnnjit.ir import build
from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Literal, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.passes.place_in_smallest_space import homes

_SINGULAR = frozenset(
    "acos acosh asin atan2 atanh cbrt cosh digamma div erf_inv exp exp2 expm1 integer_pow lgamma "
    "log log1p polygamma pow rem rsqrt sinh sqrt tan".split()
)
_SMOOTH_AT = {"acosh": 2.0}
"""Where it is not 0.5."""
_COPIES = ("convert_element_type", "broadcast_in_dim")


@dataclasses.dataclass(frozen=True)
class ShieldUnreadVertices:
    padded: bool = False
    name: str = "shield-unread-vertices"

    def __call__(self, program: Program) -> Program:
        return _Shield(program, self.padded).run()


class _Shield:
    def __init__(self, program: Program, padded: bool):
        self.program = program
        self.builder = Builder(program.inputs)
        self.made = {o: e for e in program.equations for o in e.outputs}
        self.home = homes(program)
        self.at_reads = padded and any(map(self.may_be_hoisted, program.equations))

    def run(self) -> Program:
        for eqn in self.program.equations:
            smooth = _SMOOTH_AT.get(eqn.op.name, 0.5) if self.is_singular(eqn) else None
            inputs = [self.shielded(a, eqn, smooth) for a in eqn.inputs]
            if all(map(operator.is_, inputs, eqn.inputs)):
                self.builder.copy(eqn)
            else:
                self.builder.emit(eqn.op, inputs, eqn.outputs, eqn.location)
        return self.builder.finish(self.program)

    def is_hoisted(self, eqn: Equation) -> bool:
        """Whether the equation moves from the edges to a vertex space."""
        home = self.home[eqn.outputs[0]]
        return eqn.space is Space.EDGE and home.is_vertex

    def may_be_hoisted(self, eqn: Equation) -> bool:
        """Or parts of it do: a matmul with a concatenation is split later."""
        on_edges = isinstance(eqn.op, Lax) and eqn.space is Space.EDGE
        return on_edges and (eqn.op.name == "dot_general" or self.is_hoisted(eqn))

    def is_singular(self, eqn: Equation) -> bool:
        if not isinstance(eqn.op, Lax) or not self.is_hoisted(eqn):
            return False
        if eqn.op.name == "div" and self.is_away_from_zero(eqn.inputs[1]):
            return False
        return eqn.op.name in _SINGULAR or not _SINGULAR.isdisjoint(_compat.primitive_names(eqn.op))

    def is_away_from_zero(self, atom: Atom) -> bool:
        """Whether a divisor is the maximum of something and a positive number, or shared."""
        if self.home.get(atom, Space.SHARED) is Space.SHARED:
            return True
        eqn = self.made.get(atom)  # type: ignore[arg-type]
        if eqn is None:
            return False
        if eqn.op.name == "max":
            return any(isinstance(a, Literal) and a.value > 0 for a in eqn.inputs)
        return eqn.op.name in _COPIES and self.is_away_from_zero(eqn.inputs[0])

    def shielded(self, atom: Atom, eqn: Equation, smooth: float | None) -> Atom:
        """`atom` as `eqn` may read it; `smooth` is a number where it has no pole, if it has any."""
        new = self.builder[atom]
        if isinstance(atom, Literal) or not is_inexact(atom.dtype):
            return new
        home = self.home[atom]
        if not home.is_vertex:
            return new
        if smooth is None and self.at_reads and self.is_read_of_features(atom, eqn):
            smooth = 0.5
        return new if smooth is None else self.where_read(new, home, smooth, eqn)

    def is_read_of_features(self, atom: Value, eqn: Equation) -> bool:
        """Whether an edge reads what the caller brought for a vertex."""
        on_edge = isinstance(eqn.op, Reduce) or eqn.space is Space.EDGE
        return on_edge and atom in self.program.inputs

    def where_read(self, atom: Atom, home: Space, value: float, eqn: Equation) -> Atom:
        builder, where = self.builder, eqn.location
        some = build.has_edges(builder, home, atom.shape, where)
        otherwise = build.constant(builder, value, atom.shape, atom.dtype)
        return build.elementwise(builder, lax.select_n_p.bind, [some, otherwise, atom], where)
