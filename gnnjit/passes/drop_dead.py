"""`drop-dead`: what nobody reads is not computed.

before:  a = x @ w; b = x + 1; return b        after:  b = x + 1; return b

An `aggregate` loses the outputs that nobody reads, and the operands only they needed; the maximum
of a score stays with the sums that need it. Always legal: equations have no side effects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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


def reading(program: Program, outputs: Sequence[int]) -> tuple[Program, list[int]]:
    """A program with these outputs alone, and which of the inputs it reads, by number."""
    kept = tuple(program.outputs[k] for k in outputs)
    program = DropDead()(dataclasses.replace(program, outputs=kept))
    read = {a for e in program.equations for a in e.inputs} | set(program.outputs)
    slots = [i for i, v in enumerate(program.inputs) if v in read]
    return dataclasses.replace(program, inputs=tuple(program.inputs[i] for i in slots)), slots


def smaller(op: Aggregate, read: Sequence[int]) -> tuple[Aggregate, list[int], list[int]]:
    """An aggregate for the outputs that are read, which ones and which operands it has left: the
    outputs that those refer to stay too."""
    keep = _needed(op, read)
    body, slots = reading(op.body, keep)
    return Aggregate(body, tuple(_renumbered(op.reductions[i], keep) for i in keep)), keep, slots


def _drop_outputs(eqn: Equation, live: set[Atom]) -> Equation:
    """An aggregate without the outputs and operands that nobody reads."""
    assert isinstance(eqn.op, Aggregate)
    op, keep, slots = smaller(eqn.op, [i for i, o in enumerate(eqn.outputs) if o in live])
    inputs = tuple(eqn.inputs[i] for i in slots)
    return Equation(op, inputs, tuple(eqn.outputs[i] for i in keep), eqn.location)


def _needed(op: Aggregate, read: Sequence[int]) -> list[int]:
    """The outputs that are read, and those that they refer to."""
    scores = (r.score for i in read if (r := op.reductions[i]) is not None)
    return sorted({*read, *(k for k in scores if k is not None)})


def _renumbered(reduction: Reduce | None, keep: list[int]) -> Reduce | None:
    if reduction is None or reduction.score is None:
        return reduction
    return dataclasses.replace(reduction, score=keep.index(reduction.score))
