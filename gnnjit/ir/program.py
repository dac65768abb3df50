"""The program of one layer: straight-line equations over values that live in index spaces.

Shapes are *per element*: a value `f32[16]` in the space `dst` is an array `[num_dst, 16]`.
Values are compared by identity (each is assigned once); programs are compared by `key()`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import numpy as np

from gnnjit.ir.space import Space


@dataclasses.dataclass(frozen=True)
class Location:
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """One value per element of `space`, each of `shape` and `dtype`.

    `weak_type` as in JAX: a Python number, which does not promote what it meets.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    space: Space
    name: str = ""
    weak_type: bool = False

    @property
    def size(self) -> int:
        """Number of scalars per element."""
        return math.prod(self.shape)

    @property
    def aval(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Literal:
    """A scalar constant."""

    value: Any
    dtype: np.dtype
    shape: tuple[int, ...] = ()
    space: Space = Space.SHARED

    @property
    def aval(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), self.dtype)

    @functools.cached_property
    def key(self) -> Hashable:
        """Equal for literals of the same bits and dtype."""
        number = np.asarray(self.value).astype(self.dtype)  # it wraps, where asarray would raise
        return ("literal", number.tobytes(), self.dtype.name)


Atom = Value | Literal


@dataclasses.dataclass(frozen=True)
class Lax:
    """A JAX primitive applied per element, in the space of the outputs."""

    primitive: Any
    params: tuple[tuple[str, Any], ...]

    @functools.cached_property
    def name(self) -> str:
        return self.primitive.name

    @functools.cached_property
    def key(self) -> Hashable:
        """See `op_key`."""
        return (self.name, tuple((k, _param_key(p)) for k, p in self.params))

    def __getitem__(self, key: str) -> Any:
        for name, value in self.params:
            if name == key:
                return value
        raise KeyError(key)


@dataclasses.dataclass(frozen=True)
class Reduce:
    """Reduce an edge value over the edges of each element of `into`; 0 where there are none.

    `kind` is `sum`, `max`, `min`, `prod` or `exp_sum`. Into `SHARED` means over all edges. The
    derivative of a `prod` divides by each factor: none may be 0 where it is differentiated.

    `exp_sum` has a score beside its value: the sum of `exp(score - shift) * value`, where `shift`
    is the largest score of the row, a constant to differentiation, or 0 where that is not finite.
    The score's shape is a prefix of the value's. As an equation it reads (score, value); in an
    `Aggregate`, `score` is the number of the output whose maximum it needs.

    fixed: the result is a constant to differentiation, as what a `stop_gradient` gives is.
    """

    kind: str
    into: Space
    score: int | None = None
    fixed: bool = False

    @property
    def name(self) -> str:
        return self.kind


@dataclasses.dataclass(frozen=True)
class Pool:
    """Reduce a vertex value over the vertices of each graph; 0 where a graph has none.

    `kind` is `sum`, `max` or `min`. An extreme over the edges of each graph is pooled from those
    over the edges of each vertex, and has two operands more: the number of edges of each vertex,
    where 0 leaves the vertex out, and for each entry the number of edges that attain it, by which
    the gradient is shared among vertices that tie.
    """

    kind: str
    name: str = "pool"


@dataclasses.dataclass(frozen=True)
class OfGraph:
    """The value of the graph that each vertex belongs to. No other operation reads values of
    graphs in a larger space, so traversals know of none."""

    name: str = "of_graph"


@dataclasses.dataclass(frozen=True)
class AtVertex:
    """The value that each vertex has as a source, as a value of destinations: where both are the
    same vertices, what is reduced over outgoing edges is a value of the vertex."""

    name: str = "at_vertex"


@dataclasses.dataclass(frozen=True)
class Store:
    """The value of its operand, which lies on the edges, as an array in memory.

    It is computed once; the traversals that need it read it, and so do their derivatives.
    """

    name: str = "store"


@dataclasses.dataclass(frozen=True)
class Degree:
    """Number of edges at each element of the output's space (`SRC` or `DST`); in `GRAPH`, the
    number of vertices."""

    name: str = "degree"


@dataclasses.dataclass(frozen=True)
class Index:
    """The number of the element itself, `int32[]`, in the output's space."""

    name: str = "index"


@dataclasses.dataclass(frozen=True)
class Select:
    """The number of the edge whose value has a rank among those of its row, entry by entry.

    `body` computes the value of an edge, and the number by which edges that tie are ordered, from
    the operands after the first; that one is the ranks, `int32[k]`, from 0. The results are
    `int32[k, *shape]` in `into`; -1 where a row has no edge of that rank.

    descending: largest values first, and NaN before them; else last, after all.
    first: all ranks are 0.
    """

    body: Program
    into: Space
    descending: bool = False
    first: bool = False
    name: str = "select"

    own: ClassVar[int] = 1
    """How many operands come before those that are read on the edges."""

    @property
    def carried(self) -> int:
        """How many inputs of the body are no operands."""
        return 0


