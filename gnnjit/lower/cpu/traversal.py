"""Emits the code of a traversal: a function that runs one task, and what it is made of.

Rows and edges are numbered together: row `r` has the key `indptr[r] + r`, its edges the keys that
follow. Task `k` covers the keys `[k * piece, (k + 1) * piece)`: it owns the rows that *start*
there, whole. Rows with more keys than a piece are hubs: each task reduces its own part of them
into a partial buffer, and a second stage combines the parts in order. Who does what depends on
the graph and the piece size alone, never on the number of threads, so results are bitwise
reproducible.

Each task owns a record of the partial buffer: its part of the hub that runs into it (`leading`),
of the hub that starts in it (`trailing`), and of reductions over all edges.
Large outer products that are summed over all edges are collected: a task stores the factors of
some edges before it multiplies them.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from llvmlite import ir

from gnnjit.ir.program import Atom, Equation, Lax, Literal, Value
from gnnjit.ir.space import Space
from gnnjit.ir.tables import TableRows
from gnnjit.lower.cpu import support, tables
from gnnjit.lower.cpu.accumulators import Accumulator, Places, accumulators
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.edge_lanes import EdgesInLanes
from gnnjit.lower.cpu.elementwise_rules import RULES, CodeSite
from gnnjit.lower.cpu.job import Word
from gnnjit.lower.cpu.math_rules import convert
from gnnjit.lower.cpu.matvec import Product, SharedMatrix
from gnnjit.lower.cpu.outer_products import Collector, Products
from gnnjit.lower.cpu.row_ranges import RowRanges
from gnnjit.lower.cpu.simd import I64, PTR, Vec
from gnnjit.lower.cpu.spec import ONCE, PER_EDGE, PER_ROW, Factors, Spec
from gnnjit.lower.cpu.stored import Env, Stored
from gnnjit.lower.cpu.tile_code import TiledEdges
from gnnjit.lower.lowering import Unsupported

LINES_IN_FLIGHT = 96
"""Cache lines asked for ahead of their use, about as many as a core can wait for."""


@dataclasses.dataclass(frozen=True)
class RowPart:
    """A row, or one task's part of a hub: the slots `since .. until`. `leads`: it began before."""

    row: ir.Value
    since: ir.Value
    until: ir.Value
    hub: ir.Value
    leads: ir.Value


