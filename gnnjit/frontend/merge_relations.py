"""Sums over relations between the same types as one sum over the edges of all of them.

    before:  out = v @ w0 + mean over r0 of x[u] @ w1 + mean over r1 of x[u] @ w2
    after:   out = v @ w0 + sum over r0 and r1 of x[u] @ stack(w1, w2)[relation] / degree

where `relation` is the number of an edge's relation and `degree` how many edges of that relation
its destination has. So a layer that loops over `e.relations` becomes what `w[e.relation]` says on a
graph whose edges carry numbers: one traversal, whose products are grouped.

What is merged are terms of one addition at the vertex that differ in nothing but shared arrays and
edge data: each a sum over the edges of its relation, after which come linear operations alone. The
terms keep their relations where they differ in more, where a term is read elsewhere too, where a
softmax, an extreme or another reduction of the relation stands inside, and where the numbers of
edges are read, as random draws do.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit.frontend.alike import Values
from gnnjit.frontend.typed_capture import TypedProgram, TypedWalker
from gnnjit.ir import build
from gnnjit.ir.program import (
    Atom,
    Builder,
    Degree,
    Equation,
    Literal,
    Program,
    Reduce,
    Value,
    needed,
)
from gnnjit.ir.space import Space, join


@dataclasses.dataclass(frozen=True, eq=False)
class MergedEdges:
    """The edges of several relations, in the order of these.

    relations: their names in the program.
    number, degree: inputs of the program: the relation of each edge by its place in `relations`,
        and the edges of that relation into its destination, `int32` each.
    inputs: further inputs of the program, each with the inputs of the relations that it stands for:
        on the edges, theirs one after the other; at sources, the same array for all.
    """

    relations: tuple[str, ...]
    number: Value
    degree: Value
    inputs: dict[Value, tuple[Value, ...]]


@dataclasses.dataclass(frozen=True)
class _Term:
    """A value of the vertex that is linear in a sum over the edges of one relation."""

    value: Value
    relation: str


Worth = Callable[[TypedProgram, TypedProgram, Mapping[str, MergedEdges]], bool]
"""Whether a program is to run as the second in place of the first."""


def merged(
    typed: TypedProgram, keys: Mapping[str, Any], same: Callable[[Value, Value], bool], worth: Worth
) -> tuple[TypedProgram, dict[str, MergedEdges]]:
    """The program with sums merged where that is worth it, and by name the edges that they run
    over.

    keys: the key of each relation. same: whether two inputs at sources are one array.
    """
    found: dict[str, MergedEdges] = {}
    refused: set[tuple[str, ...]] = set()
    while True:
        merger = _Merger(typed, keys, same, found, refused)
        relations = merger.largest()
        if relations is None:
            return typed, found
        after, edges = merger.merge(relations)
        if worth(typed, after, edges):
            typed, found = after, edges
        else:
            refused.add(relations)


class _Merger:
    """A typed program, in which one set of relations may be merged."""

    def __init__(
        self,
        typed: TypedProgram,
        keys: Mapping[str, Any],
        same: Callable[[Value, Value], bool],
        known: Mapping[str, MergedEdges],
        refused: set[tuple[str, ...]],
    ):
        self.typed, self.keys, self.known = typed, keys, known
        self.values = Values(typed, same)
        self.uses = Counter(a for eqn in typed.program.equations for a in eqn.inputs)
        self.uses.update(typed.program.outputs)
        self.groups: dict[tuple[str, ...], list[tuple[Value, list[_Term]]]] = {}
        for root in self.roots():
            for terms in self.alike(self.terms(root)):
                names = tuple(t.relation for t in terms)
                if len(terms) > 1 and names not in refused:
                    self.groups.setdefault(names, []).append((root, terms))

    def largest(self) -> tuple[str, ...] | None:
        """The relations of the largest set of terms that could be merged."""
        return max(self.groups, key=len, default=None)

    # -- what could be merged

    def roots(self) -> list[Value]:
        """Sums at the vertex that are no term of another sum."""
        sums = [eqn for eqn in self.typed.program.equations if _is_sum(eqn)]
        inner = {a for eqn in sums for a in eqn.inputs if self.is_inner(a)}
        return [eqn.outputs[0] for eqn in sums if eqn.outputs[0] not in inner]

    def is_inner(self, a: Atom) -> bool:
        """Whether it is a sum that one equation alone reads."""
        eqn = self.values.made.get(a)
        return eqn is not None and _is_sum(eqn) and self.uses[a] == 1

    def leaves(self, root: Value) -> list[Atom]:
        """The terms of a sum, in order."""
        found: list[Atom] = []
        stack = list(reversed(self.values.made[root].inputs))
        while stack:
            a = stack.pop()
            if self.is_inner(a):
                stack.extend(reversed(self.values.made[a].inputs))
            else:
                found.append(a)
        return found

    def terms(self, root: Value) -> list[_Term]:
        found = []
        for a in self.leaves(root):
            if isinstance(a, Value) and (relation := self.linear_in(a)) is not None:
                found.append(_Term(a, relation))
        return found

    def linear_in(self, a: Atom) -> str | None:
        """The relation over whose edges `a` is a sum, but for linear operations, or whose edges it
        counts; else None."""
        eqn = self.values.made.get(a)
        if eqn is None or self.uses[a] != 1:
            return None
        owner = self.typed.owner.get(eqn.outputs[0])
        if owner is not None and owner not in self.keys:  # of edges that were merged before
            return None
        if isinstance(eqn.op, Degree):
            return owner
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return None
        if isinstance(eqn.op, Reduce):
            return owner if eqn.op.kind == "sum" else None
        at = self.values.linear_operand(eqn)
        return None if at is None else self.linear_in(eqn.inputs[at])

    def alike(self, terms: Sequence[_Term]) -> list[list[_Term]]:
        """The terms in sets that differ in relations alone, each relation once in a set."""
        sets: list[list[_Term]] = []
        for term in terms:
            for found in sets:
                if self.is_another(term, found):
                    found.append(term)
                    break
            else:
                sets.append([term])
        return sets

    def is_another(self, term: _Term, found: Sequence[_Term]) -> bool:
        """Whether a term is alike those of a set, of another relation from the same type."""
        first = found[0]
        if any(term.relation == other.relation for other in found):
            return False
        names = first.relation, term.relation
        types = {self.keys[name][0] for name in names}
        return len(types) == 1 and self.values.alike(first.value, term.value, names)

    # -- merging

    def merge(self, relations: tuple[str, ...]) -> tuple[TypedProgram, dict[str, MergedEdges]]:
        """The program in which the sums over these relations are one, beside `known`."""
        name = f"m{len(self.known)}_{len(relations)}_relations"
        edge = Space("edge", name)
        int32 = np.dtype(np.int32)
        edges = MergedEdges(
            relations, Value((), int32, edge, "e.relation"),
            Value((), int32, edge, "e.relation_degree"), {},
        )  # fmt: skip
        old, owner = self.typed.program, dict(self.typed.owner)
        of_root: dict[Value, list[list[_Term]]] = {}
        for root, terms in self.groups[relations]:
            of_root.setdefault(root, []).append(terms)
        builder = Builder([*old.inputs, edges.number, edges.degree])
        for eqn in old.equations:
            root = eqn.outputs[0]
            if root not in of_root:
                builder.copy(eqn)
                continue
            taken = {t.value for terms in of_root[root] for t in terms}
            total = [builder[a] for a in self.leaves(root) if a not in taken]
            for terms in of_root[root]:
                writer = _Writer(self.values, builder, edges, name)
                out = writer.total([t.value for t in terms], eqn)
                owner[out] = name
                total.append(out)
            builder.env[root] = functools.reduce(
                lambda a, b, eqn=eqn: build.elementwise(builder, lax.add, [a, b], eqn.location),
                total,
            )
        outputs = [builder[a] for a in old.outputs]
        program = _live([*old.inputs, edges.number, edges.degree, *edges.inputs], builder, outputs)
        substituted, live = dict(zip(old.outputs, outputs, strict=True)), set(program.values())
        typed = dataclasses.replace(
            self.typed, program=dataclasses.replace(program, name=old.name),
            owner={v: of for v, of in owner.items() if v in live},
            outputs=tuple(_substituted(x, substituted) for x in self.typed.outputs),
        )  # fmt: skip
        return typed, {**self.known, name: edges}


def _is_sum(eqn: Equation) -> bool:
    out = eqn.outputs[0]
    return (
        eqn.op.name == "add"
        and out.space is Space.DST
        and all(tuple(a.shape) == out.shape for a in eqn.inputs)
    )


def _live(inputs: Sequence[Value], builder: Builder, outputs: Sequence[Atom]) -> Program:
    equations = needed(builder.equations, outputs)
    return Program(tuple(inputs), equations, tuple(outputs))


def _substituted(x: Any, values: Mapping[Atom, Atom]) -> Any:
    if hasattr(x, "parts"):
        return dataclasses.replace(x, parts=tuple(values[a] for a in x.parts))
    return values[x]


class _Writer:
    """Writes what is computed on each edge of some relations once, for the edges of all."""

    def __init__(self, values: Values, builder: Builder, edges: MergedEdges, name: str):
        self.values, self.builder, self.edges, self.name = values, builder, edges, name
        self.walker = TypedWalker(builder, {name: None}, "")
        self.done: dict[tuple[Atom, ...], Atom] = {}

    def total(self, terms: Sequence[Value], root: Equation) -> Value:
        """The sum of terms over the edges of all relations. root: what they are terms of."""
        (out,) = (Value(v.shape, v.dtype, Space.DST) for v in root.outputs)
        if isinstance(self.values.made[terms[0]].op, Degree):
            return self.builder.emit(Degree(), [], [out], root.location)[0]
        message = self.walker.on_relation(self.name, self.write(tuple(terms)))
        return self.builder.emit(Reduce("sum", Space.DST), [message], [out], root.location)[0]

    def write(self, atoms: tuple[Atom, ...]) -> Atom:
        """The value that stands for one of each relation."""
        if atoms not in self.done:
            self.done[atoms] = self.written(atoms)
        return self.done[atoms]

    def written(self, atoms: tuple[Atom, ...]) -> Atom:
        first = atoms[0]
        values = [a for a in atoms if isinstance(a, Value)]
        if isinstance(first, Literal):
            return first
        if first.space is Space.SHARED:
            same = all(self.values.is_same(first, a) for a in atoms)
            return self.builder[first] if same else self.picked(atoms)
        if first.space is Space.DST and len(set(atoms)) == 1:
            return self.builder[first]
        eqn = self.values.made.get(first)
        if eqn is None:
            return self.input(tuple(values))
        if isinstance(eqn.op, Degree):
            return self.edges.degree
        if isinstance(eqn.op, Reduce):
            return self.write(tuple(self.values.made[a].inputs[0] for a in atoms))
        made = [self.values.made[a] for a in atoms]
        ins = [self.write(column) for column in zip(*(e.inputs for e in made), strict=True)]
        space = join(*(Space(a.space.kind) for a in ins))
        if any(a.space.of is not None for a in ins):
            space = Space("edge", self.name)
        outs = [Value(v.shape, v.dtype, space, v.name, v.weak_type) for v in eqn.outputs]
        self.builder.emit(eqn.op, ins, outs, eqn.location)
        return outs[eqn.outputs.index(first)]

    def picked(self, atoms: tuple[Atom, ...]) -> Atom:
        """Of shared values, that of the edge's relation."""
        values = [self.builder[a] for a in atoms]
        return self.walker.by(_pick, [self.edges.number, *values])[0]

    def input(self, atoms: tuple[Value, ...]) -> Value:
        for made, of in self.edges.inputs.items():
            if of == atoms:
                return made
        first = atoms[0]
        title = first.name.rpartition(": ")[2]  # without the relation's name
        made = dataclasses.replace(first, space=Space(first.space.kind, self.name), name=title)
        self.edges.inputs[made] = atoms
        self.builder.env[made] = made
        return made


def _pick(number: Any, *values: Any) -> list[Any]:
    return [jnp.stack(values)[number]]
