"""What the code of all kernels calls: functions that are compiled once, for every kernel.

A third of a small kernel was the same as in all others: XLA's questions, how work is shared, which
rows a task has. A kernel says what is its own in its job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from llvmlite import ir

from gnnjit.lower.cpu import ffi_abi
from gnnjit.lower.cpu.calls import Calls
from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.frame import NULL
from gnnjit.lower.cpu.index_rules import combiner, identity
from gnnjit.lower.cpu.job import Word
from gnnjit.lower.cpu.row_ranges import RowRanges
from gnnjit.lower.cpu.simd import I32, I64, PTR, Vec

PREFIX = "gnnjit_cpu_support_"
"""Of the functions' names."""

I1 = ir.IntType(1)
VOID = ir.VoidType()
INDICES = tuple(np.dtype(name) for name in ("int32", "int64"))
DTYPES = tuple(np.dtype(name) for name in ("float32", "float64"))
KINDS = ("sum", "max", "min", "prod")

NAMES = tuple(
    PREFIX + name for name in (
        *(f"{what}_of_task_{index.name}" for what in ("rows", "hub") for index in INDICES),
        *(f"combine_{kind}_{dtype.name}" for kind in KINDS for dtype in DTYPES),
        "task_done", "call",
    )
)  # fmt: skip
"""Of the functions that kernels call."""


def rows_of_task(m: Emitter, index: np.dtype, *args: ir.Value) -> None:
    """`job, task, piece, place`: write the rows `first .. last` of a task, and where their slots
    end, to three words."""
    m.call(f"{PREFIX}rows_of_task_{index.name}", VOID, args)


def hub_of_task(m: Emitter, index: np.dtype, *args: ir.Value) -> ir.Value:
    """`job, task, piece, place`: the hub that begins in the task before this one and runs into it,
    -1 if there is none; writes the task after its last one to `place`."""
    return m.call(f"{PREFIX}hub_of_task_{index.name}", I64, args)


def combines(kind: str, dtype: np.dtype) -> bool:
    """Whether there is a `combine` for a reduction."""
    return kind in KINDS and dtype in DTYPES


@dataclasses.dataclass(frozen=True)
class Records:
    """What tasks have reduced: the records `since .. until`, of those that begin at `start` and are
    `step` bytes apart."""

    start: ir.Value
    step: ir.Value
    since: ir.Value
    until: ir.Value


def combine(
    m: Emitter, kind: str, dtype: np.dtype, records: Records, out: ir.Value, first: ir.Value,
    size: ir.Value, nothing: ir.Value,
) -> None:  # fmt: skip
    """Write to `out` what `size` scalars of all records reduce to (`reduced`); zeros where
    `nothing` is true."""
    args = [records.start, records.step, records.since, records.until, out, first, size, nothing]
    m.call(f"{PREFIX}combine_{kind}_{dtype.name}", VOID, args)


def reduced(
    m: Emitter, kind: str, dtype: np.dtype, records: Records, first: ir.Value, at: ir.Value,
    width: int,
) -> Vec:  # fmt: skip
    """What `width` scalars from `at` on reduce to, record after record, beginning with those at
    `first` where that is not null."""
    item, places = dtype.itemsize, np.arange(width)
    start = m.literal(dtype, identity(kind, dtype), width)
    place = m.variable(start)
    m.assign(place, start)
    with m.when(m.b.icmp_unsigned("!=", first, NULL)):
        m.assign(place, m.load(m.offset(first, at, item), dtype, places))
    with m.loop(records.since, records.until) as number:
        record = m.offset(records.start, m.b.mul(number, records.step), 1)
        part = m.load(m.offset(record, at, item), dtype, places)
        m.assign(place, combiner(m, kind, dtype)(m.value_of(place, part), part))
    return m.value_of(place, start)


def call(m: Emitter, frame: ir.Value, facts: ir.Value) -> None:
    """Do what XLA calls the kernel of these facts for (`calls.Fact`)."""
    given = m.b.inttoptr(m.b.ptrtoint(facts, I64), PTR)
    m.call(f"{PREFIX}call", VOID, [frame, given])


def task_done(m: Emitter, job: ir.Value) -> None:
    """Count a task of the job as done."""
    m.call(f"{PREFIX}task_done", VOID, [job])


