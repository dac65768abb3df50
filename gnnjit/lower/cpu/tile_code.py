"""Emits the stages of a tile of edges, and its products: see `edge_tiles`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from gnnjit.ir.program import Atom, Equation, Value
from gnnjit.ir.space import Space
from gnnjit.lower.cpu.accumulators import Accumulator, GrowingSums, Place, Places
from gnnjit.lower.cpu.edge_tiles import FEWEST, TileFactor, TileProduct, Tiling, reads, results
from gnnjit.lower.cpu.lines_ahead import Ahead
from gnnjit.lower.cpu.math_rules import convert
from gnnjit.lower.cpu.matvec import SharedMatrix
from gnnjit.lower.cpu.outer_products import Collector, Products
from gnnjit.lower.cpu.simd import I64, PTR, Vec
from gnnjit.lower.cpu.sorted_tiles import SortedTile
from gnnjit.lower.cpu.spec import ONCE, PER_EDGE, PER_ROW
from gnnjit.lower.cpu.stored import Env, Stored, is_looped
from gnnjit.lower.cpu.tile_products import ROOM, EdgeRows, TileMatmul, TileMemory
from gnnjit.lower.cpu.vector_loops import Sink, VectorLoops

COLLECTED, COLLECTED_BYTES = 72, 65536
"""Edges whose factors of outer products are multiplied at a time at most, and bytes of those of one
product where they are copied: beyond that, what a block of the product reads again and again is no
longer in the nearest cache."""


class TiledEdges(GrowingSums):
    """The part of a traversal's code that takes edges in tiles."""

    row: ir.Value
    env: Env
    endpoint: dict[Space, ir.Value]
    tile_memory: ir.Value
    last_slot: ir.Value
    collector: Collector | None
    tile_outers: list[tuple[Products, TileFactor, TileFactor]]
    outers: list[Any]
    group_outers: list[Any]
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
        _prefetch: Callable[[ir.Value, set[Atom]], None]
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
                    tile = TileMemory(self.m, memory, self.tiling.size)
                    SortedTile(tile, grouping, self.tiling.bytes).sort(self.b.sub(until, since))
            for product in self.tiling.products:
                if product.stage == number:
                    self._multiply(product, (since, until), memory)
        self.b.ret_void()

    # -- what is asked for while products run ------------------------------------------------

    def _wanted(self, stage: int) -> set[Atom]:
        """What the code of a stage, or of the end, reads of an edge."""
        tiling = self.tiling
        if stage == tiling.stages:
            wanted = {a for e in tiling.late for a in reads(self.spec, e)}
            return wanted.union(results(self.spec, tiling.written))
        wanted = {a for e in tiling.early[stage] for a in reads(self.spec, e)}
        return wanted.union(*(p.plan.reads for p in tiling.products if p.stage == stage))

    def _first_read(self, stage: int) -> list[tuple[int, Value]]:
        """The edges' own arrays that no earlier stage has read."""
        new = self._wanted(stage).difference(*map(self._wanted, range(stage)))
        own = [(k, v) for k, v in self.spec.inputs(PER_EDGE) if v.space is Space.EDGE and v in new]
        return [] if self.tiling.groupings else own

    def _ahead(self, arrays: Sequence[tuple[int, Value]], slot: ir.Value) -> list[Ahead]:
        """The rows of a tile that begins with `slot`, where its edges lie one after the other."""
        b, m, size = self.b, self.m, self.tiling.size
        if not arrays:
            return []
        last = b.sub(self.capacity, I64(1))
        ends = m.smaller(slot, last), m.smaller(b.add(slot, I64(size - 1)), last)
        first, final = (self._endpoints(end)[Space.EDGE] for end in ends)
        straight = b.icmp_signed("==", b.sub(final, first), b.sub(ends[1], ends[0]))
        return [
            Ahead(
                b.select(straight, self.input(position, value, first), self.job),
                size * math.prod(value.shape) * value.dtype.itemsize,
            )
            for position, value in arrays
        ]

    def _ahead_of(self, product: TileProduct, span: tuple[ir.Value, ir.Value]) -> list[Ahead]:
        """The next stage's share for this product, or the next tile's."""
        stage, tiling = product.stage + 1, self.tiling
        arrays, at = self._first_read(stage), span[0]
        same = [p for p in tiling.products if p.stage == product.stage]
        found = self._ahead(arrays[same.index(product) :: len(same)], at)
        if stage == tiling.stages and not tiling.factors:
            found += self._ahead(self._first_read(0)[same.index(product) :: len(same)], span[1])
        return found

    def _stage(
        self, number: int, span: tuple[ir.Value, ir.Value], row: ir.Value, memory: ir.Value
    ) -> None:
        b, m, tiling, once = self.b, self.m, self.tiling, dict(self.env)
        products = [p for p in tiling.products if p.stage == number]
        orders = [g for g in tiling.groupings if g.stage == number]
        equations = tiling.early[number]
        wanted = self._wanted(number)
        with b.goto_entry_block():
            place = b.alloca(I64)
        b.store(row, place)
        with m.loop(*span) as slot:
            self.row = self._row_of(slot, place)
            self.endpoint = self._endpoints(slot)
            self._prefetch(slot, wanted)
            position = b.sub(slot, span[0])
            tile = TileMemory(m, memory, tiling.size, position)
            row_equations = self._read_row(wanted)
            self._read_edge(wanted, number, tile)
            made = [v for e in equations for v in e.outputs if v in tiling.stored]
            sinks = [self._keeping(v, tile.value(v, tiling.stored[v])) for v in made]
            moved = [p for p in products if not p.as_it_lies]
            placed = [p for p in products if p not in moved and not tiling.is_stored(p.operand)]
            sinks += [self._keeping(p.plan.other, tile.operand(p)) for p in placed]
            by_products = [p.output for p in tiling.products]
            for output, stage in tiling.written.items():
                if stage == number and output not in by_products:
                    sinks.append(self._on_edge(output))
            kept = [p.plan.other for p in moved] + [a for g in orders for a in g.rows.index]
            self._loops().run([*row_equations, *equations], kept, sinks)
            for product in moved:
                vec = convert(m, self.read(product.plan.other), product.dtype)
                tile.operand(product).store(m, m.take([vec], product.plan.places), I64(0))
            for grouping in orders:
                index = [self.read(a) for a in grouping.rows.index]
                SortedTile(tile, grouping, tiling.bytes).put(index)
        self.env = once

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
        apart = {*self.spec.matvecs, *self.spec.reads}
        return VectorLoops(self.m, self.env, self._equation, apart)

    def _input(self, position: int, value: Value, at: ir.Value) -> Vec | Stored:
        """An input of an element: loaded at once where it is small."""
        pointer = self.input(position, value, at)
        found = Stored(pointer, value.dtype, value.dtype, value.size)
        return found if is_looped(self.m.lanes, value.size) else found.whole(self.m)

    def _keeping(self, atom: Atom, memory: Stored, *, past_caches: bool = False) -> Sink:
        """Stores a value in the dtype of `memory`."""

        def take(vec: Vec, at: ir.Value) -> None:
            memory.store(self.m, convert(self.m, vec, memory.dtype), at, past_caches=past_caches)

        return atom, take

    def _on_edge(self, number: int) -> Sink:
        """Stores an output of the edge at hand."""
        value = self.spec.body.outputs[number]
        row = self._element(self.output(number), value, self.endpoint[Space.EDGE])
        memory = Stored(row, value.dtype, value.dtype, math.prod(value.shape))
        return self._keeping(value, memory, past_caches=number in self.spec.streamed)

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
            self.env[value] = found if is_looped(self.m.lanes, value.size) else found.whole(self.m)

    def _multiply(
        self, product: TileProduct, span: tuple[ir.Value, ir.Value], memory: ir.Value
    ) -> None:
        count = self.b.sub(span[1], span[0])
        batch, rows, inner = product.plan.places.shape
        tile, grouping = TileMemory(self.m, memory, self.tiling.size), product.grouping
        steps = product.operand.step // rows, product.result.step // rows
        matmul = TileMatmul(
            self.m, product.dtype, inner, product.plan.columns, self.spec.block_registers, steps,
            batch, grouping is not None,
        )  # fmt: skip
        arrays = tile.array(product.operand.at), tile.array(product.result.at)
        matrix = self._matrix(product.plan.matrix)
        if grouping is None:
            several = I64(0), self.b.mul(count, I64(rows)), memory
            ahead = self._ahead_of(product, span)
            written = None
            if product.output is not None:
                dtype = self.spec.index_dtypes.edge
                numbers = self.m.offset(self.edge, span[0], dtype.itemsize)
                past_caches = product.output in self.spec.streamed
                written = EdgeRows(self.output(product.output), numbers, dtype, past_caches)
            matmul.call(arrays, matrix, several, ahead, self.tiling.size * rows, written)
            return
        edges = SortedTile(tile, grouping, self.tiling.bytes)
        with self.m.loop(I64(0), I64(grouping.count)) as row:
            since, until = edges.bounds(row)
            with self.m.when(self.b.icmp_signed("<", since, until)):
                own = self.m.offset(matrix, row, product.plan.row_bytes)
                matmul.call(arrays, own, (since, until, edges.order))
        edges.fill(product)

    # -- its edges, one after the other -----------------------------------------------------

    def make_tile_memory(self) -> tuple[ir.Value, int] | None:
        """At the start of a task, room for a tile; after it, for the factors of outer products of
        so many edges."""
        if self.spec.tiling is None:
            return None
        with self.b.goto_entry_block():
            self.tile_since, self.tile_until = (self.b.alloca(I64) for _ in range(2))
        self.b.store(I64(0), self.tile_since)
        self.b.store(I64(0), self.tile_until)
        edges = self.tiling.size
        size = self.tiling.bytes * (edges + ROOM) + self.tiling.more_bytes
        pairs = [(a, p) for a in self.group_outers for p in self.spec.outers[a.output]]
        each = [(p.left.size + p.right.size) * a.dtype.itemsize for a, p in pairs]
        collected = min(edges, COLLECTED, max(FEWEST, COLLECTED_BYTES // max(each, default=1)))
        self.tile_memory = self.m.allocate(I64(size + sum(each) * collected))
        return self.m.offset(self.tile_memory, size, 1), collected

    def tiled_edge(self, slot: ir.Value, places: Places) -> None:
        """Compute the tile that begins with a slot, if one does; then what is left of the edge."""
        b, m, tiling = self.b, self.m, self.tiling
        with m.when(b.icmp_signed(">=", slot, b.load(self.tile_until, typ=I64))):
            self.multiply_outers(slot)
            until = m.smaller(b.add(slot, I64(tiling.size)), self.last_slot)
            b.store(slot, self.tile_since)
            b.store(until, self.tile_until)
            b.call(m.module.get_global("tile"), [self.job, slot, until, self.row, self.tile_memory])
        position = b.sub(slot, b.load(self.tile_since, typ=I64))
        wanted = self._wanted(tiling.stages)
        tile = TileMemory(m, self.tile_memory, tiling.size, position)
        self._prefetch(slot, wanted)
        self._read_edge(wanted, tiling.stages, tile)
        sinks = [self._adding(acc, place) for acc, place in places.items()]
        for number, op in enumerate(self.spec.reductions):
            if op is None and number not in tiling.written:
                sinks.append(self._on_edge(number))
        if self.collector:
            sinks += self._collecting(self.collector)
        factors = tiling.factors.values() if self.tile_outers else ()
        sinks += [self._keeping(f.value, tile.factor(f)) for f in factors if f.late]
        kept = [a for t in self.tables for one in self.spec.sums[t.output] for a in one.reads]
        self._loops().run(tiling.late, kept, sinks)
        for acc in self.tables:
            self._add_rows(acc)
        if self.collector:
            self.collector.next()

    def multiply_outers(self, slot: ir.Value) -> None:
        """Add the outer products of the tile at hand to the task's sums; the next tile begins with
        `slot`."""
        if not self.tile_outers:
            return
        b, sums = self.b, len(self.tile_outers)
        arrays = self._first_read(0) if self.tiling.size <= COLLECTED else []
        ahead = [self._ahead(arrays[k::sums], slot) for k in range(sums)]
        count = b.sub(b.load(self.tile_until, typ=I64), b.load(self.tile_since, typ=I64))
        memory = TileMemory(self.m, self.tile_memory, self.tiling.size)
        with self.m.loop(I64(0), count, COLLECTED) as since:
            until = self.m.smaller(b.add(since, I64(COLLECTED)), count)
            for (products, left, right), some in zip(self.tile_outers, ahead, strict=True):
                factors = memory.array(left.array.at), memory.array(right.array.at)
                products.add(factors, since, until, some)

    def _adding(self, acc: Accumulator, place: Place) -> Sink:
        return acc.value, lambda vec, at: self.grow(acc, place, vec, at)

    def _collecting(self, collector: Collector) -> list[Sink]:
        """Stores the factors of outer products."""
        pairs = [(a, p) for a in self.group_outers for p in self.spec.outers[a.output]]
        factors = [(acc, f) for acc, pair in pairs for f in pair.values]
        pointers = collector.places()
        return [
            self._keeping(f, Stored(pointer, acc.value.dtype, acc.dtype, f.size))
            for (acc, f), pointer in zip(factors, pointers, strict=True)
        ]