class TraversalCode(EdgesInLanes, TiledEdges, RowRanges):
    """Emits the functions of one kernel into a module."""

    def __init__(self, spec: Spec, module: ir.Module):
        self.spec, self.module = spec, module
        self.piece = spec.config.piece
        self.keys_of_task, self.index_dtype = I64(self.piece), spec.index_dtypes.indptr
        self.accumulators, self.record = accumulators(spec)
        self.of_rows = [a for a in self.accumulators if a.op.into is not Space.SHARED]
        self.outers = [a for a in self.accumulators if a.output in spec.outers]
        self.of_all = [a for a in self.accumulators if a.op.into is Space.SHARED]
        self.tables = [a for a in self.accumulators if a.output in spec.sums]
        self.group_outers = [a for a in self.outers if a.op.into is not Space.SHARED]
        self.held = [a for a in self.of_rows if a not in self.group_outers]
        apart = {*self.outers, *self.tables}
        self.grown = [a for a in self.of_all if a not in apart]

    def begin(self, name: str, *arguments: ir.Type) -> tuple[ir.Value, ...]:
        """Start a function whose first argument is a job."""
        kind = ir.FunctionType(ir.VoidType(), [PTR, *arguments])
        function = ir.Function(self.module, kind, name)
        function.linkage = "internal"
        self.m = Emitter(self.module, ir.IRBuilder(function.append_basic_block()), self.spec.lanes)
        self.b = self.m.b
        self.read_job(function.args[0])
        return function.args[1:]

    # -- one task ---------------------------------------------------------------------------

    def emit_task(self, name: str) -> None:
        """`task(job, number, feature, own)`: for the block from `feature` on, where blocks are
        outermost; `own` has what this thread has copied."""
        task, self.feature, self.own = self.begin(name, I64, I64, PTR)
        b, m = self.b, self.m
        low = b.mul(task, I64(self.piece))
        high = m.smaller(b.add(low, I64(self.piece)), b.add(self.rows, self.slots))
        first, last, self.last_slot = self._rows_of(task)
        self.task_record = (
            m.offset(self.partial, task, self.record) if self.record else self.partial
        )
        self.env: Env = {}
        if self.spec.block is self.spec.outer_block:
            self.compute(ONCE)
        totals = self.fresh(self.grown)
        memory = self.make_tile_memory()
        self.collector = self._collector(memory)
        for acc in self.tables:
            tables.clear(
                m, acc.dtype, math.prod(acc.value.shape), m.offset(self.task_record, acc.leading, 1)
            )
        with m.loop(first, last) as row:
            begin, end = self.start_of(row), self.start_of(b.add(row, I64(1)))
            hub = self.is_hub(begin, end)
            leads = b.icmp_signed("<", b.add(begin, row), low)
            shift = b.add(row, I64(1))
            since = b.select(hub, m.larger(begin, b.sub(low, shift)), begin)
            until = b.select(hub, m.smaller(end, b.sub(high, shift)), end)
            self._row_in_blocks(RowPart(row, since, until, hub, leads), totals)
        if self.collector and not self.group_outers:
            self.collector.multiply()
        self.multiply_outers(self.last_slot)
        for acc in self.grown:
            self.store_part(acc, m.offset(self.task_record, acc.leading, 1), totals[acc])
        if self.spec.tiling:
            m.call("free", ir.VoidType(), [self.tile_memory])
        if self.spec.streamed:
            b.fence("seq_cst")  # other threads see what went past the caches
        b.ret_void()

    def _rows_of(self, task: ir.Value) -> list[ir.Value]:
        """The rows `first .. last` of a task, and where their slots end."""
        place, index = self.m.stack(3), self.spec.index_dtypes.indptr
        support.rows_of_task(self.m, index, self.job, task, I64(self.piece), place)
        return [self.b.load(self.m.offset(place, 8 * k, 1), typ=I64) for k in range(3)]

    def _row_in_blocks(self, part: RowPart, totals: Places) -> None:
        block = self.spec.block
        if block is None or self.spec.outer_block:
            self._row(part, totals)
            return
        with self.m.loop(I64(0), I64(block.full), block.size) as start:
            # The last block is moved back to end with the features: it computes some of them
            # again, to the same bits.
            self.feature = self.m.smaller(start, I64(block.full - block.size))
            self.compute(ONCE)
            self._row(part, totals)

    def _row(self, part: RowPart, totals: Places) -> None:
        b, m = self.b, self.m
        self.row = part.row
        self._prefetch_rows(part.row)
        self.compute(PER_ROW)
        if self.group_outers and self.collector:
            self.collector.start(self._totals_of_group(part))
        found = self.fresh(self.held)
        for acc in self.held:
            if acc.output in self.spec.starts:
                self.go_on(acc, found[acc], part.row, part.leads)
        if self.spec.config.lanes:
            self.row_in_lanes(part.since, part.until, {**found, **totals})
        else:
            with m.loop(part.since, part.until) as slot:
                self._edge(slot, {**found, **totals})
        if self.group_outers and self.collector:
            self.collector.multiply()
        if not self.held:
            return
        with b.if_else(part.hub) as (then, otherwise):
            with then, m.scope():
                for acc in self.held:
                    at = b.select(part.leads, I64(acc.leading), I64(acc.trailing))
                    self.store_part(acc, m.offset(self.task_record, at, 1), found[acc])
            with otherwise, m.scope():
                empty = b.icmp_signed("==", part.since, part.until)
                for acc in self.held:
                    self.finish_row(acc, part.row, empty, found[acc])

    def _totals_of_group(self, part: RowPart) -> list[ir.Value]:
        """Where the sums of outer products of a group, or of a part of a large one, grow."""
        b, m, out = self.b, self.m, []
        for acc in self.group_outers:
            at = b.select(part.leads, I64(acc.leading), I64(acc.trailing))
            record = m.offset(self.task_record, at, 1)
            row = self._element(self.output(acc.output), acc.value, part.row)
            total = b.select(part.hub, record, row)
            out += [total] * len(self.spec.outers[acc.output])
        return out

    def _edge(self, slot: ir.Value, places: Places) -> None:
        spec, m = self.spec, self.m
        self.endpoint = self._endpoints(slot)
        if spec.tiling:
            self.tiled_edge(slot, places)
            return
        self._prefetch(slot)
        self.compute(PER_EDGE)
        for acc, place in places.items():
            self.grow(acc, place, self.read(acc.value))
        for number, (op, value) in enumerate(zip(spec.reductions, spec.body.outputs, strict=True)):
            if op is None:
                row = self._element(self.output(number), value, self.endpoint[Space.EDGE])
                past_caches = number in spec.streamed
                m.store(self.read(value), row, spec.places(value), past_caches=past_caches)
        for acc in self.tables:
            self._add_rows(acc)
        if self.collector:
            pairs = [(a, pair) for a in self.outers for pair in self.spec.outers[a.output]]
            self.collector.take([self._factors(acc, pair) for acc, pair in pairs])

    def _endpoints(self, slot: ir.Value) -> dict[Space, ir.Value]:
        out, spec = {}, self.spec
        if spec.grouped:
            ends = {Space.SRC: self.neighbor, Space.DST: self.other}
            for space, array in ends.items():
                out[space] = self.m.index(array, slot, spec.index_dtypes.neighbor)
        elif spec.gathers:
            out[spec.rows.flipped] = self.m.index(self.neighbor, slot, spec.index_dtypes.neighbor)
        if spec.needs_edge:
            out[Space.EDGE] = self.m.index(self.edge, slot, spec.index_dtypes.edge)
        return out

    def _prefetch(self, slot: ir.Value, of: set[Atom] | None = None) -> None:
        """Ask for what the edges some steps ahead (of later rows too) will gather: of all inputs,
        or of some."""
        wanted = []
        for position, value in self.spec.inputs(PER_EDGE):
            if of is not None and value not in of:
                continue
            found = np.unique(self._places(value) * value.dtype.itemsize // 64)
            wanted.append((position, value, found))
        lines = sum(len(found) for _, _, found in wanted)
        if not lines:
            return
        steps = max(1, min(self.spec.config.ahead, LINES_IN_FLIGHT // lines))
        last = self.b.sub(self.capacity, I64(1))
        ends = self._endpoints(self.m.smaller(self.b.add(slot, I64(steps)), last))
        for position, value, found in wanted:
            self._ask_for(self.input(position, value, ends[value.space]), found)

    def _prefetch_rows(self, row: ir.Value) -> None:
        """Ask for what later rows read of their own, and for the sums that they go on from: what
        edges gather in between makes processors lose these streams."""
        ahead = self.spec.config.rows_ahead
        if not (ahead and self.spec.partial):
            return
        later = self.m.smaller(self.b.add(row, I64(ahead)), self.b.sub(self.rows, I64(1)))
        wanted = [(self.operand(k), value) for k, value in self.spec.inputs(PER_ROW)]
        wanted += [
            (self.start(a.output), a.value) for a in self.of_rows if a.output in self.spec.starts
        ]
        for base, value in wanted:
            lines = np.unique(self.spec.places(value) * value.dtype.itemsize // 64)
            if len(lines) > 1:
                self._ask_for(self._element(base, value, later), lines)

    def _ask_for(self, element: ir.Value, lines: np.ndarray) -> None:
        for line in lines[:16]:
            self.m.ask_for_line(self.m.offset(element, int(line) * 64, 1))

    # -- values -----------------------------------------------------------------------------

    def read(self, atom: Atom) -> Vec:
        if isinstance(atom, Literal):
            return self.m.literal(atom.dtype, np.asarray(atom.value).item())
        found = self.env[atom]
        return found.whole(self.m) if isinstance(found, Stored) else found

    def _element(self, base: ir.Value, value: Atom, at: ir.Value) -> ir.Value:
        """The address of element `at` of an array, at the current block's first feature."""
        size = value.dtype.itemsize
        pointer = self.m.offset(base, at, math.prod(value.shape) * size)
        if self.spec.shape(value) == value.shape:
            return pointer
        return self.m.offset(pointer, self.feature, size)

    def input(self, position: int, value: Value, at: ir.Value) -> ir.Value:
        """As `_element`, of an input: of the thread's own copy, where it has one."""
        area = 0
        for number, other in self.spec.copied:
            size = self.spec.places(other).size * other.dtype.itemsize
            if number == position:
                start = self.b.mul(self.word(Word.SOURCES), I64(area))
                return self.m.offset(self.m.offset(self.own, start, 1), at, size)
            area += size
        return self._element(self.operand(position), value, at)

    def _places(self, value: Value) -> np.ndarray:
        """As `Spec.places`, of an input: where `input` has its scalars."""
        places = self.spec.places(value)
        copied = any(value is v for _, v in self.spec.copied)
        return np.arange(places.size) if copied else places

    def compute(self, level: int) -> None:
        """Load the inputs and evaluate the equations of one level."""
        if self.spec.tiling:
            self.compute_in_loops(level)
            return
        for position, value in self.spec.inputs(level):
            at = {ONCE: I64(0), PER_ROW: getattr(self, "row", None)}.get(level)
            at = self.endpoint[value.space] if at is None else at
            pointer = self.input(position, value, at)
            self.env[value] = self.m.load(pointer, value.dtype, self._places(value))
        for eqn in self.spec.equations(level):
            self.env.update(zip(eqn.outputs, self._equation(eqn), strict=True))

    def _equation(self, eqn: Equation) -> list[Vec]:
        op, spec = eqn.op, self.spec
        if eqn in spec.matvecs:
            return [self._matvec(eqn)]
        if eqn in spec.reads:
            return [self._table_rows(spec.reads[eqn])]
        rule = RULES.get(op.name)
        if rule is None or not isinstance(op, Lax):
            raise Unsupported(f"no CPU kernel code for the primitive {op.name}")
        inputs = [self.read(a) for a in eqn.inputs]
        shapes = [spec.shape(a) for a in eqn.inputs]
        outs = [spec.shape(o) for o in eqn.outputs]
        dtypes = [o.dtype for o in eqn.outputs]
        site = CodeSite(self.m, op.name, dict(op.params), inputs, shapes, dtypes, outs)
        values = rule(site)
        return [self.m.spread(v, math.prod(s)) for v, s in zip(values, outs, strict=True)]

    def _matvec(self, eqn: Equation) -> Vec:
        plan, pointer = self.spec.matvecs[eqn], self._matrix(self.spec.matvecs[eqn].matrix)
        if plan.rows is None:
            product = Product(self.m, plan, pointer, self.spec.registers)
            return product.of(self.read(plan.other), eqn.outputs[0].dtype)
        number, inside = tables.number_of(self.m, plan.rows, self._index(plan.rows))
        pointer = self.m.offset(pointer, number, plan.row_bytes)
        product = Product(self.m, plan, pointer, self.spec.registers)
        found = product.of(self.read(plan.other), eqn.outputs[0].dtype)
        return tables.filled(self.m, found, plan.rows, inside)

    def _index(self, rows: TableRows) -> list[Vec]:
        return [self.read(a) for a in rows.index]

    def _table_rows(self, rows: TableRows) -> Vec:
        """Rows of a shared table."""
        pointer = self.operand(self.spec.body.inputs.index(rows.table))  # type: ignore[arg-type]
        return tables.read(self.m, rows, self._index(rows), pointer)

    def _add_rows(self, acc: Accumulator) -> None:
        """Add what an edge gives to rows of the task's own table of sums."""
        pointer = self.m.offset(self.task_record, acc.leading, 1)
        for one in self.spec.sums[acc.output]:
            sums = tables.TableSums(self.m, one.rows, acc.dtype, pointer)
            if one.pairs:
                sums.add_products(self._index(one.rows), [self._factors(acc, p) for p in one.pairs])
            else:
                value = convert(self.m, self.read(one.update), acc.value.dtype)
                sums.add(self._index(one.rows), Vec(acc.dtype, value.size, value.chunks))

    def _matrix(self, matrix: SharedMatrix) -> ir.Value:
        if matrix.lies_so:
            return self.operand(self.spec.body.inputs.index(matrix.value))
        at, _ = self.spec.packed[matrix.value, matrix.axes, matrix.dtype]
        return self.m.offset(self.copies, at, 1)

    # -- outer products ---------------------------------------------------------------------

    def _collector(self, memory: tuple[ir.Value, int] | None) -> Collector | None:
        """For the large outer products that are summed over all edges; none in tiles, which have
        the factors in their memory."""
        self.tile_outers = []
        sums = []
        for acc in self.outers:
            for pair in self.spec.outers[acc.output]:
                products = self._products(acc, pair)
                if self.spec.tiling is None or acc in self.group_outers:
                    sums.append(products)
                    continue
                left, right = (self.tiling.factors[acc.output, f] for f in pair.values)
                steps = left.array.step, right.array.step
                products = dataclasses.replace(products, steps=steps)
                products.clear()
                self.tile_outers.append((products, left, right))
        if not sums:
            return None
        return Collector(self.m, sums, memory, moving=bool(self.group_outers))

    def _products(self, acc: Accumulator, pair: Factors) -> Products:
        total = self.m.offset(self.task_record, acc.leading, 1)
        registers = self.spec.block_registers
        return Products(self.m, acc.dtype, *pair.shape, total, registers, pair.batch)

    def _factors(self, acc: Accumulator, pair: Factors) -> tuple[Vec, Vec]:
        dtype = acc.value.dtype
        left, right = (convert(self.m, self.read(f), dtype) for f in pair.values)
        return (
            Vec(acc.dtype, left.size, left.chunks),
            Vec(acc.dtype, right.size, right.chunks),
        )
