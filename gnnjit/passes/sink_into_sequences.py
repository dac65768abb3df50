"""`sink-into-sequences`: what selections and folds read of an edge is computed where they read it.

before:  m: f32[edge, 8] = x[u] * w[v]         after:  fold over (u -> v) of x[u], w[v]
         fold over (u -> v) of m                         m: f32[edge, 8] = x[u] * w[v]
           t: f32[edge, 8] = s + m                       t: f32[edge, 8] = s + m
           y: f32[dst, 8] = s from 0.0 to t              y: f32[dst, 8] = s from 0.0 to t

They take edges one after the other, or in many traversals, and nothing is written on the edges for
them. Always legal. Refuses what a `store` keeps, and other results of traversals.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import (
    Atom,
    Builder,
    Equation,
    Fold,
    Lax,
    Program,
    Select,
    Value,
    rewrite,
)
from gnnjit.ir.space import Space


@dataclasses.dataclass(frozen=True)
class SinkIntoSequences:
    name: str = "sink-into-sequences"

    def __call__(self, program: Program) -> Program:
        if not any(isinstance(e.op, (Select, Fold)) for e in program.equations):
            return program

        def rule(builder: Builder, eqn: Equation) -> bool:
            if not isinstance(eqn.op, (Select, Fold)):
                return False
            work = _work(program, eqn.inputs[eqn.op.own :])
            if not work and _reads_as_it_is(eqn, eqn.op):
                return False
            _sink(builder, eqn, eqn.op, work)
            return True

        return rewrite(program, rule)


def _work(program: Program, roots: tuple[Atom, ...]) -> list[Equation]:
    """The equations of edges that `roots` need, in order."""
    live, found = set(roots), []
    for eqn in reversed(program.equations):
        on_edges = isinstance(eqn.op, Lax) and eqn.space is Space.EDGE
        if on_edges and not live.isdisjoint(eqn.outputs):
            found.append(eqn)
            live.update(eqn.inputs)
    return found[::-1]


def _reads_as_it_is(eqn: Equation, op: Select | Fold) -> bool:
    """Whether the body's inputs lie where the operands do, which a pass may have moved."""
    pairs = zip(eqn.inputs[op.own :], op.body.inputs[op.carried :], strict=True)
    return all(a.space is v.space for a, v in pairs)


def _sink(builder: Builder, eqn: Equation, op: Select | Fold, work: list[Equation]) -> None:
    """Append `eqn` with `work` in its body."""
    inner = {o for e in work for o in e.outputs}
    given = eqn.inputs[op.own :]
    reads = [a for e in work for a in e.inputs] + list(given)
    operands = [a for a in dict.fromkeys(reads) if isinstance(a, Value) and a not in inner]
    new = {a: Value(a.shape, a.dtype, builder[a].space, a.name) for a in operands}
    state = [Value(v.shape, v.dtype, v.space, v.name) for v in op.body.inputs[: op.carried]]
    body = Builder()
    body.env.update(new)
    for e in work:
        outs = [Value(o.shape, o.dtype, o.space, o.name) for o in e.outputs]
        body.emit(e.op, [body[a] for a in e.inputs], outs, e.location)
        body.env.update(zip(e.outputs, outs, strict=True))
    body.env.update(zip(op.body.inputs[: op.carried], state, strict=True))
    read = [body[a] for a in given]
    body.env.update(zip(op.body.inputs[op.carried :], read, strict=True))
    for e in op.body.equations:
        outs = [Value(o.shape, o.dtype, Space.EDGE, o.name) for o in e.outputs]
        body.emit(e.op, [body[a] for a in e.inputs], outs, e.location)
        body.env.update(zip(e.outputs, outs, strict=True))
    results = tuple(body[a] for a in op.body.outputs)
    program = Program((*state, *new.values()), tuple(body.equations), results, op.body.name)
    inputs = [*map(builder.__getitem__, eqn.inputs[: op.own]), *map(builder.__getitem__, operands)]
    builder.emit(dataclasses.replace(op, body=program), inputs, eqn.outputs, eqn.location)
