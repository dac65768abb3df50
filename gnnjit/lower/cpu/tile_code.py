"""Emits the stages of a tile of edges, and its products: see `edge_tiles`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Atom, Equation, Value
from gnnjit.ir.space import Space
from gnnjit.lower.cpu import tables
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.edge_tiles import Grouping, TileProduct, Tiling, reads, results
from gnnjit.lower.cpu.index_rules import combiner
from gnnjit.lower.cpu.job import JobReader
from gnnjit.lower.cpu.math_rules import convert
from gnnjit.lower.cpu.matvec import SharedMatrix, register_dtype
from gnnjit.lower.cpu.outer_products import Collector
from gnnjit.lower.cpu.simd import I32, I64, PTR, Vec, register_type
from gnnjit.lower.cpu.spec import ONCE, PER_EDGE, PER_ROW
from gnnjit.lower.cpu.stored import Env, Stored, is_looped
from gnnjit.lower.cpu.vector_loops import Sink, VectorLoops

INT32 = np.dtype(np.int32)

WIDE = 4
"""Vectors of a block of a product's result at most; its rows take the other registers."""

COLLECTED = 64
"""Edges whose factors of outer products are collected at most."""

ROOM = 8
"""Edges that a tile's memory has room for beyond the tile: a block of rows may end there."""


@dataclasses.dataclass(frozen=True)
class TileMemory:
    """A tile's memory: for each value an array of all edges of the tile.

    start: a pointer. size: edges. position: which edge of the tile is at hand.
    """

    m: Emitter
    start: ir.Value
    size: int
    position: ir.Value | None = None

    def array(self, at: int) -> ir.Value:
        return self.m.offset(self.start, at * (self.size + ROOM), 1)

    def element(self, at: int, bytes_each: int) -> ir.Value:
        assert self.position is not None
        return self.m.offset(self.array(at), self.position, bytes_each)

    def value(self, value: Value, at: int) -> Stored:
        """A value of the edge at hand."""
        kind = register_dtype(value.dtype)
        pointer = self.element(at, value.size * kind.itemsize)
        return Stored(pointer, value.dtype, kind, value.size)

    def starts(self, grouping: Grouping, bytes_each: int) -> ir.Value:
        """Where the first places of the rows of a table are."""
        return self.m.offset(self.array(bytes_each), grouping.starts, 1)

    def operand(self, product: TileProduct) -> Stored:
        """What a product multiplies."""
        size = product.plan.places.size
        pointer = self.element(product.operand, size * product.dtype.itemsize)
        return Stored(pointer, product.dtype, product.dtype, size)


