"""Edges side by side in the lanes of vectors, for edge functions of few scalars.

A distance of two particles is three scalars: one edge fills three lanes of sixteen, its square one.
Here a vector holds the same scalar of as many edges of a row as it has lanes. Rows are reduced lane
by lane, and the lanes are put together at the end of a row, by halving: in the same order always.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Atom, Equation, Value
from gnnjit.ir.space import Space
from gnnjit.lower.cpu.accumulators import GrowingSums, Places
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.index_rules import combiner, identity
from gnnjit.lower.cpu.simd import I32, I64, PTR, Vec, is_half, mangle, memory_type
from gnnjit.lower.cpu.spec import PER_EDGE, Spec
from gnnjit.lower.cpu.stored import Env

MOST_SCALARS = 8
"""Scalars of a value of an edge at most."""

MOST_WORK = 512
"""Scalars of all values of an edge at most: each is a vector that is written out."""

DEAR = frozenset(
    "div rem sqrt rsqrt cbrt exp exp2 expm1 log log1p log2 pow tanh logistic erf sin cos".split()
)
DEAR_WORK = 8
"""Additions that one of them costs."""

COMPARED = ("at_most", "eq", "ne")
"""Words that compare a value of an edge with what a traversal may have made of the same values."""

GATHERED = 1.2
"""Additions that it costs to gather a scalar of one edge."""

LESS = 0.8
"""Of the work edge by edge, below which lanes pay."""


def pays(spec: Spec, degree: float) -> bool:
    """Whether edges are taken side by side. `degree`: edges of a row, on average."""
    if degree <= 0 or not _can(spec):
        return False
    lanes, equations = spec.lanes, list(spec.equations(PER_EDGE))
    inputs = [v.size for _, v in spec.inputs(PER_EDGE)]
    work = [(o.size, _cost(e)) for e in equations for o in e.outputs]
    edge_by_edge = sum(-(-n // lanes) * cost for n, cost in work) + len(inputs)
    filled = degree / (degree + lanes / 2)
    folded = 2 * lanes.bit_length() * sum(_scalars(a) for a in spec.body.outputs)
    side_by_side = sum(n * cost for n, cost in work) / lanes / filled
    side_by_side += GATHERED * sum(inputs) + folded / degree
    return side_by_side < LESS * edge_by_edge


def _can(spec: Spec) -> bool:
    """Whether they can be, and no other traversal may have to compute the same bits: a softmax
    compares its scores with their maximum, and code for lanes rounds other than code for edges."""
    if any(op is not None and op.kind != "sum" for op in spec.reductions):
        return False
    if any(e.op.name in COMPARED for e in spec.equations(PER_EDGE)):
        return False
    other = (spec.tiling, spec.matvecs, spec.reads, spec.sums, spec.outers, spec.block)
    values = [v for v in spec.used if spec.levels[v] == PER_EDGE]
    sizes = [v.size for v in values] + [_scalars(a) for a in spec.body.outputs]
    if any(other) or max(sizes) > MOST_SCALARS or sum(sizes) > MOST_WORK:
        return False
    if any(is_half(v.dtype) for v in spec.body.values()):
        return False
    return all(v.dtype.itemsize in (4, 8) for _, v in spec.inputs(PER_EDGE))


def _cost(eqn: Equation) -> int:
    return DEAR_WORK if eqn.op.name in DEAR else 1


def _scalars(atom: Atom) -> int:
    return int(np.prod(atom.shape))


class LaneEmitter(Emitter):
    """Code for values of which each scalar is a vector: that scalar of `width` edges."""

    def __init__(self, module: ir.Module, builder: ir.IRBuilder, width: int):
        super().__init__(module, builder, lanes=1)
        self.width = width

    def widths(self, size: int) -> list[int]:
        return [self.width] * size

    def assemble(self, picks: Sequence[tuple[ir.Value, int]]) -> ir.Value:
        ((vector, _),) = picks
        return vector

    def everywhere(self, scalar: ir.Value) -> ir.Value:
        """A scalar in all lanes."""
        kind = ir.VectorType(scalar.type, self.width)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, self.width), None)
        return self.b.shuffle_vector(one, one, zeros)

    def spread_over_lanes(self, vec: Vec) -> Vec:
        """A value that all edges share, from vectors of its scalars."""
        out = []
        for chunk in vec.chunks:
            for lane in range(chunk.type.count):
                out.append(self.everywhere(self.b.extract_element(chunk, I32(lane))))
        return Vec(vec.dtype, vec.size, tuple(out))

    def active(self, slot: ir.Value, until: ir.Value) -> ir.Value:
        """Which lanes have an edge, where the first has the edge `slot`."""
        kind = ir.VectorType(I64, self.width)
        numbers = ir.Constant(kind, [I64(k) for k in range(self.width)])
        return self.b.icmp_signed("<", numbers, self.everywhere(self.b.sub(until, slot)))

    def indices(
        self, array: ir.Value, slot: ir.Value, dtype: np.dtype, active: ir.Value
    ) -> ir.Value:
        """The entries of an index array from `slot` on, 0 in idle lanes."""
        kind = ir.VectorType(ir.IntType(8 * dtype.itemsize), self.width)
        pointer = self.offset(array, slot, dtype.itemsize)
        arguments = [pointer, I32(dtype.itemsize), active, ir.Constant(kind, None)]
        found = self.call(f"llvm.masked.load.{mangle(kind)}.p0", kind, arguments)
        wide = ir.VectorType(I64, self.width)
        return found if kind == wide else self.b.sext(found, wide)

    def gather(self, array: ir.Value, index: ir.Value, value: Value, active: ir.Value) -> Vec:
        """The elements of an array with these indices."""
        kind = ir.VectorType(memory_type(value.dtype), self.width)
        chunks = []
        for pointers in self._addresses(array, index, value):
            arguments = [pointers, I32(value.dtype.itemsize), active, ir.Constant(kind, None)]
            name = f"llvm.masked.gather.{mangle(kind)}.v{self.width}p0"
            chunks.append(self.call(name, kind, arguments))
        return Vec(value.dtype, value.size, tuple(chunks))

    def scatter(
        self, vec: Vec, array: ir.Value, index: ir.Value, value: Atom, active: ir.Value
    ) -> None:
        """Store the elements of active lanes."""
        for chunk, pointers in zip(vec.chunks, self._addresses(array, index, value), strict=True):
            stored = self.narrow(chunk, value.dtype)
            name = f"llvm.masked.scatter.{mangle(stored.type)}.v{self.width}p0"
            arguments = [stored, pointers, I32(value.dtype.itemsize), active]
            self.call(name, ir.VoidType(), arguments)

    def _addresses(self, array: ir.Value, index: ir.Value, value: Atom) -> Iterator[ir.Value]:
        b, size, item = self.b, _scalars(value), value.dtype.itemsize
        step = ir.Constant(index.type, [I64(size * item)] * self.width)
        offsets = b.mul(index, step)
        for number in range(size):
            first = b.add(b.ptrtoint(array, I64), I64(number * item))
            pointers = b.add(offsets, self.everywhere(first))
            yield b.inttoptr(pointers, ir.VectorType(PTR, self.width))


class EdgesInLanes(GrowingSums):
    """The part of a traversal's code that takes the edges of a row side by side."""

    env: Env
    module: ir.Module

    if TYPE_CHECKING:
        read: Callable[[Atom], Vec]
        _equation: Callable[[Equation], list[Vec]]

    def row_in_lanes(self, since: ir.Value, until: ir.Value, places: Places) -> None:
        """Reduce the edges `since .. until` into accumulators, and store what stays on edges."""
        m, wide = self.m, LaneEmitter(self.module, self.b, self.spec.lanes)
        shared: Env = {v: wide.spread_over_lanes(self.read(v)) for v in self._read_on_edges()}
        grown = {acc: wide.variable(_nothing(wide, acc)) for acc in places}
        for acc, place in grown.items():
            wide.assign(place, _nothing(wide, acc))
        with wide.loop(since, until, self.spec.lanes) as slot, self._with(wide, shared):
            active = wide.active(slot, until)
            self._edges(wide, slot, active, grown)
        for acc, place in grown.items():
            combine = combiner(m, acc.op.kind, acc.dtype)
            row = _folded(m, combine, wide.value_of(place, _nothing(wide, acc)))
            self.grow(acc, places[acc], row)

    def _read_on_edges(self) -> list[Value]:
        """The values of rows and the graph that edges read."""
        read = [a for e in self.spec.equations(PER_EDGE) for a in e.inputs]
        found = dict.fromkeys([*read, *self.spec.body.outputs])
        levels = self.spec.levels
        return [v for v in found if isinstance(v, Value) and levels[v] != PER_EDGE]

    @contextlib.contextmanager
    def _with(self, wide: LaneEmitter, env: Env) -> Iterator[None]:
        """Within it, code is for values in lanes."""
        before = self.m, self.env
        self.m, self.env = wide, dict(env)
        yield
        self.m, self.env = before

    def _edges(
        self, wide: LaneEmitter, slot: ir.Value, active: ir.Value,
        grown: Mapping[Any, tuple[ir.Value, ...]],
    ) -> None:  # fmt: skip
        spec, index = self.spec, {}
        if spec.gathers:
            index[spec.rows.flipped] = wide.indices(
                self.neighbor, slot, spec.index_dtypes.neighbor, active
            )
        if spec.needs_edge:
            edge = wide.indices(self.edge, slot, spec.index_dtypes.edge, active)
            index[Space.EDGE] = edge
        for position, value in spec.inputs(PER_EDGE):
            array = self.operand(position)
            self.env[value] = wide.gather(array, index[value.space], value, active)
        for eqn in spec.equations(PER_EDGE):
            self.env.update(zip(eqn.outputs, self._equation(eqn), strict=True))
        for acc, place in grown.items():
            nothing = _nothing(wide, acc)
            new = self._spread_value(wide, acc.value)
            pairs = zip(new.chunks, nothing.chunks, strict=True)
            kept = tuple(self.b.select(active, x, none) for x, none in pairs)
            old = wide.value_of(place, nothing)
            combine = combiner(wide, acc.op.kind, acc.dtype)
            wide.assign(place, combine(old, Vec(acc.dtype, new.size, kept)))
        for number, (op, value) in enumerate(zip(spec.reductions, spec.body.outputs, strict=True)):
            if op is None:
                vec = self._spread_value(wide, value)
                wide.scatter(vec, self.output(number), index[Space.EDGE], value, active)

    def _spread_value(self, wide: LaneEmitter, atom: Atom) -> Vec:
        return wide.spread(self.read(atom), _scalars(atom))


def _nothing(wide: LaneEmitter, acc: Any) -> Vec:
    """What an accumulator starts with, in all lanes."""
    return wide.literal(acc.dtype, identity(acc.op.kind, acc.dtype), _scalars(acc.value))


def _folded(m: Emitter, combine: Callable[[Vec, Vec], Vec], vec: Vec) -> Vec:
    """The scalars of a value, of which each lane has a part."""
    lanes = np.arange(m.lanes).reshape(1, -1)
    parts = [m.fold(combine, Vec(vec.dtype, m.lanes, (c,)), lanes) for c in vec.chunks]
    return m.take(parts, np.arange(vec.size))
