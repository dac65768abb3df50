"""Traversals by row on the Mosaic GPU backend of Pallas: one warpgroup a row, edge after edge.

A row, or a piece of a hub, is a task (`rows.Tasks`), and each has a block of 128 threads of its
own. A value `[F]` of an edge lies in the registers of the block, so `F` is a multiple of 128.
The pieces of a hub leave their states in a buffer, and a second launch merges them in order.
Here the body of a `TileProgram` maps the values of one edge, `[*shape]` each: no lanes, no padding.

JAX 0.12 interprets these kernels on a CPU, JAX 0.10.2 only lowers them (`can_interpret`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.rows import TaskPlan, Tasks
from pallas_kernels.traversal import (
    Refs,
    TileOperand,
    TileOutput,
    TileProgram,
    accumulator_dtype,
    neutral,
)


@functools.cache
def _imported() -> tuple[Any, list[str]]:
    """The backend, and what speaks against it. It takes half a second to import, so it is imported
    where it is first needed."""
    try:
        from jax.experimental.pallas import mosaic_gpu
    except ImportError as error:
        return None, [f"JAX {jax.__version__} has no Mosaic GPU backend of Pallas: {error}"]
    lacks = {"kernel", "load", "CompilerParams", "LoweringSemantics"} - set(dir(mosaic_gpu))
    said = [f"the Mosaic GPU backend of JAX {jax.__version__} lacks {x}" for x in sorted(lacks)]
    return mosaic_gpu, said


def backend() -> Any:
    """The Mosaic GPU backend of Pallas; None where the installed JAX has none."""
    return _imported()[0]


def missing() -> list[str]:
    """Why this module cannot be used with the installed JAX; empty if it can."""
    return _imported()[1]


WIDTHS = (128, 256, 512, 768, 1024)
"""Sizes of vectors that are taken. All multiples of 128 lower. 384 is left out, since a thread
reads three bfloat16 numbers at once there, an alignment that was not checked on a GPU; 640 and more
were not needed."""

Values = list[Any]


def can_interpret() -> bool:
    """Whether the installed JAX interprets these kernels on a CPU."""
    return hasattr(backend(), "InterpretGPUParams")


def run(
    t: TileProgram,
    plan: TaskPlan,
    neighbor: jax.Array,
    edge: jax.Array,
    operands: Sequence[jax.Array],
    num_rows: int,
    *,
    interpret: bool = False,
    mask: jax.Array | None = None,
) -> list[jax.Array]:
    """The outputs: `[num_rows, *shape]`, 0 on rows without edges, or `[num_edges, *shape]`.

    neighbor, edge: `int[num_edges]`, by slot: the other endpoint and the number of the edge.
    mask: `bool[num_edges]` by number, False on edges that no row owns: 0 is what they write.
    """
    num_edges = edge.shape[0]
    sizes = [num_edges if o.reduction is None else num_rows for o in t.outputs]
    shapes = [_struct(n, o.shape, o.dtype) for n, o in zip(sizes, t.outputs, strict=True)]
    if num_rows == 0 or num_edges == 0:
        return [jnp.zeros(s.shape, s.dtype) for s in shapes]
    tasks = _together([x for x in (plan.long, plan.short) if x.count])
    parts = [_struct(plan.pieces, o.shape, jnp.float32) for o in t.reduced if plan.pieces]
    arrays = [neighbor, edge, *operands]
    outs = _launch(t, tasks, arrays, [*shapes, *parts], "gnnjit_mosaic_rows", interpret)
    outs, states = outs[: len(shapes)], outs[len(shapes) :]
    if plan.pieces:
        outs = _merge_pieces(t, plan, outs, states, interpret)
    if mask is None:
        return outs
    return [
        x
        if o.reduction
        else jnp.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.zeros_like(x))
        for o, x in zip(t.outputs, outs, strict=True)
    ]


def _struct(size: int, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, *shape), dtype)


def _together(tasks: Sequence[Tasks]) -> Tasks:
    """All tasks in one launch: short rows have no programs of their own kind here."""
    if len(tasks) == 1:
        return tasks[0]
    row, start, length = (
        jnp.concatenate([getattr(t, name) for t in tasks]) for name in ("row", "start", "length")
    )
    if all(t.piece is None for t in tasks):
        return Tasks(row, start, length)
    pieces = [jnp.full_like(t.row, -1) if t.piece is None else t.piece for t in tasks]
    return Tasks(row, start, length, jnp.concatenate(pieces))


def _merge_pieces(
    t: TileProgram, plan: TaskPlan, outs: list[Any], states: list[Any], interpret: bool
) -> list[Any]:
    """The rows of hubs, from the states of their pieces: a traversal of its own.

    A kernel cannot write into an array that exists, so XLA puts the few rows in their places.
    """
    pieces = TileProgram(
        enumerate,
        tuple(TileOperand("neighbor", o.shape, np.dtype(np.float32)) for o in t.reduced),
        t.reduced,
    )
    hubs = plan.hubs
    number = jnp.arange(plan.pieces, dtype=hubs.row.dtype)
    tasks = Tasks(jnp.arange(hubs.count, dtype=hubs.row.dtype), hubs.start, hubs.length)
    shapes = [_struct(hubs.count, o.shape, o.dtype) for o in t.reduced]
    arrays = [number, number, *states]
    merged = iter(_launch(pieces, tasks, arrays, shapes, "gnnjit_mosaic_hubs", interpret))
    return [
        x if o.reduction is None else x.at[hubs.row].set(next(merged))
        for o, x in zip(t.outputs, outs, strict=True)
    ]


def _launch(
    t: TileProgram,
    tasks: Tasks,
    arrays: Sequence[jax.Array],
    shapes: Sequence[jax.ShapeDtypeStruct],
    name: str,
    interpret: bool,
) -> list[jax.Array]:
    """One block for each task."""
    own = [x for x in (tasks.row, tasks.start, tasks.length, tasks.piece) if x is not None]
    inputs = len(own) + len(arrays)

    def kernel(*refs: Any) -> None:
        rest = refs[len(own) : inputs]
        some = Refs(refs[: len(own)], rest[0], rest[1], rest[2:], refs[inputs:])
        _MosaicProgram(t, some, lax.axis_index("task"), *_access()).run()

    call = backend().kernel(
        kernel,
        out_type=list(shapes),
        grid=(tasks.count,),
        grid_names=("task",),
        # 0.10.2 has another default.
        compiler_params=backend().CompilerParams(
            lowering_semantics=backend().LoweringSemantics.Warpgroup
        ),
        kernel_name=name,
        interpret=backend().InterpretGPUParams() if interpret else None,
    )
    return list(call(*own, *arrays))


Load = Callable[[Any, Any, tuple[int, ...]], Any]
Store = Callable[[Any, Any, Any], None]


def _access() -> tuple[Load, Store]:
    """How an element of an array is read and written; both changed after 0.10.2."""
    whole = "idx" not in inspect.signature(backend().load).parameters

    def load(ref: Any, at: Any, shape: tuple[int, ...]) -> Any:
        if not shape:  # a scalar, the same in all threads
            return ref[...] if at is None else ref[at]
        if whole:
            return backend().load(ref if at is None else ref.at[at], optimized=False)
        return backend().load(ref, () if at is None else (at,), optimized=False)

    def store(ref: Any, at: Any, value: Any) -> None:
        if value.ndim and hasattr(backend(), "store"):
            backend().store(ref.at[at], value, optimized=False)
        else:
            ref[at] = value

    return load, store


class _MosaicProgram:
    """One task: its edges in order, then one store."""

    def __init__(self, t: TileProgram, refs: Refs, number: Any, load: Load, store: Store):
        self.t, self.refs, self.load, self.store = t, refs, load, store
        first = [ref[number] for ref in refs.tasks]
        self.row, self.start, self.length = first[:3]
        self.piece = first[3] if len(first) > 3 else None
        at = {"row": self.row, "shared": None}
        self.fixed = {
            i: load(ref, at[o.place], o.shape)
            for i, (o, ref) in enumerate(zip(t.operands, refs.operands, strict=True))
            if o.place in at
        }

    def run(self) -> None:
        state = lax.fori_loop(0, self.length, self.step, start(self.t.reduced))
        if self.piece is None:
            self.write_rows(state)
            return
        lax.cond(self.piece < 0, lambda: self.write_rows(state), lambda: self.write_parts(state))

    def step(self, k: Any, state: Values) -> Values:
        index, slot = {}, self.start + k
        if any(o.place == "neighbor" for o in self.t.operands):
            index["neighbor"] = self.refs.neighbor[slot]
        if self.t.needs_edge:
            index["edge"] = self.refs.edge[slot]
        tiles = [
            self.fixed[i] if i in self.fixed else self.load(ref, index[o.place], o.shape)
            for i, (o, ref) in enumerate(zip(self.t.operands, self.refs.operands, strict=True))
        ]
        found = dict(self.t.body(tiles))
        values = [found[i] for i in range(len(found))]
        for o, x, ref in zip(self.t.outputs, values, self.refs.outs, strict=False):
            if o.reduction is None:
                self.store(ref, index["edge"], x.astype(o.dtype))
        kept = [x for o, x in zip(self.t.outputs, values, strict=True) if o.reduction is not None]
        return merge(self.t.reduced, state, kept)

    def write_rows(self, state: Values) -> None:
        """0 where there are no edges."""
        refs = self.refs.outs[: len(self.t.outputs)]
        owned = [r for o, r in zip(self.t.outputs, refs, strict=True) if o.reduction is not None]
        for o, x, ref in zip(self.t.reduced, state, owned, strict=True):
            some = full(self.length > 0, x.shape)
            self.store(ref, self.row, jnp.where(some, x, jnp.zeros_like(x)).astype(o.dtype))

    def write_parts(self, state: Values) -> None:
        for x, ref in zip(state, self.refs.outs[len(self.t.outputs) :], strict=True):
            self.store(ref, self.piece, x)


def full(x: Any, shape: tuple[int, ...]) -> Any:
    """A scalar, or a value of that shape, as one of `shape`: nothing broadcasts by itself."""
    return x if x.shape == shape else lax.broadcast(x, shape)


def start(outputs: Sequence[TileOutput]) -> Values:
    """The states before the first edge, in float32."""
    return [jnp.full(o.shape, neutral(o), accumulator_dtype(o.dtype)) for o in outputs]


_MERGE = {"sum": lax.add, "max": lax.max, "min": lax.min}


def merge(outputs: Sequence[TileOutput], state: Values, values: Values) -> Values:
    """The states after one more edge, or one more piece."""
    return [
        _MERGE[o.reduction](x, y.astype(x.dtype))
        for o, x, y in zip(outputs, state, values, strict=True)
        if o.reduction is not None
    ]


KINDS = tuple(_MERGE)