@dataclasses.dataclass(frozen=True)
class TileMatmul:
    """`[count, inner] @ [inner, columns]`, block by block of the result in registers.

    registers: vectors of a block at most.
    batch: of a row of so many products of their own, one after the other, matrices likewise.
    sorted: rows are taken in an order that is given.
    """

    m: Emitter
    dtype: np.dtype
    inner: int
    columns: int
    registers: int
    batch: int = 1
    sorted: bool = False

    def call(
        self, left: ir.Value, matrix: ir.Value, result: ir.Value, since: ir.Value, until: ir.Value,
        order: ir.Value,
    ) -> None:  # fmt: skip
        """Of the rows `since .. until`, or those that `order` (`int32`) has there. Without it,
        `left` and `result` have room for a whole number of blocks beyond them."""
        kind = f"{'sorted_' if self.sorted else ''}{self.batch}"
        name = f"matmul_{self.dtype.name}_{self.inner}_{self.columns}_{kind}"
        self.m.call_local(name, self._emit, left, matrix, result, since, until, order)

    def _emit(self, m: Emitter, *given: ir.Value) -> None:
        left, matrix, result, since, until, order = given
        item = self.dtype.itemsize
        own = dataclasses.replace(self, m=m)
        if self.batch == 1:
            own._columns(left, matrix, result, (since, until, order))
            return
        with m.loop(I64(0), I64(self.batch)) as k:
            own._columns(
                m.offset(left, k, self.inner * item),
                m.offset(matrix, k, self.inner * self.columns * item),
                m.offset(result, k, self.columns * item),
                (since, until, order),
            )

    def _columns(
        self, left: ir.Value, matrix: ir.Value, result: ir.Value, rows: tuple[ir.Value, ...]
    ) -> None:
        m, wide = self.m, WIDE * self.m.lanes
        full = self.columns - self.columns % wide
        if full:
            with m.loop(I64(0), I64(full), wide) as column:
                self._strip((left, matrix, result), rows, column, [m.lanes] * WIDE)
        if full < self.columns:
            rest = m.widths(self.columns - full)
            self._strip((left, matrix, result), rows, I64(full), rest)

    def _strip(
        self, arrays: tuple[ir.Value, ...], rows: tuple[ir.Value, ...],
        column: ir.Value, widths: list[int],
    ) -> None:  # fmt: skip
        m, b, tall = self.m, self.m.b, self.tall(widths)
        since, until, order = rows
        if not self.sorted:
            with m.loop(since, until, tall) as first:
                each = [b.add(first, I64(k)) for k in range(tall)]
                self._block(arrays, each, column, widths)
            return
        last = b.sub(until, I64(1))

        def take(first: ir.Value, count: int) -> None:
            # Beyond the last row it is taken again, to the same bits.
            at = [m.smaller(b.add(first, I64(k)), last) for k in range(count)]
            self._block(arrays, [m.index(order, k, INT32) for k in at], column, widths)

        low = tall // 2
        rest = b.srem(b.sub(until, since), I64(tall))
        few = b.and_(b.icmp_signed(">", rest, I64(0)), b.icmp_signed("<=", rest, I64(low)))
        end = b.select(few, b.sub(until, rest), until)
        with m.loop(since, end, tall) as first:
            take(first, tall)
        with m.when(few):
            take(end, low)

    def tall(self, widths: Sequence[int]) -> int:
        """Rows of a block."""
        return min(ROOM, self.registers // len(widths))

    def _block(
        self, arrays: tuple[ir.Value, ...], each: Sequence[ir.Value],
        column: ir.Value, widths: list[int],
    ) -> None:  # fmt: skip
        m, b, item, size = self.m, self.m.b, self.dtype.itemsize, sum(widths)
        left, matrix, result = arrays
        places = np.arange(size)
        zero = m.literal(self.dtype, 0, size)
        sums = [m.variable(zero) for _ in each]
        for place in sums:
            m.assign(place, zero)
        rows = [m.offset(left, n, self.batch * self.inner * item) for n in each]
        strip = m.offset(matrix, column, item)
        one = ir.VectorType(register_type(self.dtype), 1)
        with m.loop(I64(0), I64(self.inner)) as k:
            right = m.load(m.offset(strip, k, self.columns * item), self.dtype, places)
            for row, place in zip(rows, sums, strict=True):
                scalar = b.load(m.offset(row, k, item), align=item, typ=one)
                pairs = zip(right.chunks, m.value_of(place, zero).chunks, strict=True)
                new = [m.intrinsic("fma", m.splat(scalar, 0, r.type.count), r, t) for r, t in pairs]
                m.assign(place, Vec(self.dtype, size, tuple(new)))
        for n, place in zip(each, sums, strict=True):
            row = m.offset(result, n, self.batch * self.columns * item)
            m.store(m.value_of(place, zero), m.offset(row, column, item), places)


class TiledEdges(JobReader):
    """The part of a traversal's code that takes edges in tiles."""

    row: ir.Value
    env: Env
    endpoint: dict[Space, ir.Value]
    tile_memory: ir.Value
    last_slot: ir.Value
    collector: Collector | None
    outers: list[Any]
    tables: list[Any]

    if TYPE_CHECKING:
        begin: Callable[..., tuple[ir.Value, ...]]
        read: Callable[[Atom], Vec]
        compute: Callable[[int], None]
        input: Callable[[int, Value, ir.Value], ir.Value]
        start_of: Callable[[ir.Value], ir.Value]
        _element: Callable[[ir.Value, Atom, ir.Value], ir.Value]
        _equation: Callable[[Equation], list[Vec]]
        _add_rows: Callable[[Any], None]
        _endpoints: Callable[[ir.Value], dict[Space, ir.Value]]
        _prefetch: Callable[[ir.Value], None]
        _matrix: Callable[[SharedMatrix], ir.Value]

    @property
    def tiling(self) -> Tiling:
        found = self.spec.tiling
        assert found is not None
        return found

    # -- a tile -----------------------------------------------------------------------------

    def emit_tile(self, name: str) -> None:
        """`tile(job, since, until, row, memory)`: all stages but the end; `since` is in `row`."""
        since, until, row, memory = self.begin(name, I64, I64, I64, PTR)
        self.env = {}
        self.compute(ONCE)
        for number in range(self.tiling.stages):
            self._stage(number, (since, until), row, memory)
            for grouping in self.tiling.groupings:
                if grouping.stage == number:
                    self._sort(grouping, self.b.sub(until, since), memory)
            for product in self.tiling.products:
                if product.stage == number:
                    self._multiply(product, self.b.sub(until, since), memory)
        self.b.ret_void()

    def _stage(
        self, number: int, span: tuple[ir.Value, ir.Value], row: ir.Value, memory: ir.Value
    ) -> None:
        b, m, tiling, once = self.b, self.m, self.tiling, dict(self.env)
        products = [p for p in tiling.products if p.stage == number]
        orders = [g for g in tiling.groupings if g.stage == number]
        equations = tiling.early[number]
        wanted = {a for e in equations for a in reads(self.spec, e)}
        wanted.update(a for p in products for a in p.plan.reads)
        with b.goto_entry_block():
            place = b.alloca(I64)
        b.store(row, place)
        with m.loop(*span) as slot:
            self.row = self._row_of(slot, place)
            self.endpoint = self._endpoints(slot)
            if number == 0:
                self._prefetch(slot)
            position = b.sub(slot, span[0])
            tile = TileMemory(m, memory, tiling.size, position)
            row_equations = self._read_row(wanted)
            self._read_edge(wanted, number, tile)
            made = [v for e in equations for v in e.outputs if v in tiling.stored]
            sinks = [self._keeping(v, tile.value(v, tiling.stored[v])) for v in made]
            moved = [p for p in products if not _as_it_lies(p)]
            sinks += [
                self._keeping(p.plan.other, tile.operand(p)) for p in products if p not in moved
            ]
            kept = [p.plan.other for p in moved] + [a for g in orders for a in g.rows.index]
            self._loops().run([*row_equations, *equations], kept, sinks)
            for product in moved:
                vec = convert(m, self.read(product.plan.other), product.dtype)
                tile.operand(product).store(m, m.take([vec], product.plan.places), I64(0))
            for grouping in orders:
                self._store_key(grouping, tile)
        self.env = once

    # -- the edges of a tile by the row of a table that they pick ---------------------------

    def _store_key(self, grouping: Grouping, tile: TileMemory) -> None:
        b, rows = self.b, grouping.rows
        number, inside = tables.number_of(self.m, rows, [self.read(a) for a in rows.index])
        if inside is not None:
            number = b.select(inside, number, I64(grouping.count))
        self._put_int32(tile.array(grouping.key), tile.position, number)

    def _put_int32(self, array: ir.Value, at: ir.Value | None, value: ir.Value) -> None:
        self.b.store(self.b.trunc(value, I32), self.b.gep(array, [at], source_etype=I32))

    def _sort(self, grouping: Grouping, count: ir.Value, memory: ir.Value) -> None:
        """A counting sort, stable: afterwards the edges of row `r` are at `starts[r]` and on."""
        b, m, tile = self.b, self.m, TileMemory(self.m, memory, self.tiling.size)
        starts = tile.starts(grouping, self.tiling.bytes)
        key, order = tile.array(grouping.key), tile.array(grouping.order)

        def place(row: ir.Value) -> ir.Value:
            return b.gep(starts, [row], source_etype=I64)

        def next_of(row: ir.Value) -> ir.Value:
            found = b.load(place(row), typ=I64)
            b.store(b.add(found, I64(1)), place(row))
            return found

        with m.loop(I64(0), I64(grouping.count + 2)) as row:
            b.store(I64(0), place(row))
        with m.loop(I64(0), count) as edge:  # counted one place further on, where a row ends
            next_of(b.add(m.index(key, edge, INT32), I64(1)))
        with m.loop(I64(1), I64(grouping.count + 1)) as row:
            before = b.load(place(b.sub(row, I64(1))), typ=I64)
            b.store(b.add(before, b.load(place(row), typ=I64)), place(row))
        with m.loop(I64(0), count) as edge:
            self._put_int32(order, next_of(m.index(key, edge, INT32)), edge)
        # Each place has moved on to the next row's.
        with m.loop(I64(0), I64(grouping.count + 1)) as step:
            row = b.sub(I64(grouping.count + 1), step)
            b.store(b.load(place(b.sub(row, I64(1))), typ=I64), place(row))
        b.store(I64(0), place(I64(0)))

    def _row_of(self, slot: ir.Value, place: ir.Value) -> ir.Value:
        """The row of a slot: rows are passed until one ends behind it."""
        b = self.b
        head, following, done = (b.append_basic_block(n) for n in ("row", "following", "found"))
        b.branch(head)
        b.position_at_end(head)
        row = b.load(place, typ=I64)
        after = b.add(row, I64(1))
        b.cbranch(b.icmp_signed("<=", self.start_of(after), slot), following, done)
        b.position_at_end(following)
        b.store(after, place)
        b.branch(head)
        b.position_at_end(done)
        return row

    # -- values -----------------------------------------------------------------------------

    def _loops(self) -> VectorLoops:
        return VectorLoops(self.m, self.env, self._equation)

    def _input(self, position: int, value: Value, at: ir.Value) -> Vec | Stored:
        """An input of an element: loaded at once where it is small."""
        pointer = self.input(position, value, at)
        found = Stored(pointer, value.dtype, value.dtype, value.size)
        return found if is_looped(self.m, value.size) else found.whole(self.m)

    def _keeping(self, atom: Atom, memory: Stored) -> Sink:
        """Stores a value in the dtype of `memory`."""

        def take(vec: Vec, at: ir.Value) -> None:
            memory.store(self.m, convert(self.m, vec, memory.dtype), at)

        return atom, take

    def compute_in_loops(self, level: int) -> None:
        """As `compute`, of what is computed once, or for each row."""
        at = I64(0) if level == ONCE else self.row
        for position, value in self.spec.inputs(level):
            self.env[value] = self._input(position, value, at)
        equations = list(self.spec.equations(level))
        self._loops().run(equations, [v for e in equations for v in e.outputs])

    def _read_row(self, wanted: set[Atom]) -> list[Equation]:
        """The inputs of the row that are needed for what is wanted; the equations that are."""
        equations, needed = [], set(wanted)
        for eqn in reversed(list(self.spec.equations(PER_ROW))):
            if needed & set(eqn.outputs):
                needed.update(reads(self.spec, eqn))
                equations.append(eqn)
        for position, value in self.spec.inputs(PER_ROW):
            if value in needed:
                self.env[value] = self._input(position, value, self.row)
        return equations[::-1]

    def _read_edge(self, wanted: set[Atom], stage: int, tile: TileMemory) -> None:
        """The inputs of the edge that are wanted, and what earlier stages have kept."""
        for position, value in self.spec.inputs(PER_EDGE):
            if value in wanted:
                self.env[value] = self._input(position, value, self.endpoint[value.space])
        results = {p.eqn.outputs[0]: p.result for p in self.tiling.products}
        for value in self.tiling.loads[stage]:
            found = tile.value(value, {**self.tiling.stored, **results}[value])
            self.env[value] = found if is_looped(self.m, value.size) else found.whole(self.m)

    def _multiply(self, product: TileProduct, count: ir.Value, memory: ir.Value) -> None:
        batch, rows, inner = product.plan.places.shape
        tile, grouping = TileMemory(self.m, memory, self.tiling.size), product.grouping
        matmul = TileMatmul(
            self.m, product.dtype, inner, product.plan.columns, self._registers, batch,
            grouping is not None,
        )  # fmt: skip
        left, result = tile.array(product.operand), tile.array(product.result)
        matrix = self._matrix(product.plan.matrix)
        if grouping is None:
            matmul.call(left, matrix, result, I64(0), self.b.mul(count, I64(rows)), memory)
            return
        starts, order = tile.starts(grouping, self.tiling.bytes), tile.array(grouping.order)
        with self.m.loop(I64(0), I64(grouping.count)) as row:
            since, until = (
                self.b.load(self.b.gep(starts, [n], source_etype=I64), typ=I64)
                for n in (row, self.b.add(row, I64(1)))
            )
            with self.m.when(self.b.icmp_signed("<", since, until)):
                own = self.m.offset(matrix, row, product.plan.row_bytes)
                matmul.call(left, own, result, since, until, order)
        self._fill(product, tile)

    def _fill(self, product: TileProduct, tile: TileMemory) -> None:
        """The results of edges that pick no row of the table."""
        b, m, grouping = self.b, self.m, product.grouping
        if grouping is None or grouping.rows.fill is None:
            return
        size = product.plan.places.shape[0] * product.plan.columns
        fill, item = m.literal(product.dtype, grouping.rows.fill), product.dtype.itemsize
        starts = tile.starts(grouping, self.tiling.bytes)
        since, until = (
            b.load(b.gep(starts, [I64(grouping.count + k)], source_etype=I64), typ=I64)
            for k in (0, 1)
        )
        with m.loop(since, until) as at:
            edge = m.index(tile.array(grouping.order), at, INT32)
            row = m.offset(tile.array(product.result), edge, size * item)
            with m.loop(I64(0), I64(size)) as column:
                m.store(fill, m.offset(row, column, item), np.arange(1))

    @property
    def _registers(self) -> int:
        return 24 if self.spec.config.lanes_bytes == 64 else 12

    # -- its edges, one after the other -----------------------------------------------------

    def make_tile_memory(self) -> tuple[ir.Value, int] | None:
        """At the start of a task, room for a tile; after it, for the factors of outer products of
        so many edges."""
        if self.spec.tiling is None:
            return None
        with self.b.goto_entry_block():
            self.tile_since, self.tile_until = (self.b.alloca(I64) for _ in range(2))
        self.b.store(I64(-1), self.tile_until)
        edges = self.tiling.size
        size = self.tiling.bytes * (edges + ROOM) + self.tiling.more_bytes
        pairs = [(a, p) for a in self.outers for p in self.spec.outers[a.output]]
        each = sum((p.left.size + p.right.size) * a.dtype.itemsize for a, p in pairs)
        collected = min(edges, COLLECTED)
        self.tile_memory = self.m.call("malloc", PTR, [I64(size + each * collected)])
        return self.m.offset(self.tile_memory, size, 1), collected

    def tiled_edge(self, slot: ir.Value, places: Mapping[Any, tuple[ir.Value, ...]]) -> None:
        """Compute the tile that begins with a slot, if one does; then what is left of the edge."""
        b, m, tiling = self.b, self.m, self.tiling
        with m.when(b.icmp_signed(">=", slot, b.load(self.tile_until, typ=I64))):
            until = m.smaller(b.add(slot, I64(tiling.size)), self.last_slot)
            b.store(slot, self.tile_since)
            b.store(until, self.tile_until)
            tile = m.module.get_global("tile")
            b.call(tile, [self.job, slot, until, self.row, self.tile_memory])
        position = b.sub(slot, b.load(self.tile_since, typ=I64))
        wanted = {a for e in tiling.late for a in reads(self.spec, e)}
        wanted.update(results(self.spec))
        memory = TileMemory(m, self.tile_memory, tiling.size, position)
        self._read_edge(wanted, tiling.stages, memory)
        sinks = [self._adding(acc, place) for acc, place in places.items()]
        for number, (op, value) in enumerate(
            zip(self.spec.reductions, self.spec.body.outputs, strict=True)
        ):
            if op is None:
                row = self._element(self.output(number), value, self.endpoint[Space.EDGE])
                size = math.prod(value.shape)
                sinks.append(self._keeping(value, Stored(row, value.dtype, value.dtype, size)))
        if self.collector:
            sinks += self._collecting(self.collector)
        kept = [a for t in self.tables for one in self.spec.sums[t.output] for a in one.reads]
        self._loops().run(tiling.late, kept, sinks)
        for acc in self.tables:
            self._add_rows(acc)
        if self.collector:
            self.collector.next()

    def _adding(self, acc: Any, places: tuple[ir.Value, ...]) -> Sink:
        """Adds a value to an accumulator, or takes the larger or smaller of both."""
        m, combine = self.m, combiner(self.m, acc.op.kind, acc.dtype)
        size = acc.value.size

        def take(vec: Vec, at: ir.Value) -> None:
            new = Vec(acc.dtype, vec.size, vec.chunks)
            if is_looped(m, size):
                memory = Stored(places[0], acc.dtype, acc.dtype, size)
                memory.store(m, combine(memory.load(m, at, vec.size), new), at)
                return
            some = places[at.constant // m.lanes :][:1]
            m.assign(some, combine(m.value_of(some, new), new))

        return acc.value, take

    def _collecting(self, collector: Collector) -> list[Sink]:
        """Stores the factors of outer products."""
        pairs = [(a, p) for a in self.outers for p in self.spec.outers[a.output]]
        factors = [(acc, f) for acc, pair in pairs for f in pair.values]
        pointers = collector.places()
        return [
            self._keeping(f, Stored(pointer, acc.value.dtype, acc.dtype, f.size))
            for (acc, f), pointer in zip(factors, pointers, strict=True)
        ]


def _as_it_lies(product: TileProduct) -> bool:
    """Whether a product takes the scalars of a value in their order."""
    places = product.plan.places.ravel()
    return places.size == math.prod(product.plan.other.shape) and bool((np.diff(places) == 1).all())