@dataclasses.dataclass(frozen=True)
class Fold:
    """A state of each row, changed by its edges one after the other.

    `body` gives the next state from the last one and the operands that are read on the edge. The
    equation's operands are the edges' `order`, if it has one, the first state, and those. Edges of
    a row come by their order, NaN last, and by their numbers where that ties.
    """

    body: Program
    into: Space
    ordered: bool = False
    name: str = "fold"

    @property
    def carried(self) -> int:
        """How many inputs of the body are the state."""
        return len(self.body.outputs)

    @property
    def own(self) -> int:
        """How many operands come before those that are read on the edges."""
        return self.carried + self.ordered


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """Apply `body` on each edge, then reduce each of its outputs.

    `reductions[i]` says where output `i` goes; None leaves it on the edges.
    """

    body: Program
    reductions: tuple[Reduce | None, ...]
    name: str = "aggregate"

    def operands(self, i: int) -> tuple[Atom, ...]:
        """What output `i` is reduced from: its score, if its reduction has one, and its value."""
        outputs, reduction = self.body.outputs, self.reductions[i]
        k = None if reduction is None else reduction.score
        score = outputs[k : k + 1] if k is not None and k >= 0 else ()
        return *score, outputs[i]

    def select(self, outputs: Iterable[int]) -> Selection:
        """The aggregate with these outputs alone, the scores that they refer to, and the operands
        that all these read; outputs and operands stay in order."""
        wanted = set(outputs)
        reductions = [self.reductions[i] for i in wanted]
        wanted.update(r.score for r in reductions if r is not None and r.score is not None)
        keep = sorted(wanted)
        body, inputs = self.body.select(keep)
        kept = tuple(_renumbered(self.reductions[i], keep) for i in keep)
        return Selection(Aggregate(body, kept), tuple(keep), inputs)


class Selection(NamedTuple):
    """A part of an aggregate, and which of its outputs and operands that part has, by number."""

    op: Aggregate
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]


def _renumbered(reduction: Reduce | None, keep: list[int]) -> Reduce | None:
    if reduction is None or reduction.score is None:
        return reduction
    return dataclasses.replace(reduction, score=keep.index(reduction.score))


@dataclasses.dataclass(frozen=True)
class Network:
    """Apply `body` to each vertex by itself. In `body`, the vertex's values lie on an edge.

    No pass meets one: `lower.vertex_networks` makes them when a program is about to run.
    """

    body: Program
    name: str = "network"


