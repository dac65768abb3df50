"""`drop-dead`: what nobody reads is not computed.

before:  a = x @ w; b = x + 1; return b        after:  b = x + 1; return b

An `aggregate` loses the outputs that nobody reads, and the operands only they needed; the maximum
of a score stays with the sums that need it. Always legal: equations have no side effects.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import Aggregate, Atom, Equation, Program, Reduce


@dataclasses.dataclass(frozen=True)
class DropDead:
    name: str = "drop-dead"

    def __call__(self, program: Program) -> Program:
        live: set[Atom] = set(program.outputs)
        kept: list[Equation] = []
        for eqn in reversed(program.equations):
            if live.isdisjoint(eqn.outputs):
                continue
            if isinstance(eqn.op, Aggregate):
                eqn = _drop_outputs(eqn, live)
            kept.append(eqn)
            live.update(eqn.inputs)
        return dataclasses.replace(program, equations=tuple(reversed(kept)))


def _drop_outputs(eqn: Equation, live: set[Atom]) -> Equation:
    """An aggregate without the outputs and operands that nobody reads."""
    op = eqn.op
    assert isinstance(op, Aggregate)
    keep = _needed(op, [i for i, o in enumerate(eqn.outputs) if o in live])
    body = dataclasses.replace(op.body, outputs=tuple(op.body.outputs[i] for i in keep))
    body = DropDead()(body)
    used = {a for e in body.equations for a in e.inputs} | set(body.outputs)
    slots = [i for i, v in enumerate(body.inputs) if v in used]
    body = dataclasses.replace(body, inputs=tuple(body.inputs[i] for i in slots))
    smaller = Aggregate(body, tuple(_renumbered(op.reductions[i], keep) for i in keep))
    inputs = tuple(eqn.inputs[i] for i in slots)
    return Equation(smaller, inputs, tuple(eqn.outputs[i] for i in keep), eqn.location)


def _needed(op: Aggregate, read: list[int]) -> list[int]:
    """The outputs that are read, and those that they refer to."""
    scores = (r.score for i in read if (r := op.reductions[i]) is not None)
    return sorted({*read, *(k for k in scores if k is not None)})


def _renumbered(reduction: Reduce | None, keep: list[int]) -> Reduce | None:
    if reduction is None or reduction.score is None:
        return reduction
    return dataclasses.replace(reduction, score=keep.index(reduction.score))
