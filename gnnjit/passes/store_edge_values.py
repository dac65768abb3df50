"""`store-edge-values`: edge values that are expensive are written to memory, not computed again.

before:  a: f32[edge, 8] = x[u] @ w        after:  a: f32[edge, 8] = x[u] @ w
         b: f32[edge, 8] = tanh(a)                 k: f32[edge, 8] = kept(a)
         c: f32[dst, 8] = sum of b                 b: f32[edge, 8] = tanh(k)
                                                   c: f32[dst, 8] = sum of b

Where one traversal reads it, `kept` stands for the value: the traversal writes it when it is
differentiated, and its derivative reads it (`ir.kept`). Where traversals of several levels do, or
one with a maximum, minimum or product, `store(a)` stands there instead: a traversal writes it
before these read it, and so do their derivatives. The price is an array over the edges. `stored`
says which of `storable_values(program)` are stored, by number.

Candidates are the matmuls on the edges that would be computed again, by a derivative or by a second
traversal; the largest contractions, if there are many. Where a sum alone reads a matmul, with what
the ends of an edge add to it, the sum is stored. A program without any matmul on the edges
has others: narrow values behind an exponential or the like, as attention weights, where wider
values are multiplied with them or a sum reads them.

Always legal. Refuses what is no candidate: matmuls that only sums read (their gradient does not
need them), values that are stored already, and values as wide as the widest on the edges, unless
they are matmuls.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping

from gnnjit import _compat
from gnnjit.ir.dtypes import is_floating
from gnnjit.ir.kept import KEPT
from gnnjit.ir.large_products import contracted
from gnnjit.ir.program import (
    Atom,
    Builder,
    Equation,
    Lax,
    Location,
    Op,
    Program,
    Reduce,
    Store,
    Value,
    rewrite,
)
from gnnjit.ir.show import identifier, kind
from gnnjit.ir.space import Space
from gnnjit.passes.fuse_scatter_apply_gather import levels

MOST = 3
"""Candidates of one program, at most."""

_TRANSCENDENTAL = frozenset(
    "acos acosh asin asinh atan atan2 atanh cos cosh digamma erf erf_inv erfc exp exp2 expm1 "
    "lgamma log log1p logistic pow sin sinh tan tanh".split()
)
_LINEAR = frozenset(
    "add add_any broadcast_in_dim concatenate convert_element_type copy neg reduce_sum reshape "
    "slice squeeze sub transpose".split()
)
_COPIES = ("broadcast_in_dim", "reshape", "squeeze")


@dataclasses.dataclass(frozen=True)
class StoreEdgeValues:
    """`stored`: numbers of candidates of the program that the pass is given."""

    stored: tuple[int, ...] = ()
    name: str = "store-edge-values"

    def __call__(self, program: Program) -> Program:
        if not self.stored:
            return program
        every = storable_values(program)
        wrong = [i for i in self.stored if not 0 <= i < len(every)]
        if wrong:
            raise ValueError(
                f"store-edge-values: {program.name} has {len(every)} candidates, but number "
                f"{wrong[0]} is to be stored. See storable_values(program)"
            )
        search = _Search(program)
        chosen = {v: search.how(v) for v in (every[i].value for i in self.stored)}

        def rule(builder: Builder, eqn: Equation) -> bool:
            if chosen.keys().isdisjoint(eqn.outputs):
                return False
            for out in builder.copy(eqn):
                if out in chosen:
                    kept = Value(out.shape, out.dtype, Space.EDGE, out.name)
                    builder.env[out] = builder.emit(chosen[out], [out], [kept], eqn.location)[0]
            return True

        return rewrite(program, rule)


@dataclasses.dataclass(frozen=True)
class StorableValue:
    """An edge value worth storing; `width` is in bytes an edge, `multiplications` those of an
    edge, 0 where the value is no result of a matmul."""

    location: Location | None
    description: str
    width: int
    value: Value
    multiplications: int = 0


def storable_values(program: Program) -> tuple[StorableValue, ...]:
    """The edge values of `program` (before it is fused) that are worth storing, in order."""
    search = _Search(program)
    found = search.matmuls() if any(map(_is_matmul, program.equations)) else search.narrow()
    return tuple(_described(search.made[value], search) for value in found)


def _described(eqn: Equation, search: _Search) -> StorableValue:
    value, what = eqn.outputs[0], eqn.op.name
    made, multiplications = search.made, 0
    if _is_matmul(eqn):
        names = [parameter_name(a, made) for a in eqn.inputs if a.space is Space.SHARED]
        what = f"matmul with {names[0]}" if any(names) else "matmul"
        multiplications = value.size * contracted(eqn)
        value = search.sum_with(value)
    width = value.size * value.dtype.itemsize
    description = f"{what}: {kind(value)}"
    return StorableValue(eqn.location, description, width, value, multiplications)


def parameter_name(atom: Atom, made: Mapping[Value, Equation]) -> str:
    """What the user calls the parameter that `atom` is a part of."""
    while atom in made and made[atom].op.name in ("slice", "convert_element_type"):  # type: ignore[index]
        atom = made[atom].inputs[0]  # type: ignore[index]
    return identifier(atom.name) if isinstance(atom, Value) else ""


def _is_on_edges(eqn: Equation) -> bool:
    return isinstance(eqn.op, Lax) and eqn.space is Space.EDGE


def _is_matmul(eqn: Equation) -> bool:
    return _is_on_edges(eqn) and eqn.op.name == "dot_general"


class _Search:
    def __init__(self, program: Program):
        self.program = program
        self.made = {o: e for e in program.equations for o in e.outputs}
        self.level = levels(program.inputs, program.equations)
        self.readers: dict[Atom, list[Equation]] = collections.defaultdict(list)
        for eqn in program.equations:
            for atom in dict.fromkeys(eqn.inputs):
                self.readers[atom].append(eqn)

    def matmuls(self) -> list[Value]:
        found = [e for e in self.program.equations if _is_matmul(e)]
        found = [e for e in found if self.is_computed_again(e.outputs[0])]
        most = sorted(found, key=contracted, reverse=True)[:MOST]
        return [e.outputs[0] for e in found if e in most]

    def is_computed_again(self, value: Value) -> bool:
        """Whether a derivative needs `value`, or traversals of several levels do."""
        readers = self.all_readers(value, _is_linear)
        if any(isinstance(e.op, Store) for e in readers):
            return False
        return not all(map(_is_linear, readers)) or len(self.traversals(value, readers)) > 1

    def sum_with(self, value: Value) -> Value:
        """The sum that alone reads `value`, with what the ends of an edge add to it: no larger, and
        a derivative that reads it has neither product nor ends to read."""
        while True:
            readers = self.readers[value]
            if len(readers) != 1 or value in self.program.outputs or not _is_sum(readers[0]):
                return value
            value = readers[0].outputs[0]

    def how(self, value: Value) -> Op:
        """The operation that stores `value`."""
        readers = self.all_readers(value)
        sums = all(e.op.kind == "sum" for e in readers if isinstance(e.op, Reduce))
        return KEPT if sums and len(self.traversals(value, readers)) == 1 else Store()

    def all_readers(
        self, value: Value, through: Callable[[Equation], bool] = _is_on_edges
    ) -> list[Equation]:
        """What reads `value`, itself or through values of edges that were made so."""
        found: dict[Equation, None] = {}
        waiting: list[Value] = [value]
        while waiting:
            for eqn in self.readers[waiting.pop()]:
                if eqn not in found and _is_on_edges(eqn) and through(eqn):
                    waiting += eqn.outputs
                found[eqn] = None
        return list(found)

    def traversals(self, value: Value, readers: list[Equation]) -> set[int]:
        """The levels of the traversals that compute `value`, for such readers."""
        made = [value, *(o for e in readers if _is_on_edges(e) for o in e.outputs)]
        steps = [o for e in readers if isinstance(e.op, Reduce | Store) for o in e.outputs]
        written = {self.level[v] for v in made if v in self.program.outputs}
        return written | {self.level[o] - 1 for o in steps}

    def narrow(self) -> list[Value]:
        """Values behind a transcendental function where something wider, or a sum, reads them."""
        on_edges = [e for e in self.program.equations if _is_on_edges(e)]
        read = [a for e in on_edges for a in (*e.inputs, *e.outputs) if a.space is not Space.SHARED]
        widest = max((a.size for a in read if isinstance(a, Value)), default=0)
        behind: set[Atom] = set()
        for eqn in on_edges:
            if _is_transcendental(eqn) or not behind.isdisjoint(eqn.inputs):
                behind.update(o for o in eqn.outputs if o.size < widest and is_floating(o.dtype))
        found = {
            self.origin(o, behind): None
            for e in on_edges
            for o in e.outputs
            if o in behind and any(_weighs(reader, o) for reader in self.readers[o])
        }
        stored = {a for e in self.program.equations if isinstance(e.op, Store) for a in e.inputs}
        return [v for v in found if v not in stored][:MOST]

    def origin(self, value: Value, behind: set[Atom]) -> Value:
        """What `value` is a copy of."""
        eqn = self.made[value]
        while eqn.op.name in _COPIES and eqn.inputs[0] in behind:
            value = eqn.inputs[0]  # type: ignore[assignment]
            eqn = self.made[value]
        return value


def _is_linear(eqn: Equation) -> bool:
    return eqn.op.name in _LINEAR or eqn.op == Reduce("sum", eqn.space)


def _is_sum(eqn: Equation) -> bool:
    """Of two values of edges, of one shape and type."""
    kinds = {(a.shape, a.dtype) for a in (*eqn.inputs, *eqn.outputs)}
    return _is_on_edges(eqn) and eqn.op.name in ("add", "add_any", "sub") and len(kinds) == 1


def _is_transcendental(eqn: Equation) -> bool:
    names = {eqn.op.name, *_compat.primitive_names(eqn.op)}
    return not _TRANSCENDENTAL.isdisjoint(names)


def _weighs(reader: Equation, value: Value) -> bool:
    """Whether `reader` sums `value`, or brings it to something wider."""
    if isinstance(reader.op, Reduce):
        return reader.op.kind == "sum"
    return _is_on_edges(reader) and reader.outputs[0].size > value.size
