"""Made-up inputs of the right sizes, to time a kernel while the program that needs it is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.graph.row_tasks import PIECE, SHORT
from gnnjit.lower.pallas.tune import Timer, seconds
from gnnjit.system.autotuning import untraced
from pallas_kernels import edges, rows
from pallas_kernels.rows import TileConfig
from pallas_kernels.traversal import TileProgram


def rows_timer(
    plan: rows.TaskPlan,
    num_rows: int,
    num_edges: int,
    operands: Sequence[Any],
    interpret: bool = False,
) -> Callable[[TileProgram], Timer]:
    """Times the launches of `plan`; it and `operands` are traced, only their shapes count."""

    def of(t: TileProgram) -> Timer:
        rng = np.random.default_rng(0)
        arrays = made_up(operands, rng)
        far = max([a.shape[0] for a, o in zip(arrays, t.operands, strict=True)
                   if o.place == "neighbor"], default=1)  # fmt: skip
        neighbor = rng.integers(0, max(far, 1), num_edges).astype(np.int32)
        slots = np.arange(num_edges, dtype=np.int32)

        def run(config: TileConfig) -> float:
            def call(plan: Any, neighbor: Any, edge: Any, arrays: Any) -> Any:
                tiles = rows.RowTiles.alike(config)
                return rows.run(
                    t, plan, neighbor, edge, arrays, num_rows, tiles, interpret=interpret
                )

            return _time(call, _plan_like(plan, num_rows, num_edges), neighbor, slots, arrays)

        return run

    return of


def edges_timer(
    num_rows: int, num_far: int, num_edges: int, operands: Sequence[Any], interpret: bool = False
) -> Callable[[TileProgram], Timer]:
    """Times the kernel of all edges."""

    def of(t: TileProgram) -> Timer:
        rng = np.random.default_rng(0)
        arrays = made_up(operands, rng)
        row = rng.integers(0, max(num_rows, 1), num_edges).astype(np.int32)
        far = rng.integers(0, max(num_far, 1), num_edges).astype(np.int32)

        def run(config: TileConfig) -> float:
            def call(row: Any, far: Any, arrays: Any) -> Any:
                return edges.run(t, row, far, None, arrays, config, interpret=interpret)

            return _time(call, row, far, arrays)

        return run

    return of


def _time(call: Callable[..., Any], *args: Any) -> float:
    """Compiled and run now, although something else is being traced."""

    def work() -> float:
        on_device = jax.device_put(args)
        compiled = jax.jit(call)
        return seconds(lambda: compiled(*on_device))

    return untraced(work)


def made_up(operands: Sequence[Any], rng: np.random.Generator) -> list[Any]:
    """Arrays like `operands`, floats random (zeros would be cheap to add up)."""
    out = []
    for x in operands:
        if jnp.issubdtype(x.dtype, jnp.floating):
            out.append(rng.standard_normal(x.shape, np.float32).astype(x.dtype))
        else:
            out.append(np.zeros(x.shape, x.dtype))
    return out


def _plan_like(plan: rows.TaskPlan, num_rows: int, num_edges: int) -> rows.TaskPlan:
    """As many tasks of each kind as `plan` has, each of about the average length."""
    short, long, hubs = plan.short.count, plan.long.count, plan.hubs.count
    few = min(SHORT, num_edges // max(short + long, 1))
    many = min(PIECE, (num_edges - short * few) // max(long, 1))
    number = np.arange(long)
    piece = np.where(number < plan.pieces, number, -1) if plan.pieces else None
    each = plan.pieces // max(hubs, 1)

    def tasks(count: int, length: int, first: int, piece: Any = None) -> rows.Tasks:
        at = np.arange(count)
        start = at * length % max(num_edges - length + 1, 1)
        columns: Any = [(first + at) % max(num_rows, 1), start, np.full(count, length)]
        columns += [] if piece is None else [piece]
        return rows.Tasks(*(c.astype(np.int32) for c in columns))

    merged = tasks(hubs, each, 0)
    return rows.TaskPlan(
        tasks(long, many, hubs, piece), tasks(short, few, hubs + long), merged, plan.pieces
    )
