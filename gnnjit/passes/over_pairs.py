"""A program of all edges as one of pairs: each two edges `u -> v` and `v -> u` are one.

before:  f: f32[edge] = g(|r[u] - r[v]|);  s: f32[dst] = sum of x[u] * f
after:   f: f32[edge] = g(|r[u] - r[v]|)
         s: f32[dst] = sum of x[u] * f + sum over outgoing edges of x[v] * f

On a graph with one edge of each two, what edges into a vertex sum on the whole graph is the sum
over the edges into it, and over those out of it of the same expression with its ends swapped. An
expression that stays as it is under the swap (*even*: a distance, and the filter that a network
makes of it) is computed once for both; of one that changes its sign (*odd*: a step between two
positions) the second is the negative. Anything else is computed for either end.

Legal where each edge `u -> v` has an edge `v -> u` and no edge is a loop. Refuses (gives None)
programs in which something belongs to a single edge (its data, number, result), a reduction is no
sum, or an edge reads what edges sum, as attention does. No paper that gnnjit is built from has it;
codes for molecular dynamics have the like by hand ("half neighbour lists").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from jax import lax

from gnnjit.ir import build
from gnnjit.ir.linear import is_linear
from gnnjit.ir.program import (
    Atom,
    AtVertex,
    Builder,
    Degree,
    Equation,
    Index,
    Lax,
    Literal,
    OfGraph,
    Op,
    Pool,
    Program,
    Reduce,
    Value,
    op_key,
)
from gnnjit.ir.space import Space

EVEN = frozenset("abs square cos cosh".split())
"""Functions of one operand that are even."""

ODD = frozenset("sin tan asin atan sinh tanh asinh atanh erf erf_inv cbrt sign round".split())
"""Functions of one operand that are odd, and not linear."""

SYMMETRIC = frozenset("add mul max min".split())
"""Operations of two operands whose order does not matter, in the last bit either."""

FACTORS = frozenset("mul div dot_general".split())
"""Operations of two operands: even of two odd ones, odd of one (`div`: the first)."""

INDEXED = frozenset("gather dynamic_slice".split())
"""Operations that are linear in the first operand; the others are integers."""


def over_pairs(program: Program, slots: Sequence[int]) -> tuple[Program, tuple[int, ...]] | None:
    """The program for a graph that has one edge of each two, and the array of each of its inputs;
    None where there is none.

    slots: the array of each input of `program`.
    """
    try:
        return _Pairs(program, slots).result()
    except _NotOverPairs:
        return None


class _NotOverPairs(Exception):
    """The program asks for single edges."""


class _Pairs:
    """Writes the program, each operation on the same operands once.

    swapped: of each value that has one, its value with the ends of the edge swapped; for odd ones,
        which are in `odd`, once it was asked for.
    """

    def __init__(self, program: Program, slots: Sequence[int]):
        self.program = program
        self.slots = list(slots)
        self.inputs = list(program.inputs)
        self.builder = Builder(program.inputs)
        self.known: dict[Hashable, tuple[Value, ...]] = {}
        self.swapped: dict[Value, Atom] = {}
        self.odd: dict[Value, tuple[Equation, list[Atom]]] = {}
        self.pair_inputs()

    def pair_inputs(self) -> None:
        """Each array at both ends, as one input of either."""
        ends: dict[tuple[int, Space], Value] = {}
        for value, slot in zip(self.program.inputs, self.slots.copy(), strict=True):
            if value.space.is_vertex:
                self.builder.env[value] = ends.setdefault((slot, value.space), value)
            elif value.space is not Space.EDGE:
                self.swapped[value] = value
        for (slot, space), value in list(ends.items()):
            if (slot, space.flipped) not in ends:
                other = Value(value.shape, value.dtype, space.flipped, "", value.weak_type)
                ends[slot, space.flipped] = self.builder.env[other] = other
                self.inputs.append(other)
                self.slots.append(slot)
            self.swapped[value] = ends[slot, space.flipped]
            self.swapped[ends[slot, space.flipped]] = value

    def result(self) -> tuple[Program, tuple[int, ...]]:
        for eqn in self.program.equations:
            self.write(eqn)
        outputs = tuple(self.builder[o] for o in self.program.outputs)
        if any(o.space is Space.EDGE or o.space is Space.SRC for o in outputs):
            raise _NotOverPairs
        every = Program(tuple(self.inputs), tuple(self.builder.equations), outputs)
        program, read = every.select(range(len(outputs)))
        program = dataclasses.replace(program, name=self.program.name)
        return program, tuple(self.slots[i] for i in read)

    def write(self, eqn: Equation) -> None:
        ins = [self.builder[a] for a in eqn.inputs]
        match eqn.op:
            case Lax():
                self.operation(eqn, ins)
            case Pool() | OfGraph() | Index():
                outs = self.emit(eqn, ins, eqn.outputs)
                if all(o.space.is_replicated for o in outs):
                    self.swapped.update(zip(outs, outs, strict=True))
                elif eqn.space is not Space.EDGE:
                    self.swap(eqn, ins, outs)
            case Degree() if eqn.space is Space.DST:
                here = self.emit_like(eqn, Space.DST, Degree(), [])
                self.both(eqn, here, self.emit_like(eqn, Space.SRC, Degree(), []))
            case Degree() if eqn.space is Space.GRAPH:
                self.swapped.update((o, o) for o in self.emit(eqn, [], eqn.outputs))
            case Reduce("sum", into, None) if into is not Space.SRC:
                self.sum(eqn, ins[0])
            case _:
                raise _NotOverPairs

    def operation(self, eqn: Equation, ins: list[Atom]) -> None:
        outs = self.emit(eqn, ins, eqn.outputs)
        if not all(self.has_swapped(a) for a in ins):
            return
        odd = tuple(i for i, a in enumerate(ins) if a in self.odd)
        even = [i for i, a in enumerate(ins) if i not in odd and self.is_even(a)]
        if len(even) == len(ins) or self.is_exchanged(eqn, ins, SYMMETRIC):
            self.swapped.update(zip(outs, outs, strict=True))
        elif self.is_exchanged(eqn, ins, frozenset(("sub",))) and _has_sign(eqn):
            self.odd[outs[0]] = eqn, ins
        elif len(odd) + len(even) < len(ins):
            self.swap(eqn, ins, outs)
        elif _is_even(eqn, odd):
            self.swapped.update(zip(outs, outs, strict=True))
        elif _is_odd(eqn, odd):
            self.odd[outs[0]] = eqn, ins
        else:
            self.swap(eqn, ins, outs)

    def is_exchanged(self, eqn: Equation, ins: list[Atom], names: frozenset[str]) -> bool:
        """Whether it has one of these names, and two operands that are each other's swapped."""
        return (
            eqn.op.name in names
            and isinstance(ins[0], Value)
            and ins[0] not in self.odd
            and self.swapped.get(ins[0]) is ins[1]
        )

    def has_swapped(self, a: Atom) -> bool:
        return isinstance(a, Literal) or a in self.odd or a in self.swapped

    def is_even(self, a: Atom) -> bool:
        return isinstance(a, Literal) or self.swapped.get(a) is a

    def at_other_end(self, a: Atom) -> Atom:
        """The value with its ends swapped."""
        if isinstance(a, Literal):
            return a
        if a not in self.swapped:
            if a not in self.odd:
                raise _NotOverPairs
            eqn, ins = self.odd[a]
            if eqn.op.name == "dot_general":
                self.swapped[a] = build.elementwise(self.builder, lax.neg, [a], eqn.location)
            else:  # -(a - b) is -0.0 where b - a is 0.0
                self.swap(eqn, ins, [a])
        return self.swapped[a]

    def swap(self, eqn: Equation, ins: list[Atom], outs: Sequence[Value]) -> None:
        """The same operation at the other end."""
        others = [Value(o.shape, o.dtype, o.space.flipped, "", o.weak_type) for o in outs]
        found = self.emit(eqn, [self.at_other_end(a) for a in ins], others)
        self.swapped.update(zip(outs, found, strict=True))
        self.swapped.update(zip(found, outs, strict=True))

    def sum(self, eqn: Equation, value: Atom) -> None:
        """A sum into the vertices, or over all edges: of both ends."""
        if not self.has_swapped(value):
            raise _NotOverPairs
        into = eqn.space
        other = into.flipped  # that of the whole graph is itself
        is_odd = value in self.odd
        back = value if is_odd else self.at_other_end(value)
        here = self.emit_like(eqn, into, Reduce("sum", into), [value])
        there = self.emit_like(eqn, other, Reduce("sum", other), [back])
        self.both(eqn, here, there, lax.sub if is_odd else lax.add)
        if into.is_replicated:
            total = self.builder.env[eqn.outputs[0]]
            assert isinstance(total, Value)
            self.swapped[total] = total

    def both(
        self, eqn: Equation, here: Value, there: Value, how: Callable[..., Any] = lax.add
    ) -> None:
        """The result of `eqn`: what edges into a vertex and those out of it give together."""
        (out,) = eqn.outputs
        if there.space is Space.SRC:
            there = self.emit_like(eqn, Space.DST, AtVertex(), [there])
        op = build.traced_op(how, (((), out.dtype), ((), out.dtype)))
        self.builder.emit(op, [here, there], [out], eqn.location)

    def emit_like(self, eqn: Equation, space: Space, op: Op, ins: list[Atom]) -> Value:
        (out,) = eqn.outputs
        return self.emit(eqn, ins, [Value(out.shape, out.dtype, space)], op)[0]

    def emit(
        self, eqn: Equation, ins: list[Atom], outs: Sequence[Value], op: Op | None = None
    ) -> tuple[Value, ...]:
        """Append the equation, or give what the same one gave before."""
        op = eqn.op if op is None else op
        numbers = tuple(a.key if isinstance(a, Literal) else id(a) for a in ins)
        key = (op_key(op), numbers, outs[0].space)
        if key not in self.known:
            self.known[key] = self.builder.emit(op, ins, outs, eqn.location)
        elif outs is eqn.outputs:
            self.builder.env.update(zip(outs, self.known[key], strict=True))
        return self.known[key]


def _is_even(eqn: Equation, odd: tuple[int, ...]) -> bool:
    """Whether the result is even where these operands are odd, and the others even."""
    name, op = eqn.op.name, eqn.op
    if name in EVEN or (name in FACTORS and len(odd) == 2):
        return True
    return isinstance(op, Lax) and name == "integer_pow" and op["y"] % 2 == 0


def _is_odd(eqn: Equation, odd: tuple[int, ...]) -> bool:
    """Whether the result is odd where these operands are odd, and the others even."""
    name = eqn.op.name
    if len(eqn.outputs) > 1 or not _has_sign(eqn):
        return False
    if name in ODD or name == "integer_pow" or (name in FACTORS and name != "div"):
        return True
    if name == "div" or name in INDEXED:
        return odd == (0,)
    first = 1 if name == "select_n" else 0
    return odd == tuple(range(first, len(eqn.inputs))) and is_linear(eqn, odd)


def _has_sign(eqn: Equation) -> bool:
    """Whether results are floats: unsigned integers have no negatives."""
    return all(np.issubdtype(o.dtype, np.inexact) for o in eqn.outputs)