Op = (
    Lax | Reduce | Pool | OfGraph | AtVertex | Store | Degree | Index | Select | Fold | Aggregate
    | Network
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Equation:
    """`outputs = op(inputs)`, written by the user at `location`."""

    op: Op
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    location: Location | None = None

    @property
    def space(self) -> Space:
        return self.outputs[0].space


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Inputs, equations in order, outputs."""

    inputs: tuple[Value, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    name: str = "layer"

    def key(self) -> Hashable:
        """Equal for two programs that apply the same operations to the same values, in order.

        Names and locations do not count.
        """
        return self._key

    @functools.cached_property
    def _key(self) -> Hashable:
        number = {v: i for i, v in enumerate(self.inputs)}

        def atom(a: Atom) -> Hashable:
            return a.key if isinstance(a, Literal) else number[a]

        rows: list[Hashable] = []
        for eqn in self.equations:
            ins = tuple(atom(a) for a in eqn.inputs)
            for out in eqn.outputs:
                number[out] = len(number)
            rows.append((op_key(eqn.op), ins, tuple(_kind(o) for o in eqn.outputs)))
        return (tuple(_kind(v) for v in self.inputs), tuple(rows), tuple(map(atom, self.outputs)))

    def __hash__(self) -> int:
        return hash(self.key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and (self is other or self.key() == other.key())

    def __repr__(self) -> str:
        return f"Program({self.name}, {len(self.inputs)} inputs, {len(self.equations)} equations)"

    def is_made_of(self, other: Program) -> bool:
        """Whether it has the very inputs, equations and outputs of the other."""
        mine = (*self.inputs, *self.equations, *self.outputs)
        theirs = (*other.inputs, *other.equations, *other.outputs)
        return len(mine) == len(theirs) and all(map(operator.is_, mine, theirs))

    def select(self, outputs: Iterable[int]) -> tuple[Program, tuple[int, ...]]:
        """The program with these outputs alone, and which of the inputs it reads, by number."""
        kept = tuple(self.outputs[i] for i in outputs)
        equations = needed(self.equations, kept)
        read = {*kept, *(a for e in equations for a in e.inputs)}
        slots = tuple(i for i, v in enumerate(self.inputs) if v in read)
        inputs = tuple(self.inputs[i] for i in slots)
        return Program(inputs, equations, kept, self.name), slots

    def values(self) -> Iterator[Value]:
        """Every value: inputs first, then each equation's outputs."""
        yield from self.inputs
        for eqn in self.equations:
            yield from eqn.outputs


Answer = TypeVar("Answer")


def remembered(fn: Callable[[Program], Answer]) -> Callable[[Program], Answer]:
    """`fn`, whose answer is kept with the program it was asked about, as long as that very object
    lives: an equal program has other values."""

    @functools.wraps(fn)
    def known(program: Program) -> Answer:
        found = program.__dict__.setdefault("_remembered", {})
        if fn not in found:
            found[fn] = fn(program)
        return found[fn]

    return known


def _kind(v: Value) -> Hashable:
    return (v.shape, v.dtype.name, v.space)


def op_key(op: Op) -> Hashable:
    """A hashable key of `op`, equal for equal operations."""
    match op:
        case Lax():
            return op.key
        case Aggregate(body, reductions):
            return ("aggregate", body.key(), reductions)
        case Select() | Fold():
            return (op.name, dataclasses.replace(op, body=_NOTHING), op.body.key())
        case _:
            return op


_NOTHING = Program((), (), ())


def _param_key(param: Any) -> Hashable:
    try:
        hash(param)
    except TypeError:
        return (type(param).__name__, id(param))
    return (type(param).__name__, param)


def needed(equations: Sequence[Equation], wanted: Iterable[Atom]) -> tuple[Equation, ...]:
    """The equations that `wanted` are computed by, in order; of an aggregate, what they need."""
    live: set[Atom] = set(wanted)
    kept: list[Equation] = []
    for eqn in reversed(equations):
        if live.isdisjoint(eqn.outputs):
            continue
        if isinstance(eqn.op, Aggregate):
            op, outputs, inputs = eqn.op.select(i for i, o in enumerate(eqn.outputs) if o in live)
            eqn = Equation(
                op,
                tuple(eqn.inputs[i] for i in inputs),
                tuple(eqn.outputs[i] for i in outputs),
                eqn.location,
            )
        kept.append(eqn)
        live.update(eqn.inputs)
    return tuple(reversed(kept))


def depends(program: Program, roots: set[int]) -> list[bool]:
    """Which outputs depend on the inputs numbered `roots`."""
    live: set[Atom] = {v for i, v in enumerate(program.inputs) if i in roots}
    for eqn in program.equations:
        if live.intersection(eqn.inputs):
            live.update(eqn.outputs)
    return [o in live for o in program.outputs]


class Builder:
    """Writes a new program equation by equation, carrying a substitution from old values."""

    def __init__(self, inputs: Iterable[Value] = ()):
        self.equations: list[Equation] = []
        self.env: dict[Value, Atom] = {v: v for v in inputs}

    def __getitem__(self, atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else self.env[atom]

    def emit(
        self,
        op: Op,
        inputs: Iterable[Atom],
        outputs: Iterable[Value],
        location: Location | None = None,
    ) -> tuple[Value, ...]:
        """Append an equation; `inputs` are already values of the new program."""
        outs = tuple(outputs)
        self.equations.append(Equation(op, tuple(inputs), outs, location))
        for out in outs:
            self.env[out] = out
        return outs

    def copy(self, eqn: Equation) -> tuple[Value, ...]:
        """Append `eqn` with its inputs substituted, its outputs kept."""
        env = self.env
        for atom in eqn.inputs:
            if isinstance(atom, Value) and env[atom] is not atom:
                inputs = map(self.__getitem__, eqn.inputs)
                return self.emit(eqn.op, inputs, eqn.outputs, eqn.location)
        self.equations.append(eqn)
        for out in eqn.outputs:
            env[out] = out
        return eqn.outputs

    def finish(self, program: Program) -> Program:
        """The new program: `program`'s inputs and name, outputs substituted."""
        outputs = tuple(self[o] for o in program.outputs)
        return Program(program.inputs, tuple(self.equations), outputs, program.name)


def rewrite(program: Program, rule: Callable[[Builder, Equation], bool]) -> Program:
    """Walk the equations in order; where `rule` returns False the equation is kept as it is."""
    builder = Builder(program.inputs)
    for eqn in program.equations:
        if not rule(builder, eqn):
            builder.copy(eqn)
    return builder.finish(program)