class Support(Calls, RowRanges):
    """Emits the functions. `save_mode`: helpers take over the caller's x86 rounding and denormal
    modes. lanes: float32 in a vector."""

    def __init__(self, module: ir.Module, layout: ffi_abi.Abi, save_mode: bool, lanes: int):
        self.module, self.layout, self.save_mode, self.lanes = module, layout, save_mode, lanes

    def emit(self) -> None:
        for index in INDICES:
            self._emit_rows_of_task(index)
            self._emit_hub_of_task(index)
        for dtype in DTYPES:
            for kind in KINDS:
                self._emit_combine(kind, dtype)
        self._emit_release()
        self._emit_task_done()
        self._emit_work()
        self._emit_helper()
        self._emit_run()
        self._emit_call()

    def _begin(self, name: str, result: ir.Type, *kinds: ir.Type) -> Sequence[ir.Value]:
        function = ir.Function(self.module, ir.FunctionType(result, kinds), PREFIX + name)
        self.m = Emitter(self.module, ir.IRBuilder(function.append_basic_block()), self.lanes)
        self.b = self.m.b
        if not name.startswith("combine"):
            self.m.as_it_stands()
        return function.args

    def _local(self, name: str, *args: ir.Value) -> ir.Value:
        return self.b.call(self.module.get_global(PREFIX + name), args)

    def _of_kernel(self, word: Word, *args: ir.Value) -> None:
        """Call a function of the kernel."""
        signature = ir.PointerType(ir.FunctionType(VOID, [a.type for a in args]))
        self.b.call(self.b.inttoptr(self.word(word), signature), args)

    # -- rows -------------------------------------------------------------------------------

    def _emit_rows_of_task(self, index: np.dtype) -> None:
        name = f"rows_of_task_{index.name}"
        job, task, self.keys_of_task, place = self._begin(name, VOID, PTR, I64, I64, PTR)
        self.read_job(job)
        b, m, self.index_dtype = self.b, self.m, index
        low = b.mul(task, self.keys_of_task)
        high = m.smaller(b.add(low, self.keys_of_task), b.add(self.rows, self.slots))
        first, last = self.first_row(low), self.first_row(high)
        first = self.back_to_hub(first, low)
        for number, value in enumerate((first, last, self.last_slot_of(first, last, high))):
            self.put(place, 8 * number, value)
        b.ret_void()

    def _emit_hub_of_task(self, index: np.dtype) -> None:
        name = f"hub_of_task_{index.name}"
        job, task, self.keys_of_task, place = self._begin(name, I64, PTR, I64, I64, PTR)
        self.read_job(job)
        b, piece, self.index_dtype = self.b, self.keys_of_task, index
        low = b.mul(task, piece)
        after = self.first_row(low)
        row = self.back_to_hub(after, low)
        starts_here = b.icmp_signed(">=", self.key(row), b.sub(low, piece))
        runs = b.and_(b.icmp_signed("!=", row, after), starts_here)
        with self.m.when(runs):
            last = b.sdiv(b.add(self.key(after), b.sub(piece, I64(1))), piece)
            self.put(place, 0, last)
        b.ret(b.select(runs, row, I64(-1)))

    # -- second stage -----------------------------------------------------------------------

    def _emit_combine(self, kind: str, dtype: np.dtype) -> None:
        kinds = [PTR, I64, I64, I64, PTR, PTR, I64, I1]
        *given, out, first, size, nothing = self._begin(
            f"combine_{kind}_{dtype.name}", VOID, *kinds
        )
        m, b, records = self.m, self.b, Records(*given)
        lanes = self.lanes * 4 // dtype.itemsize
        whole = b.and_(size, I64(-lanes))
        for since, until, width in ((I64(0), whole, lanes), (whole, size, 1)):
            with m.loop(since, until, width) as at:
                total = reduced(m, kind, dtype, records, first, at, width)
                chunks = [b.select(nothing, ir.Constant(c.type, None), c) for c in total.chunks]
                place = m.offset(out, at, dtype.itemsize)
                m.store(Vec(dtype, width, tuple(chunks)), place, np.arange(width))
        b.ret_void()

    # -- a call -----------------------------------------------------------------------------

    def _emit_release(self) -> None:
        """Of a thread that looks at the job no longer."""
        (job,) = self._begin("release", VOID, PTR)
        self.read_job(job)
        before = self.b.atomic_rmw("sub", self.place(Word.REFS), I64(1), "seq_cst")
        with self.b.if_then(self.b.icmp_signed("==", before, I64(1))):
            self.m.call("free", VOID, [job])
        self.b.ret_void()

    def _emit_task_done(self) -> None:
        (job,) = self._begin("task_done", VOID, PTR)
        self.read_job(job)
        b = self.b
        others = b.atomic_rmw("add", self.place(Word.DONE), I64(1), "seq_cst")
        last = b.icmp_signed("==", others, b.sub(self.word(Word.TASKS), I64(1)))
        future = self.word(Word.FUTURE)
        with self.m.when(b.and_(last, b.icmp_signed("!=", future, I64(0)))):
            self._of_kernel(Word.FINISH, job)
            # XLA goes on with what comes after the kernel in here, on this thread.
            self.call_api(self.word(Word.API, PTR), self.layout.available_offset, [future])
        b.ret_void()

    def _emit_work(self) -> None:
        """Take tasks until none is left."""
        (job,) = self._begin("work", VOID, PTR)
        self.read_job(job)
        b = self.b
        row_tasks, tasks = self.word(Word.ROW_TASKS), self.word(Word.TASKS)
        head, body, done = (b.append_basic_block(n) for n in ("take", "run", "none"))
        b.branch(head)
        b.position_at_end(head)
        task = b.atomic_rmw("add", self.place(Word.NEXT), I64(1), "seq_cst")
        b.cbranch(b.icmp_signed("<", task, tasks), body, done)
        b.position_at_end(body)
        with b.if_else(b.icmp_signed("<", task, row_tasks)) as (then, otherwise):
            with then:
                self._of_kernel(Word.TASK, job, task, I64(0), NULL)
            with otherwise:
                self._of_kernel(Word.PADDING, job, b.sub(task, row_tasks))
        self._local("task_done", job)
        b.branch(head)
        b.position_at_end(done)
        b.ret_void()

    def _work(self, job: ir.Value) -> None:
        """As the kernel does, if it has a way of its own."""
        b = self.b
        with b.if_else(b.icmp_signed("!=", self.word(Word.WORK), I64(0))) as (then, otherwise):
            with then:
                self._of_kernel(Word.WORK, job)
            with otherwise:
                self._local("work", job)

    def _emit_helper(self) -> None:
        (job,) = self._begin("helper", VOID, PTR)
        self.read_job(job)
        if self.save_mode:
            mine = self.m.stack(1)
            self.m.call("llvm.x86.sse.stmxcsr", VOID, [mine])
            self.m.call("llvm.x86.sse.ldmxcsr", VOID, [self.place(Word.MODE)])
        self._work(job)
        if self.save_mode:
            self.m.call("llvm.x86.sse.ldmxcsr", VOID, [mine])
        self._local("release", job)
        self.b.ret_void()

    def _emit_run(self) -> None:
        """`run(job, frame, threads, helped, left)`: do the tasks of a job; where `helped`, with
        XLA's thread pool; where `left`, leave all of them to it.

        Ask the pool for one helper per further thread or, where the caller leaves the work to
        the pool, for one per thread: then the helper that does the last task completes the job's
        future, and the caller returns.

        A caller that works beside the helpers of another operation takes turns with them, and where
        it waits for one that is not running a core may be idle.
        """
        job, frame, threads, helped, left = self._begin("run", VOID, PTR, PTR, I64, I1, I1)
        self.read_job(job)
        b, m, tasks = self.b, self.m, self.word(Word.TASKS)
        if self.save_mode:
            m.call("llvm.x86.sse.stmxcsr", VOID, [self.place(Word.MODE)])
        api, context = (self.field(frame, at, PTR) for at in (ffi_abi.FRAME_API, ffi_abi.FRAME_CTX))
        b.store(api, self.place(Word.API))
        with m.when(left):
            _, future = self.call_api(api, self.layout.create_offset, [I64(0)])
            b.store(future, self.place(Word.FUTURE))
        left = b.icmp_signed("!=", self.word(Word.FUTURE), I64(0))
        mine = b.select(left, I64(0), I64(1))
        wanted = b.select(helped, b.sub(m.smaller(tasks, threads), mine), I64(0))
        helper = self.module.get_global(PREFIX + "helper")
        words = [b.ptrtoint(p, I64) for p in (context, helper, job)]
        with m.loop(I64(0), wanted):
            b.atomic_rmw("add", self.place(Word.REFS), I64(1), "seq_cst")
            failed, _ = self.call_api(api, self.layout.schedule_offset, words)
            with m.when(failed):
                b.atomic_rmw("sub", self.place(Word.REFS), I64(1), "seq_cst")
                with m.when(left):  # nobody else might
                    self._work(job)
        with m.when(left):
            self.put(frame, ffi_abi.FRAME_FUTURE, self.word(Word.FUTURE))
        with m.when(b.not_(left)):
            self._work(job)
            self._wait(tasks)
            self._of_kernel(Word.FINISH, job)
        self._local("release", job)
        b.ret_void()

    def _emit_call(self) -> None:
        frame, facts = self._begin("call", VOID, PTR, PTR)
        self.emit_call(frame, facts, self.module.get_global(PREFIX + "run"))

    def _wait(self, tasks: ir.Value) -> None:
        """Until the tasks that helpers have taken are done."""
        b = self.b
        head, again, done = (b.append_basic_block(n) for n in ("wait", "again", "ready"))
        b.branch(head)
        b.position_at_end(head)
        finished = b.load_atomic(self.place(Word.DONE), "seq_cst", 8, typ=I64)
        b.cbranch(b.icmp_signed("<", finished, tasks), again, done)
        b.position_at_end(again)
        self.m.call("sched_yield", I32, [])
        b.branch(head)
        b.position_at_end(done)
