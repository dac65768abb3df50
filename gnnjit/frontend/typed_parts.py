"""A typed program as parts that run one after the other, each on the graph of one relation.

A part is a program of one relation, as any layer's: passes, plans, traversals and derivatives are
those of layers. Values of the vertex alone pass from part to part. What depends on one relation
alone is in its part, after the reductions too. Work on edges, and on vertices for edges, is in each
part that needs it. What several relations meet in, and what none is in, is a part without edges.

Parts have stages: one that reads what other relations were reduced to runs after these. A softmax
over all relations takes one stage, since its maxima are taken for each relation by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from gnnjit.frontend.capture import on_the_edges
from gnnjit.frontend.typed_capture import TypedProgram
from gnnjit.ir.program import Atom, Builder, Equation, Literal, Program, Value
from gnnjit.ir.space import Space

Place = tuple[str, int]
"""The relation of a part ("" for the vertices alone), and its stage."""

VERTICES = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A program of one relation.

    relation: its name; "" where there is none, and no edge is read.
    inputs, outputs: what the program reads and gives, as values of the typed program.
    """

    relation: str
    program: Program
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def split(typed: TypedProgram, hoisted: bool) -> list[Part]:
    """The parts of a typed program, in the order in which they run.

    hoisted: whether matrix products of destinations that several relations read are taken once,
        also at vertices without edges.
    """
    return _Split(typed, hoisted).parts()


