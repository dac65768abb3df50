"""The specification of one kernel, and how it is cut into levels and blocks of features."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gnnjit.ir.program import Atom, Equation, Lax, Literal, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.ir.tables import RowSum, TableRows, row_sums
from gnnjit.lower.cpu.edge_tiles import Tiling, tiling
from gnnjit.lower.cpu.math_rules import ELEMENTWISE
from gnnjit.lower.cpu.matvec import Matvec, SharedMatrix, matvec_of, table_read
from gnnjit.lower.cpu.simd import LINE, is_float, is_half
from gnnjit.lower.cpu.stored import has_loop

ONCE, PER_ROW, PER_EDGE = 0, 1, 2
"""Levels: how often a value is computed."""


class Factors(NamedTuple):
    """The two vectors of an outer product; `batch`: each is so many vectors, one after the other,
    for as many products."""

    left: Value
    right: Value
    batch: int = 1

    @property
    def values(self) -> tuple[Value, Value]:
        return self.left, self.right

    @property
    def shape(self) -> tuple[int, int]:
        """Of each product."""
        return self.left.size // self.batch, self.right.size // self.batch


MAX_OUTER = 1 << 19
"""Entries of a sum of outer products at most: each task has a copy of it (`kernel.piece_of`)."""

WIDE, BLOCK = 512, 256
"""Scalars of a value above which features are cut, and about how many one block then has."""


@dataclasses.dataclass(frozen=True)
class CodeConfig:
    """Choices that change the code. `piece`: rows plus edges of one task; a row longer than this
    is a hub and is cut at multiples of it. `threads`: at most so many. `ahead`: at most so many
    edges ahead are prefetched. `rows_ahead`: so many rows ahead are, where only part of a row's
    edges is there. `left`: work that takes long is left to XLA's thread pool. `width`: all edges
    are traversed for so many features, then for the next ones; 0: for all at once. `tile`: edges
    of a tile, where they multiply with matrices; 0: one after the other. `stream`: values
    of edges are written past the caches, which they would fill. `lanes`: edges lie side by side in
    the lanes of vectors."""

    piece: int = 8192
    threads: int = 1
    ahead: int = 24
    rows_ahead: int = 3
    lanes_bytes: int = 64
    left: bool = False
    width: int = 0
    tile: int = 72
    stream: bool = False
    lanes: bool = False


@dataclasses.dataclass(frozen=True)
class FeatureBlock:
    """Features `[..., start : start + size]` of values whose last axis has `full` entries."""

    full: int
    size: int

    @property
    def count(self) -> int:
        return -(-self.full // self.size)


class IndexDtypes(NamedTuple):
    """The types of the arrays of a `Structure`."""

    indptr: np.dtype
    neighbor: np.dtype
    edge: np.dtype


INT32 = IndexDtypes(*(np.dtype(np.int32),) * 3)


@dataclasses.dataclass(frozen=True)
class Spec:
    """One traversal: `body` on each edge, outputs reduced as `reductions` say.

    rows: whose elements own the rows; `Space.GRAPH` stands for groups of edges, as those that pick
        the same row of a table (`table_sums`).
    partial: a row without edges gets the identity of its reduction, not 0.
    starts: the outputs whose rows go on from what is given.
    """

    body: Program
    reductions: tuple[Reduce | None, ...]
    rows: Space
    index_dtypes: IndexDtypes
    config: CodeConfig
    partial: bool = False
    starts: tuple[int, ...] = ()

    def key(self) -> Hashable:
        names = tuple(d.name for d in self.index_dtypes)
        parts = (self.partial, self.starts)
        return (self.body.key(), self.reductions, self.rows, names, self.config, parts)

    @functools.cached_property
    def lanes(self) -> int:
        """Lanes of a chunk: float32 fills a register unless all floats are float64."""
        floats = [v.dtype for v in self.body.values() if v.dtype.kind == "f" or is_half(v.dtype)]
        wide = bool(floats) and all(d == np.float64 for d in floats)
        return self.config.lanes_bytes // (8 if wide else 4)

    @property
    def registers(self) -> int:
        """Vectors of a sum that grow at a time: registers are left for what is added to them."""
        return 16 if self.config.lanes_bytes == 64 else 12

    @property
    def block_registers(self) -> int:
        """Vectors of a block of a product with a matrix, or of outer products: its loop needs few
        others."""
        return 24 if self.config.lanes_bytes == 64 else 12

    @functools.cached_property
    def levels(self) -> dict[Value, int]:
        level = {Space.SHARED: ONCE, self.rows: PER_ROW}
        out = {v: level.get(v.space, PER_EDGE) for v in self.body.inputs}
        for eqn in self.body.equations:
            highest = max((self.level(a, out) for a in eqn.inputs), default=ONCE)
            out.update(dict.fromkeys(eqn.outputs, highest))
        return out

    def level(self, atom: Atom, levels: dict[Value, int] | None = None) -> int:
        return ONCE if isinstance(atom, Literal) else (levels or self.levels)[atom]

    @functools.cached_property
    def outers(self) -> dict[int, tuple[Factors, ...]]:
        """Outputs that are sums over all edges, or those of a row, of outer products, too large
        for registers: the gradient of a matrix that multiplies every message. With the factors of
        each product (there are several where the matrix multiplies several values), `[F]` and
        `[G]`. Not both kinds in one kernel: those of rows are left to registers then."""
        makers: dict[Atom, Equation] = {o: eqn for eqn in self.body.equations for o in eqn.outputs}
        found: dict[Space, dict[int, tuple[Factors, ...]]] = {Space.SHARED: {}, self.rows: {}}
        for number, (op, out) in enumerate(zip(self.reductions, self.body.outputs, strict=True)):
            if op is None or op.kind != "sum" or number in self.starts or not is_float(out.dtype):
                continue
            factors, size = factors_of(out, makers), math.prod(out.shape)
            if op.into is Space.SHARED and any(pair.batch > 1 for pair in factors):
                continue
            if factors and self.registers * self.lanes < size <= MAX_OUTER:
                found[op.into][number] = factors
        return found[Space.SHARED] or found[self.rows]

    @functools.cached_property
    def sums(self) -> dict[int, tuple[TableSum, ...]]:
        """Outputs that are sums over all edges of rows added to a table: the gradient of a table
        that edges read rows of."""
        makers: dict[Atom, Equation] = {o: eqn for eqn in self.body.equations for o in eqn.outputs}
        found = {}
        for number, parts in row_sums(self.body, self.reductions).items():
            size = math.prod(self.body.outputs[number].shape)
            indices = [a for one in parts for a in one.rows.index]
            if size <= MAX_OUTER and all(a.dtype.kind in "iu" for a in indices):
                found[number] = tuple(self._table_sum(one, makers) for one in parts)
        return found

    def _table_sum(self, one: RowSum, makers: Mapping[Atom, Equation]) -> TableSum:
        pairs = factors_of(unspread(one.update, makers), makers)
        pairs = () if any(pair.batch > 1 for pair in pairs) else pairs
        large = math.prod(one.update.shape) > self.registers * self.lanes
        return TableSum(one.rows, one.update, pairs if large else ())

    @functools.cached_property
    def products(self) -> dict[Equation, Matvec]:
        """As `matvecs`, those that nobody needs too."""
        makers = {o: eqn for eqn in self.body.equations for o in eqn.outputs}
        found = {
            eqn: matvec_of(eqn, self.body.inputs, makers)
            for eqn in self.body.equations
            if self.levels[eqn.outputs[0]] != ONCE
        }
        return {eqn: m for eqn, m in found.items() if m is not None}

    @functools.cached_property
    def used(self) -> frozenset[Value]:
        """Values that some output depends on, but for outer products, rows of tables and matrices
        in memory: what they are made of is."""
        outputs: list[Atom] = []
        for number, out in enumerate(self.body.outputs):
            if number in self.outers:
                outputs += [f for pair in self.outers[number] for f in pair.values]
            elif number in self.sums:
                outputs += [a for one in self.sums[number] for a in one.reads]
            else:
                outputs.append(out)
        alive = {o for o in outputs if isinstance(o, Value)}
        for eqn in reversed(self.body.equations):
            if alive & set(eqn.outputs):
                plan = self.products.get(eqn)
                reads = eqn.inputs if plan is None else (plan.matrix.value, *plan.reads)
                alive |= {a for a in reads if isinstance(a, Value)}
        return frozenset(alive)

    def equations(self, level: int) -> Iterator[Equation]:
        for eqn in self.body.equations:
            if self.used & set(eqn.outputs) and self.levels[eqn.outputs[0]] == level:
                yield eqn

    @functools.cached_property
    def matvecs(self) -> dict[Equation, Matvec]:
        """Products with shared matrices that are loops over the matrices in memory."""
        return {eqn: m for eqn, m in self.products.items() if self.used & set(eqn.outputs)}

    @functools.cached_property
    def tiling(self) -> Tiling | None:
        """How edges are taken in tiles, if they are."""
        return tiling(self, self.config.tile, PER_EDGE)

    @functools.cached_property
    def streamed(self) -> frozenset[int]:
        """The outputs that are written past the caches: of whole lines for each edge."""
        if not self.config.stream or self.config.lanes or self.block:
            return frozenset()
        pairs = zip(self.reductions, self.body.outputs, strict=True)
        sizes = {k: math.prod(v.shape) for k, (op, v) in enumerate(pairs) if op is None}
        outputs = self.body.outputs
        return frozenset(
            k for k, size in sizes.items()
            if size % self.lanes == 0 and size * outputs[k].dtype.itemsize % LINE == 0
        )  # fmt: skip

    @functools.cached_property
    def reads(self) -> dict[Equation, TableRows]:
        """Equations that read rows of shared inputs in memory."""
        every = (e for level in (PER_ROW, PER_EDGE) for e in self.equations(level))
        found = {eqn: table_read(eqn, self.body.inputs) for eqn in every}
        return {eqn: rows for eqn, rows in found.items() if rows is not None}

    @functools.cached_property
    def packed(self) -> dict[tuple[Value, tuple[int, ...], np.dtype], tuple[int, SharedMatrix]]:
        """Matrices that a loop reads in another order than they lie in: by what is wanted, where
        the copy lies in its area (bytes)."""
        out, at = {}, 0
        for m in self.matvecs.values():
            key = (m.matrix.value, m.matrix.axes, m.matrix.dtype)
            if not m.matrix.lies_so and key not in out:
                out[key] = at, m.matrix
                at += m.matrix.room
        return out

    @functools.cached_property
    def in_memory(self) -> frozenset[Value]:
        """Inputs that nothing but these loops reads."""
        read: set[Atom] = set(self.body.outputs)
        for eqn in (e for level in (ONCE, PER_ROW, PER_EDGE) for e in self.equations(level)):
            if eqn in self.matvecs:
                read.update(self.matvecs[eqn].reads)
            elif eqn in self.reads:
                read.update(self.reads[eqn].index)
            else:
                read.update(eqn.inputs)
        found = {m.matrix.value for m in self.matvecs.values()}
        found |= {a for a in (r.table for r in self.reads.values()) if isinstance(a, Value)}
        pairs = (pair for number in self.outers for pair in self.outers[number])
        read.update(a for pair in pairs for a in pair.values)
        read.update(a for number in self.sums for one in self.sums[number] for a in one.reads)
        return frozenset(found) - read

    def inputs(self, level: int) -> Iterator[tuple[int, Value]]:
        """Inputs to load at `level`, with their positions."""
        for position, value in enumerate(self.body.inputs):
            wanted = value in self.used and value not in self.in_memory
            if wanted and self.levels[value] == level:
                yield position, value

    @functools.cached_property
    def needs_edge(self) -> bool:
        """Whether the original edge numbers matter."""
        read = any(v.space is Space.EDGE for _, v in self.inputs(PER_EDGE))
        return read or None in self.reductions

    @property
    def grouped(self) -> bool:
        """Whether rows are groups of edges, which have neither endpoint in common."""
        return self.rows is Space.GRAPH

    @functools.cached_property
    def gathers(self) -> bool:
        return self.grouped or any(v.space is self.rows.flipped for _, v in self.inputs(PER_EDGE))

    @functools.cached_property
    def features(self) -> tuple[int, int] | None:
        """The last axis of the widest value, and how often it has it, where it can be cut."""
        widest = max((v for v in self.used), key=lambda v: v.size, default=None)
        shared = any(r is not None and r.into is Space.SHARED for r in self.reductions)
        if widest is None or not widest.shape or shared or self.grouped or self.outers:
            return None
        full = widest.shape[-1]
        heads = max(v.size // full for v in self.used if is_wide(v, full))
        live = (e for e in self.body.equations if self.used & set(e.outputs))
        return (full, heads) if all(_separable(e, full) for e in live) else None

    @functools.cached_property
    def block(self) -> FeatureBlock | None:
        """How the last axis is cut, where the body is wide and allows it."""
        if self.outer_block or self.features is None:
            return self.outer_block
        full, heads = self.features
        size = max(self.lanes, BLOCK // heads // self.lanes * self.lanes)
        return FeatureBlock(full, size) if size < full and heads * full > WIDE else None

    @functools.cached_property
    def outer_block(self) -> FeatureBlock | None:
        """How it is cut where all edges are traversed for a block before the next one; without it,
        `block` cuts a row at a time."""
        if not self.config.width:
            return None
        assert self.features is not None
        assert not self.starts
        assert None not in self.reductions
        assert self.config.width % self.unit == 0
        return FeatureBlock(self.features[0], self.config.width)

    @functools.cached_property
    def unit(self) -> int:
        """The widths of outer blocks are multiples of it: parts of rows are whole cache lines."""
        smallest = min((v.dtype.itemsize for _, v in self.copyable), default=1)
        return max(self.lanes, LINE // smallest)

    @functools.cached_property
    def copyable(self) -> tuple[tuple[int, Value], ...]:
        """The wide inputs that edges gather, with their positions."""
        if self.features is None:
            return ()
        full, gathered = self.features[0], self.rows.flipped
        inputs = self.inputs(PER_EDGE)
        return tuple((k, v) for k, v in inputs if v.space is gathered and is_wide(v, full))

    @property
    def copied(self) -> tuple[tuple[int, Value], ...]:
        """Those that are copied, an outer block at a time."""
        return self.copyable if self.outer_block else ()

    @property
    def copied_bytes(self) -> int:
        """Bytes that are copied of one source."""
        return sum(self.places(v).size * v.dtype.itemsize for _, v in self.copied)

    @property
    def index_arrays(self) -> int:
        """Arrays of the structure: indptr, neighbor, edge; of groups, the other endpoint too."""
        return 4 if self.grouped else 3

    @property
    def arrays(self) -> int:
        """Arrays of a call: the structure's, operands, what outputs start with, outputs."""
        return self.index_arrays + len(self.body.inputs) + len(self.starts) + len(self.body.outputs)

    def shape(self, atom: Atom) -> tuple[int, ...]:
        """The shape of the part of `atom` that one block computes."""
        if self.block and is_wide(atom, self.block.full):
            return (*atom.shape[:-1], self.block.size)
        return atom.shape

    def places(self, atom: Atom) -> np.ndarray:
        """Where, in the memory of one element, the scalars of a block are (before its start)."""
        shape = self.shape(atom)
        places = np.arange(math.prod(atom.shape)).reshape(atom.shape)
        return places[..., : shape[-1]] if shape else places

    @functools.cached_property
    def operations(self) -> int:
        """Roughly the vector operations per edge, but for products with shared matrices."""
        return self._vectors([math.prod(self.shape(v)) for v in self._values]) + 1

    @property
    def _values(self) -> list[Value]:
        """What is computed for each edge."""
        return [v for v in self.body.values() if v in self.used and self.levels[v] == PER_EDGE]

    @functools.cached_property
    def written_out(self) -> int:
        """Roughly the vector operations per edge that are in no loop."""
        names = {v: e.op.name for e in self.equations(PER_EDGE) for v in e.outputs}
        sizes = [(names.get(v, ""), math.prod(self.shape(v))) for v in self._values]
        return self._vectors([n for name, n in sizes if not has_loop(name, self.lanes, n)])

    @functools.cached_property
    def weight(self) -> int:
        """Roughly the vector operations per edge."""
        outputs = self.body.outputs
        looped = [math.prod(outputs[k].shape) * len(some) for k, some in self.outers.items()]
        looped += [m.multiplications for m in self.matvecs.values()]
        looped += [math.prod(one.update.shape) for some in self.sums.values() for one in some]
        return self.operations + self._vectors(looped)

    def _vectors(self, sizes: Sequence[int]) -> int:
        return sum(-(-n // self.lanes) for n in sizes)


@dataclasses.dataclass(frozen=True)
class TableSum:
    """Rows of a table of sums, to which each edge adds `update`, or the outer products `pairs`."""

    rows: TableRows
    update: Atom
    pairs: tuple[Factors, ...]

    @property
    def reads(self) -> tuple[Atom, ...]:
        """The values that it is computed from."""
        of_pairs = tuple(f for pair in self.pairs for f in pair.values)
        return (*self.rows.index, *(of_pairs or (self.update,)))


def unspread(atom: Atom, makers: Mapping[Atom, Equation]) -> Atom:
    """The value that `atom` is, but for axes of length 1."""
    eqn = makers.get(atom)
    if eqn is None or eqn.op.name not in ("broadcast_in_dim", "reshape", "squeeze"):
        return atom
    (source,) = eqn.inputs[:1]
    lengths = [[n for n in a.shape if n != 1] for a in (source, atom)]
    return unspread(source, makers) if lengths[0] == lengths[1] else atom


def factors_of(out: Atom, makers: Mapping[Atom, Equation]) -> tuple[Factors, ...]:
    """The factors of an outer product of two vectors, perhaps transposed or in another shape, of
    several products side by side, or of a sum of such products; none of anything else."""
    eqn = makers.get(out)
    if eqn is None or not isinstance(eqn.op, Lax):
        return ()
    params = dict(eqn.op.params)
    if eqn.op.name in ("add", "add_any"):
        found = [factors_of(a, makers) if a.shape == out.shape else () for a in eqn.inputs]
        return (*found[0], *found[1]) if all(found) else ()
    if eqn.op.name == "transpose" and params["permutation"] in ((1, 0), (0, 2, 1)):
        found, shape = factors_of(eqn.inputs[0], makers), eqn.inputs[0].shape
        same = all(pair.shape == shape[-2:] for pair in found)
        return tuple(Factors(b, a, batch) for a, b, batch in found) if same else ()
    if eqn.op.name == "reshape":
        return factors_of(eqn.inputs[0], makers)
    if eqn.op.name != "dot_general":
        return ()
    contracted, batch = params["dimension_numbers"]
    left, right = eqn.inputs
    beside = tuple(map(tuple, batch))
    if any(contracted) or beside not in (((), ()), ((0,), (0,))):
        return ()
    if {len(left.shape), len(right.shape)} != {1 + len(beside[0])}:
        return ()
    assert isinstance(left, Value)
    assert isinstance(right, Value)
    return (Factors(left, right, left.shape[0] if beside[0] else 1),)


def is_wide(atom: Atom, full: int) -> bool:
    return bool(atom.shape) and atom.shape[-1] == full


def _separable(eqn: Equation, full: int) -> bool:
    """Whether a block of the last axis of the outputs needs only that block of the inputs."""
    assert isinstance(eqn.op, Lax)
    wide_in = [is_wide(a, full) for a in eqn.inputs]
    wide_out = [is_wide(o, full) for o in eqn.outputs]
    if not any(wide_in) and not any(wide_out):
        return True
    name, params = eqn.op.name, dict(eqn.op.params)
    if name in ELEMENTWISE:
        return all(wide_out) and all(a.shape[-1:] in ((), (1,), (full,)) for a in eqn.inputs)
    if name == "broadcast_in_dim":
        (source,), (out,) = eqn.inputs, eqn.outputs
        maps = dict(zip(params["broadcast_dimensions"], source.shape, strict=True))
        size = maps.get(len(out.shape) - 1, 1)
        return wide_out[0] and (size == full) == wide_in[0] and size in (1, full)
    if name in ("reshape", "squeeze", "expand_dims"):
        return all(wide_in) and all(wide_out)
    if name in ("reduce_sum", "reduce_max", "reduce_min"):
        return len(eqn.inputs[0].shape) - 1 not in params["axes"] and all(wide_out)
    return False
