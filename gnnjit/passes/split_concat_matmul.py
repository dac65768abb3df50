"""`split-concat-matmul`: a matmul of a linear combination of smaller spaces, once per vertex.

before:  h: f32[edge, 8] = concatenate(x[u], x[v], w[e]) @ W
after:   h: f32[edge, 8] = (x @ W1)[u] + (x @ W2)[v] + w @ W3

and `(x[v] - x[u]) @ W` likewise, through sums, differences, negations, concatenations and scaling
by one number per edge. W is sliced, so the parameter keeps its shape and checkpoints stay valid.
This is the split that GraphCast's newest code makes by hand, and what GNS and EdgeConv need.

Legal: matmul is linear; sums are re-associated, those of half precision in float32. Refuses unless
fewer columns are left to multiply on the edges than before (work of the vertices in `keep` counts
as being on the edges); with a `score(program) -> float`, unless the score falls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from jax import lax

from gnnjit.ir import build
from gnnjit.ir.dtypes import is_floating, is_half
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Literal, Program, Value, rewrite
from gnnjit.ir.space import Space
from gnnjit.passes.wide import in_float32, widened

Score = Callable[[Program], float]


@dataclasses.dataclass(frozen=True)
class SplitConcatMatmul:
    """`keep`: vertex spaces whose work `sink-vertex-work` moves (or has moved) to the edges."""

    score: Score | None = None
    keep: frozenset[Space] = frozenset()
    name: str = "split-concat-matmul"

    def __call__(self, program: Program) -> Program:
        split = program
        while (after := _split_each(split, self.keep)) is not None:
            split = after  # which may reveal a sum to the next matmul
        if self.score is not None and self.score(split) > self.score(program):
            return program
        return split


def _split_each(program: Program, keep: frozenset[Space]) -> Program | None:
    """Every matmul split that can be; None if there is none."""
    made = {o: e for e in program.equations for o in e.outputs}
    fired: list[Equation] = []

    def rule(builder: Builder, eqn: Equation) -> bool:
        matmul = _Matmul.match(eqn, keep)
        if matmul is None or not matmul.split(builder, made):
            return False
        fired.append(eqn)
        return True

    after = rewrite(program, rule)
    return after if fired else None


@dataclasses.dataclass(frozen=True)
class _Term:
    """`sign * scales * value`, multiplied by rows `start:stop` of the weights."""

    value: Value
    start: int
    stop: int
    negative: bool = False
    scales: tuple[Value, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Matmul:
    """An edge value times a shared weight, contracted over one axis each."""

    eqn: Equation
    edge_first: bool
    axis: int
    weight_axis: int
    keep: frozenset[Space]

    @staticmethod
    def match(eqn: Equation, keep: frozenset[Space]) -> _Matmul | None:
        if not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
            return None
        (contract, batch) = eqn.op["dimension_numbers"]
        if any(map(len, batch)) or [len(c) for c in contract] != [1, 1]:
            return None
        spaces = [a.space for a in eqn.inputs]
        if sorted(s.value for s in spaces) != ["edge", "shared"]:
            return None
        if any(isinstance(a, Literal) for a in eqn.inputs):
            return None
        first = spaces[0] is Space.EDGE
        axes = [c[0] for c in contract]
        return _Matmul(eqn, first, axes[0 if first else 1], axes[1 if first else 0], keep)

    @property
    def edge(self) -> Value:
        return self.eqn.inputs[0 if self.edge_first else 1]  # type: ignore[return-value]

    @property
    def weight(self) -> Value:
        return self.eqn.inputs[1 if self.edge_first else 0]  # type: ignore[return-value]

    def split(self, builder: Builder, made: dict[Value, Equation]) -> bool:
        out, width = self.eqn.outputs[0], self.edge.shape[self.axis]
        terms = self.expand(_Term(self.edge, 0, width), made)
        terms.sort(key=lambda t: (t.value.space.value, t.negative))  # one sum for each endpoint
        if self.width_on_edges(terms) >= width:
            return False
        sums: dict[Space, Value] = {}
        for term in terms:
            part = self.multiply(builder, term)
            sums[part.space] = self.accumulate(builder, sums.get(part.space), part, term.negative)
        total: Value | None = None
        for part in sums.values():
            total = self.accumulate(builder, total, part, negative=False)
        assert total is not None
        builder.env[self.eqn.outputs[0]] = widened(builder, total, out.dtype, self.eqn.location)
        return True

    def expand(self, term: _Term, made: dict[Value, Equation]) -> list[_Term]:
        """The terms whose sum is `term`, as far as that helps."""
        eqn = made.get(term.value)
        if term.value.space is not Space.EDGE or eqn is None or not isinstance(eqn.op, Lax):
            return [term]
        inputs = [a for a in eqn.inputs if isinstance(a, Value)]
        match eqn.op.name:
            case "concatenate" if eqn.op["dimension"] == self.axis:
                parts = self.concatenated(term, inputs)
            case "add" | "sub" if _same_shapes(eqn):
                flip = eqn.op.name == "sub"
                parts = [
                    dataclasses.replace(term, value=inputs[0]),
                    dataclasses.replace(term, value=inputs[1], negative=term.negative != flip),
                ]
            case "neg":
                parts = [dataclasses.replace(term, value=inputs[0], negative=not term.negative)]
            case "mul" if _same_shapes(eqn):
                parts = self.scaled(term, inputs, made)
            case _:
                return [term]
        terms = [t for part in parts for t in self.expand(part, made)]
        helps = parts and self.width_on_edges(terms) < term.stop - term.start
        return terms if helps else [term]

    def width_on_edges(self, terms: list[_Term]) -> int:
        """The columns that are left to multiply for each edge."""
        spaces = {Space.EDGE, *self.keep}
        return sum(t.stop - t.start for t in terms if t.value.space in spaces)

    def concatenated(self, term: _Term, inputs: list[Value]) -> list[_Term]:
        if term.stop - term.start != term.value.shape[self.axis]:
            return []
        parts, at = [], term.start
        for value in inputs:
            stop = at + value.shape[self.axis]
            parts.append(dataclasses.replace(term, value=value, start=at, stop=stop))
            at = stop
        return parts

    def scaled(self, term: _Term, inputs: list[Value], made: dict[Value, Equation]) -> list[_Term]:
        for number, other in (inputs, inputs[::-1]):
            scalar = _broadcast_of_scalar(number, made)
            if scalar is not None:
                return [dataclasses.replace(term, value=other, scales=(*term.scales, scalar))]
        return []

    def multiply(self, builder: Builder, term: _Term) -> Value:
        weight, where = builder[self.weight], self.eqn.location
        if term.stop - term.start != self.weight.shape[self.weight_axis]:
            starts, stops = [0] * len(weight.shape), list(weight.shape)
            starts[self.weight_axis], stops[self.weight_axis] = term.start, term.stop
            part = build.slice_op(tuple(starts), tuple(stops))
            weight = build.emit_op(builder, part, [weight], where)
        sides: list[Atom] = [builder[term.value], weight]
        op = self.eqn.op
        assert isinstance(op, Lax)
        if is_half(self.eqn.outputs[0].dtype):
            op = in_float32(op)
            sides = [widened(builder, a, np.dtype(np.float32), where) for a in sides]
        out = build.emit_op(builder, op, sides if self.edge_first else sides[::-1], where)
        for scale in term.scales:
            factor = build.broadcast(builder, builder[scale], out.shape, where)  # type: ignore[arg-type]
            out = build.mul(builder, build.convert(builder, factor, out.dtype, where), out, where)
        return out

    def accumulate(
        self, builder: Builder, total: Value | None, part: Value, negative: bool
    ) -> Value:
        where = self.eqn.location
        if total is None:
            return build.elementwise(builder, lax.neg, [part], where) if negative else part
        return build.combine(builder, lax.sub if negative else lax.add, total, part, where)


def _same_shapes(eqn: Equation) -> bool:
    return len({a.shape for a in eqn.inputs}) == 1 and not any(
        isinstance(a, Literal) for a in eqn.inputs
    )


def _broadcast_of_scalar(value: Value, made: dict[Value, Equation]) -> Value | None:
    """The number per element that fills `value`, if it is filled with one."""
    eqn = made.get(value)
    if eqn is None or eqn.op.name not in ("broadcast_in_dim", "reshape"):
        return None
    source = eqn.inputs[0]
    if not isinstance(source, Value) or not is_floating(source.dtype):
        return None
    if source.shape == ():
        return source
    if source.size == 1 and eqn.op.name == "broadcast_in_dim":
        return _broadcast_of_scalar(source, made)
    return None