class _Split:
    def __init__(self, typed: TypedProgram, hoisted: bool):
        self.typed = typed
        self.hoisted = hoisted
        self.program = typed.program
        self.owner = dict(typed.owner)
        made = [o for eqn in self.program.equations for o in eqn.outputs]
        names = {o.space.of for o in made} | set(self.owner.values())
        self.names = sorted(name for name in names if name is not None)
        self.inputs = set(self.program.inputs)
        self.home: dict[Value, str] = {}
        self.need: dict[tuple[Value, str], int] = {}
        self.used: dict[Value, set[Place]] = {}

    def parts(self) -> list[Part]:
        if not self.program.equations:
            return []
        self.find_homes()
        self.find_stages()
        places = self.find_places()
        every = sorted({p for _, where in places for p in where}, key=lambda p: (p[1], p[0]))
        return [self.part(place, places) for place in every]

    def find_homes(self) -> None:
        """Where values of the vertex are computed once. Others are computed where they are read."""
        met = self.relations_met()
        asked = {a for a in self.program.outputs if _is_vertex_value(a)}
        readers: dict[Atom, set[str]] = {a: {VERTICES} for a in asked}
        for eqn in reversed(self.program.equations):
            out = eqn.outputs[0]
            if out in self.owner:
                self.home[out] = self.owner[out]
                at = {self.owner[out]}
            elif out.space is Space.DST:
                at = set().union(*(readers.get(o, set()) for o in eqn.outputs))
                is_asked = not asked.isdisjoint(eqn.outputs)
                if not is_asked and self.is_hoisted(eqn, met[out], at):
                    is_asked = True
                if is_asked:
                    at = {self.home_of(met[out], at)}
                    self.home.update(dict.fromkeys(eqn.outputs, next(iter(at))))
                    asked.update(a for a in eqn.inputs if _is_vertex_value(a))
            elif out.space is Space.SHARED:
                continue
            else:
                at = {str(out.space.of)}
            for a in eqn.inputs:
                readers.setdefault(a, set()).update(at)

    def relations_met(self) -> dict[Atom, frozenset[str]]:
        """The relations whose reductions each value of the vertex depends on, beyond them."""
        met: dict[Atom, frozenset[str]] = {}
        for eqn in self.program.equations:
            out = eqn.outputs[0]
            if out in self.owner:
                met[out] = frozenset({self.owner[out]})
            elif out.space is Space.DST:
                found = frozenset().union(*(met.get(a, frozenset()) for a in eqn.inputs))
                met.update(dict.fromkeys(eqn.outputs, found))
        return met

    def is_hoisted(self, eqn: Equation, met: frozenset[str], readers: set[str]) -> bool:
        """Whether a product that only edges read is taken once for all relations."""
        several = len(readers - {VERTICES}) > 1
        return self.hoisted and several and not met and eqn.op.name == "dot_general"

    def home_of(self, met: frozenset[str], readers: set[str]) -> str:
        if len(self.names) == 1:
            return self.names[0]
        if len(met) == 1:
            return next(iter(met))
        if not met and len(readers) == 1:
            return next(iter(readers))
        return VERTICES

    def find_stages(self) -> None:
        """The first stage of a part of a relation in which each value can be computed."""
        for eqn in self.program.equations:
            out = eqn.outputs[0]
            if out in self.home:
                names: Iterable[str] = (self.home[out],)
            elif out.space.of is not None:
                names = (out.space.of,)
            else:
                names = (*self.names, VERTICES)
            for name in names:
                stage = max((self.stage(a, name) for a in eqn.inputs), default=0)
                self.need.update({(o, name): stage for o in eqn.outputs})

    def stage(self, atom: Atom, name: str) -> int:
        if isinstance(atom, Literal) or atom in self.inputs:
            return 0
        home = self.home.get(atom, name)
        if home == name:
            return self.need[atom, name]
        return self.need[atom, home] + (home != VERTICES)

    def find_places(self) -> list[tuple[Equation, set[Place]]]:
        """The parts that each equation is in; fills `used`, the parts that read each value."""
        result: Place = ("", 1 + max((k for k in self.need.values()), default=0) + 1)
        for a in self.program.outputs:
            if isinstance(a, Literal) or a in self.inputs:
                continue
            at = result
            if a.space.of is not None:
                at = (a.space.of, self.need[a, a.space.of])
            self.used.setdefault(a, set()).add(at)
        self.result = result
        places = []
        for eqn in reversed(self.program.equations):
            used = set().union(*(self.used.get(o, set()) for o in eqn.outputs))
            if not used:
                continue
            out = eqn.outputs[0]
            if out in self.home:
                used = {(self.home[out], self.need[out, self.home[out]])}
            elif result in used:  # a shared value that is returned
                used = (used - {result}) | {(VERTICES, 0)}
                self.home.update(dict.fromkeys(eqn.outputs, VERTICES))
                self.need.update({(o, VERTICES): 0 for o in eqn.outputs})
            for a in eqn.inputs:
                if isinstance(a, Value):
                    self.used.setdefault(a, set()).update(used)
            places.append((eqn, used))
        return list(reversed(places))

    def part(self, place: Place, places: Sequence[tuple[Equation, set[Place]]]) -> Part:
        equations = [eqn for eqn, where in places if place in where]
        made = {o for eqn in equations for o in eqn.outputs}
        read = {a for eqn in equations for a in eqn.inputs if isinstance(a, Value)}
        every = dict.fromkeys([*self.program.inputs, *self.program.values()])
        inputs = tuple(v for v in every if v in read and v not in made)
        outputs = tuple(v for v in every if v in made and self.leaves(v, place))
        program = _plain(inputs, equations, outputs, f"{self.program.name} {place[0]}".strip())
        if place[0] != VERTICES:
            program = on_the_edges(program)
        return Part(place[0], program, inputs, outputs)

    def leaves(self, v: Value, place: Place) -> bool:
        """Whether a value that a part computes is read elsewhere."""
        if v.space.of is not None:
            return v in self.program.outputs
        home = self.home.get(v)
        if home is None or (home, self.need[v, home]) != place:
            return False
        return bool(self.used.get(v, set()) - {place})


def _is_vertex_value(a: Atom) -> bool:
    return isinstance(a, Value) and a.space is Space.DST


def _plain(
    inputs: Sequence[Value], equations: Sequence[Equation], outputs: Sequence[Value], name: str
) -> Program:
    """The program of one relation, in the spaces of a layer."""
    builder = Builder()

    def plain(v: Value) -> Value:
        return v if v.space.of is None else dataclasses.replace(v, space=Space(v.space.kind))

    def titled(i: int, v: Value) -> Value:
        return plain(v if v.name else dataclasses.replace(v, name=f"h{i}"))

    fresh = tuple(titled(i, v) for i, v in enumerate(inputs))
    builder.env.update(zip(inputs, fresh, strict=True))
    for eqn in equations:
        outs = tuple(map(plain, eqn.outputs))
        builder.emit(eqn.op, [builder[a] for a in eqn.inputs], outs, eqn.location)
        builder.env.update(zip(eqn.outputs, outs, strict=True))
    return Program(fresh, tuple(builder.equations), tuple(builder[o] for o in outputs), name)
