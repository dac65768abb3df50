"""Feature parallelism: an aggregate for a part of the features.

Graph sampling-based GCN (section V-B) splits features between processors: each traverses all edges
for its part of the features, and needs nothing of the others. Here the processors are a second axis
of a mesh. Only an edge function that works on its last axis number by number is split; one that
mixes features (a matmul on the edges, a sum over features) is not.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.elementwise import ELEMENTWISE
from gnnjit.ir.program import Atom, Builder, Equation, Lax, Literal, Program, Value

_ALONG = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"}


@dataclasses.dataclass(frozen=True, eq=False)
class Narrowed:
    """The edge function for one part of the features, and which inputs and outputs are split."""

    body: Program
    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


class _Mixes(Exception):
    """The edge function mixes features."""


def narrowed(body: Program, parts: int) -> Narrowed | None:
    """`body` for one of so many equal parts of the features, its widest last axis; None where it
    mixes features, or their number is not divisible."""
    widths = [v.shape[-1] for v in body.inputs if v.shape]
    width = max(widths, default=0)
    if parts == 1 or width < parts or width % parts:
        return None
    try:
        return _Narrowing(body, width, parts).run()
    except _Mixes:
        return None


class _Narrowing:
    def __init__(self, body: Program, width: int, parts: int) -> None:
        self.body, self.width, self.part = body, width, width // parts
        self.split: set[Value] = {v for v in body.inputs if v.shape and v.shape[-1] == width}
        self.builder = Builder()

    def run(self) -> Narrowed:
        body = self.body
        inputs = tuple(self.fresh(v) for v in body.inputs)
        self.builder.env.update(zip(body.inputs, inputs, strict=True))
        for eqn in body.equations:
            self.equation(eqn)
        outputs = tuple(self.builder[o] for o in body.outputs)
        program = Program(inputs, tuple(self.builder.equations), outputs, body.name)
        flags = [tuple(self.is_split(a) for a in some) for some in (body.inputs, body.outputs)]
        return Narrowed(program, *flags)

    def is_split(self, atom: Atom) -> bool:
        return isinstance(atom, Value) and atom in self.split

    def fresh(self, value: Value) -> Value:
        shape = (*value.shape[:-1], self.part) if value in self.split else value.shape
        return dataclasses.replace(value, shape=shape)

    def equation(self, eqn: Equation) -> None:
        params = {}
        if eqn.op.name == "broadcast_in_dim":
            params = self.broadcast(eqn)
        elif any(map(self.is_split, eqn.inputs)):
            self.check(eqn)
            self.split.update(eqn.outputs)
        op = eqn.op
        if params:
            assert isinstance(op, Lax)
            op = Lax(op.primitive, tuple((k, params.get(k, v)) for k, v in op.params))
        outs = [self.fresh(v) for v in eqn.outputs]
        self.builder.emit(op, [self.builder[a] for a in eqn.inputs], outs, eqn.location)
        self.builder.env.update(zip(eqn.outputs, outs, strict=True))

    def broadcast(self, eqn: Equation) -> dict[str, tuple[int, ...]]:
        """The parameters that change: a last axis of features, old or new, is a part now."""
        assert isinstance(eqn.op, Lax)
        (x,), (out,) = eqn.inputs[:1], eqn.outputs
        axes, last = eqn.op["broadcast_dimensions"], len(out.shape) - 1
        if self.is_split(x):
            if not axes or axes[-1] != last:
                raise _Mixes
        elif not out.shape or out.shape[-1] != self.width or (axes and axes[-1] == last):
            return {}
        self.split.add(out)
        return {"shape": (*out.shape[:-1], self.part)}

    def check(self, eqn: Equation) -> None:
        """Raises _Mixes unless the equation works on each feature by itself."""
        if not isinstance(eqn.op, Lax):
            raise _Mixes
        if eqn.op.name in _ALONG:
            x = eqn.inputs[0]
            if len(x.shape) - 1 in eqn.op["axes"]:
                raise _Mixes
            return
        alike = all(self.is_split(a) or not a.shape for a in eqn.inputs)
        literal = any(isinstance(a, Literal) and a.shape for a in eqn.inputs)
        if eqn.op.name not in ELEMENTWISE or not alike or literal:
            raise _Mixes
