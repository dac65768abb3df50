"""The executables of a sweep: what one block does before, between and after its aggregates, and
what one chunk of edges adds to them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit.graph import Graph
from gnnjit.graph.structure import Structure
from gnnjit.ir.array_program import Array, Constant, Operand
from gnnjit.ir.space import Space
from gnnjit.lower import cpu
from gnnjit.lower.accumulate import accumulate
from gnnjit.lower.aggregate import aggregate
from gnnjit.lower.partial_results import counted, first, merge
from gnnjit.streaming.program.blockwise_rules import RowBlock, bind
from gnnjit.streaming.program.operations import Gather, RowWise, Shared, Side, Sweep, traversals

Env = dict[Array, Any]


class CompiledFunction:
    """A function compiled ahead for each shape of its arguments, so that what it needs is known.

    A call returns what the function does, and an array that is there when the call has ended: what
    it made may be given away before (`donate`), and cannot be waited for then.
    """

    def __init__(self, fn: Callable[..., Any], donate: Sequence[int] = ()) -> None:
        self._fn, self._donate = fn, tuple(donate)
        self._made: dict[Any, Any] = {}

    def __call__(self, *args: Any) -> tuple[Any, jax.Array]:
        return self.at(args)(*args)

    def at(self, args: Any) -> Any:
        """The executable for arguments (arrays or shapes) like these."""
        leaves, tree = jax.tree.flatten(args)
        key = tree, tuple([(x.shape, x.dtype) for x in leaves])
        if key not in self._made:
            shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]

            def once(*args: Any) -> Any:  # JAX keeps what it compiled as long as the function lives
                return self._fn(*args), jnp.zeros((), bool)

            jitted = jax.jit(once, donate_argnums=self._donate)
            with cpu.left_to_pool():
                self._made[key] = jitted.lower(*jax.tree.unflatten(tree, shapes)).compile()
        return self._made[key]

    def forget(self) -> None:
        """Drop what was compiled."""
        self._made.clear()

    def scratch(self, args: Any) -> int:
        """Bytes that it needs beside its arguments: results and temporaries."""
        found = self.at(args).memory_analysis()
        if found is None:
            return 0
        made = found.output_size_in_bytes - found.alias_size_in_bytes
        return int(max(0, made) + found.temp_size_in_bytes)


def _read(env: Mapping[Array, Any], x: Operand) -> Any:
    return np.asarray(x.value, x.dtype) if isinstance(x, Constant) else env[x]


def _dependencies(operations: Sequence[RowWise | Shared | Gather]) -> list[Array]:
    """What is read and not made by `operations`, each once."""
    made: set[Array] = set()
    found: dict[Array, None] = {}
    for work in operations:
        found.update({x: None for x in work.inputs if isinstance(x, Array) and x not in made})
        made.update(work.outputs)
    return list(found)


@dataclasses.dataclass(frozen=True, eq=False)
class SharedExecutable:
    """Work without rows: `run(values of inputs)` gives the values of the outputs."""

    operations: tuple[Shared, ...]
    outputs: tuple[Array, ...]

    @functools.cached_property
    def inputs(self) -> tuple[Array, ...]:
        return tuple(_dependencies(self.operations))

    @functools.cached_property
    def run(self) -> CompiledFunction:
        return CompiledFunction(self._run)

    def _run(self, values: Sequence[Any]) -> list[Any]:
        env: Env = dict(zip(self.inputs, values, strict=True))
        for work in self.operations:
            args = [_read(env, x) for x in work.inputs]
            outs = bind(work.eqn.primitive, dict(work.eqn.params), args)
            env.update(zip(work.outputs, outs, strict=True))
        return [env[x] for x in self.outputs]


@dataclasses.dataclass(frozen=True, eq=False)
class BlockExecutable:
    """One stage of a block: results of the aggregates before it, then its row-wise work.

    A block is done at once, or in slices of its rows one after the other (the second level of
    NeuGraph's partition). Arrays that aggregates read are whole blocks then (`whole`), all others
    come and go in slices.

    `run(index, count, start, rows, shared, partial, totals, into)`: the numbers of the rows
    `int32[m]`, how many are real (None: all), where the slice begins in the block (None: it is the
    block), what is read by rows and shared, partial results of `gathers`, the sums over all rows so
    far (`neutral_totals` at first), and the whole blocks that are filled slice by slice. It gives
    (slices of `outputs`, `into` for those of `whole`, totals).
    """

    gathers: tuple[Gather, ...]
    operations: tuple[RowWise, ...]
    outputs: tuple[Array, ...]
    whole: frozenset[Array]

    @functools.cached_property
    def inputs(self) -> tuple[Array, ...]:
        """All that is read and not made here."""
        made = {x for g in self.gathers for x in g.outputs}
        needed = [x for x in _dependencies(self.operations) if x not in made]
        rest = made.union(*(w.outputs for w in self.operations))
        return tuple(dict.fromkeys([*needed, *(x for x in self.outputs if x not in rest)]))

    @functools.cached_property
    def rows(self) -> tuple[Array, ...]:
        return tuple(x for x in self.inputs if x.rows is not None)

    @functools.cached_property
    def shared(self) -> tuple[Array, ...]:
        return tuple(x for x in self.inputs if x.rows is None)

    @functools.cached_property
    def filled(self) -> tuple[Array, ...]:
        """Outputs that are put together from slices."""
        return tuple(x for x in self.outputs if x in self.whole)

    @functools.cached_property
    def sliced(self) -> tuple[Array, ...]:
        return tuple(x for x in self.outputs if x not in self.whole)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.gathers or self.operations)

    @property
    def numbered(self) -> bool:
        """Whether the numbers of the rows are read."""
        return any(w.eqn.name == "iota" for w in self.operations)

    @functools.cached_property
    def totals(self) -> tuple[RowWise, ...]:
        return tuple(w for w in self.operations if w.reduces)

    @functools.cached_property
    def run(self) -> CompiledFunction:
        return CompiledFunction(self._run, donate=(6, 7))

    def _run(
        self,
        index: Any,
        count: Any,
        start: Any,
        rows: Any,
        shared: Any,
        partial: Any,
        totals: Any,
        into: Any,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        size = index.shape[0]

        def part(x: Any) -> Any:
            return x if start is None else lax.dynamic_slice_in_dim(x, start, size)

        valid = None if count is None else jnp.arange(size, dtype=jnp.int32) < count
        block = RowBlock(index, valid)
        env: Env = {
            x: part(v) if x in self.whole else v for x, v in zip(self.rows, rows, strict=True)
        }
        env.update(zip(self.shared, shared, strict=True))
        for gather, accumulated in zip(self.gathers, partial, strict=True):
            if not gather.totals:
                accumulated = [part(x) for x in accumulated]
                env.update(gather.finished(accumulated))
        sums: list[Any] = []
        for work in self.operations:
            args = [_read(env, x) for x in work.inputs]
            outs = work.rule.run(block, args)
            if work.rule.merge is None:
                env.update(zip(work.outputs, outs, strict=True))
                continue
            (new,) = outs
            sums.append(work.rule.merge(totals[len(sums)], new))
        filled = [env[x] for x in self.filled]
        if start is not None:
            filled = [
                lax.dynamic_update_slice_in_dim(b, x, start, 0)
                for b, x in zip(into, filled, strict=True)
            ]
        return [env[x] for x in self.sliced], filled, sums


def neutral_totals(executable: BlockExecutable) -> list[Any]:
    """The sums over no blocks."""
    return [
        np.full(w.outputs[0].shape, w.rule.neutral, w.outputs[0].dtype) for w in executable.totals
    ]


def finished_total(work: RowWise, total: Any, env: Mapping[Array, Any]) -> Any:
    """The result of a reduction over all blocks."""
    if work.rule.finish is None:
        return total
    return work.rule.finish(total, [None if x.rows else _read(env, x) for x in work.inputs])


@dataclasses.dataclass(frozen=True, eq=False)
class ChunkExecutable:
    """What one chunk of edges adds to the aggregates of a stage.

    `run(indptr, neighbor, numbers, own, other, edges, shared, partial)`: the first slots of the
    rows `int32[n + 1]`, the other endpoints by slot `int32[E']` (with padding), the edges' numbers
    as the user counts them (None where nobody asks), rows of the block, rows of the other endpoint,
    rows of edges by slot, and for each gather its partial results so far (None for none: nothing is
    merged then). It gives (partial results, edge rows).
    """

    side: Side
    gathers: tuple[Gather, ...]
    edge_loads: tuple[Array, ...]
    edge_work: tuple[RowWise, ...]

    @functools.cached_property
    def own(self) -> tuple[Array, ...]:
        return self._operands(*{g.own for g in self.gathers})

    @functools.cached_property
    def other(self) -> tuple[Array, ...]:
        return self._operands(*{g.other for g in self.gathers})

    @functools.cached_property
    def shared(self) -> tuple[Array, ...]:
        found = [x for x in _dependencies(self.edge_work) if x.rows is None]
        return tuple(dict.fromkeys([*found, *self._operands(Space.SHARED)]))

    @functools.cached_property
    def on_edges(self) -> tuple[Array, ...]:
        """Results that stay on the edges."""
        return tuple(x for g in self.gathers for x in g.outputs if x not in g.reduced)

    @property
    def numbered(self) -> bool:
        """Whether the edges' numbers are read."""
        return any(w.eqn.name == "iota" for w in self.edge_work)

    def _operands(self, *spaces: Space) -> tuple[Array, ...]:
        found: dict[Array, None] = {}
        for gather in self.gathers:
            for space in spaces:
                found.update({x: None for _, x in gather.operands(space) if isinstance(x, Array)})
        return tuple(found)

    @functools.cached_property
    def run(self) -> CompiledFunction:
        return CompiledFunction(self._run, donate=(7,))

    def _run(
        self,
        indptr: Any,
        neighbor: Any,
        numbers: Any,
        own: Any,
        other: Any,
        edges: Any,
        shared: Any,
        partial: Any,
    ) -> tuple[list[Any], list[Any]]:
        slots = jnp.arange(neighbor.shape[0], dtype=jnp.int32)
        valid = slots < indptr[-1]
        values: Env = dict(zip(self.shared, shared, strict=True))
        values.update(zip(self.edge_loads, edges, strict=True))
        block = RowBlock(slots if numbers is None else numbers, valid)
        for work in self.edge_work:
            outs = work.rule.run(block, [_read(values, x) for x in work.inputs])
            values.update(zip(work.outputs, outs, strict=True))
        mine = {**values, **dict(zip(self.own, own, strict=True))}
        theirs = {**values, **dict(zip(self.other, other, strict=True))}
        num_other = other[0].shape[0] if other else indptr.shape[0] - 1
        graph = chunk_graph(self.side, indptr, neighbor, num_other)
        given: Env = {}
        for g, before in zip(self.gathers, partial, strict=True):
            given.update(zip(g.reduced, before or (), strict=False))
        found: Env = {}
        for g in traversals(self.gathers):
            operands = [
                _read(theirs if v.space is g.other else mine, x)
                for v, x in zip(g.op.body.inputs, g.inputs, strict=True)
            ]
            if g.scored:
                outs = aggregate(graph, g.op.body, g.op.reductions, operands, g.limit)
            else:
                before = [given.get(x) for x in g.outputs]
                outs = accumulate(graph, g.op, operands, g.limit, before)
            found.update(zip(g.outputs, outs, strict=True))
        degree = jnp.diff(indptr)
        merged = []
        for g, before in zip(self.gathers, partial, strict=True):
            if not g.scored:
                merged.append(counted(g.op, [found[x] for x in g.reduced], before, degree))
                continue
            outs = [found[x] for x in g.outputs]
            merged.append(
                first(g.op, outs, degree) if before is None else merge(g.op, before, outs, degree)
            )
        kept = [found[x] for x in self.on_edges]
        return merged, kept


def chunk_graph(side: Side, indptr: Any, neighbor: Any, num_other: int) -> Graph:
    """The edges of a chunk as a graph, numbered by slot; padding is at the end."""
    rows, slots = indptr.shape[0] - 1, neighbor.shape[0]
    number = jnp.arange(slots, dtype=jnp.int32)
    begins = jnp.zeros(slots, jnp.int32).at[indptr[1:-1]]
    row = jnp.cumsum(begins.add(1, mode="drop", indices_are_sorted=True))
    valid = number < indptr[-1]
    graph = Graph(
        src=neighbor,
        dst=jnp.where(valid, row, 0),
        mask=valid,
        in_structure=Structure(indptr, neighbor, number),
        out_structure=Structure(_nobody_reads(num_other), neighbor, number),
        dropped=None,
        num_src=num_other,
        num_dst=rows,
        num_edges=slots,
        bipartite=True,
    )
    return graph if side == "dst" else graph.reverse()


def _nobody_reads(rows: int) -> Any:
    """In place of the structure by the other endpoint: results are in the rows alone."""
    return jnp.zeros(rows + 1, jnp.int32)


def block_executables(sweep: Sweep, whole: frozenset[Array]) -> list[BlockExecutable]:
    """The stages of a sweep's blocks; `whole` as in `BlockExecutable`."""
    executables: list[BlockExecutable] = []
    gathers: tuple[Gather, ...] = ()
    for k, (operations, following) in enumerate(sweep.stages):
        made = dict.fromkeys(x for g in gathers for x in g.outputs if x.rows is sweep.rows)
        made.update(dict.fromkeys(x for w in operations if not w.reduces for x in w.outputs))
        later = set(sweep.stores)
        for j, (others, then) in enumerate(sweep.stages):
            if j > k:
                later.update(x for w in others for x in w.inputs if isinstance(x, Array))
            if j >= k:
                later.update(x for g in then for _, x in g.operands(g.own) if isinstance(x, Array))
        outputs = tuple(x for x in made if x in later)
        executables.append(BlockExecutable(gathers, operations, outputs, whole))
        gathers = following
    return executables
