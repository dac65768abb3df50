"""One traversal over all edges in the order in which they were given.

For what no row owns: values that stay on the edges, and reductions into values shared by the whole
graph, such as the gradient of a weight. Each program walks over its share of the edges and leaves
what it reduced in a buffer; the second stage adds the programs up in a fixed order. No atomics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import traversal, triton
from pallas_kernels.rows import TileConfig
from pallas_kernels.traversal import TileOutput, TileProgram, Tiles

MAX_PROGRAMS = 512
"""Programs that leave a partial result: a few for each multiprocessor."""

WIDE = 32
"""Scalars of a sum from which the lanes are added up in each step, not in the end."""


def run(
    t: TileProgram,
    row: jax.Array,
    neighbor: jax.Array,
    mask: jax.Array | None,
    operands: Sequence[jax.Array],
    config: TileConfig,
    *,
    interpret: bool = False,
) -> list[jax.Array]:
    """The outputs: `[num_edges, *shape]`, 0 where `mask` is False, or reduced: `[*shape]`.

    row, neighbor: `int[num_edges]`, both endpoints of each edge; mask: `bool[num_edges]`, False
        on padding.
    """
    num_edges = row.shape[0]
    if num_edges == 0:
        shapes = [o.shape if o.reduction else (0, *o.shape) for o in t.outputs]
        return [jnp.zeros(s, o.dtype) for s, o in zip(shapes, t.outputs, strict=True)]
    blocks = -(-num_edges // config.lanes)
    programs = blocks if not t.reduced else min(blocks, MAX_PROGRAMS)
    shapes = [
        jax.ShapeDtypeStruct((num_edges, *o.shape), o.dtype)
        if o.reduction is None
        else jax.ShapeDtypeStruct((programs, *o.shape), traversal.accumulator_dtype(o.dtype))
        for o in t.outputs
    ]
    inputs = [row, neighbor, *([] if mask is None else [mask]), *operands]

    def kernel(*refs: Any) -> None:
        ends, rest = refs[: len(inputs) - len(operands)], refs[len(inputs) - len(operands) :]
        _EdgesProgram(t, ends, rest, num_edges, blocks, programs, config.lanes).run()

    outs = triton.launch(
        kernel,
        programs,
        inputs,
        shapes,
        name="gnnjit_edges",
        warps=config.warps,
        stages=config.stages,
        interpret=interpret,
    )
    some = num_edges > 0 if mask is None else jnp.any(mask)
    return [_total(o, x, some) for o, x in zip(t.outputs, outs, strict=True)]


def _total(o: TileOutput, x: jax.Array, some: Any) -> jax.Array:
    """The second stage; 0 where there is no edge at all."""
    if o.reduction is None:
        return x
    whole = {"sum": jnp.sum, "outer_sum": jnp.sum, "max": jnp.max, "min": jnp.min}
    total = whole[o.reduction](x, axis=0)
    return jnp.where(some, total, jnp.zeros_like(total)).astype(o.dtype)


class _EdgesProgram:
    """One program: every `programs`-th block of edges."""

    def __init__(
        self,
        t: TileProgram,
        ends: Sequence[Any],
        refs: Sequence[Any],
        num_edges: int,
        blocks: int,
        programs: int,
        lanes: int,
    ):
        self.t, self.ends, self.lanes = t, ends, lanes
        self.operands, self.outs = refs[: len(t.operands)], refs[len(t.operands) :]
        self.num_edges, self.blocks, self.programs = num_edges, blocks, programs
        # Lanes of wide sums take more registers than a step's sum takes time.
        self.at_once = max([math.prod(o.shape) for o in t.reduced], default=0) >= WIDE
        # In the type of the indices: 32 bits do not count more than 2**31 edges.
        self.index = ends[0].dtype
        self.number = triton.program_number().astype(self.index)
        self.shared = {
            i: traversal.read(ref, None, o.shape, None)
            for i, (o, ref) in enumerate(zip(t.operands, self.operands, strict=True))
            if o.place == "shared"
        }

    def run(self) -> None:
        reduced = self.t.reduced
        if not reduced:
            self.step(0, [])
            return
        steps = (self.blocks - self.number + self.programs - 1) // self.programs
        state = lax.fori_loop(0, steps, self.step, self.start())
        refs = [r for o, r in zip(self.t.outputs, self.outs, strict=True) if o.reduction]
        at, here = jnp.full((1,), self.number), jnp.ones((1,), jnp.bool_)
        if not self.at_once:
            state = traversal.merge_lanes(reduced, state)
        for o, x, ref in zip(reduced, state, refs, strict=True):
            traversal.write(ref, at, o.shape, here, x)

    def start(self) -> Tiles:
        return traversal.start(self.t.reduced, 1 if self.at_once else self.lanes)

    def step(self, k: Any, state: Tiles) -> Tiles:
        lane = jnp.arange(self.lanes, dtype=self.index)
        edge = (k * self.programs + self.number) * self.lanes + lane
        inside = edge < self.num_edges
        keep = inside
        if len(self.ends) > 2:
            keep = inside & triton.load(self.ends[2], (edge,), inside, False)
        kept: dict[int, Any] = {}
        for i, x in self.t.body(self.read(edge, inside)):
            o = self.t.outputs[i]
            if o.reduction is None:
                x = traversal.spread(x, self.lanes)
                valid = jnp.broadcast_to(traversal.lift(keep, x.ndim), x.shape)
                x = jnp.where(valid, x, jnp.zeros_like(x))
                traversal.write(self.outs[i], edge, o.shape, inside, x)
            else:
                kept[i] = x
        reduced = self.t.reduced
        new = traversal.states(reduced, [kept[i] for i in sorted(kept)], keep)
        new = traversal.merge_lanes(reduced, new) if self.at_once else new
        return traversal.merge(reduced, state, new)

    def read(self, edge: Any, inside: Any) -> Tiles:
        index = {"edge": edge}
        for place, ref in zip(("row", "neighbor"), self.ends, strict=False):
            if any(o.place == place for o in self.t.operands):
                index[place] = triton.load(ref, (edge,), inside, 0)
        return [
            self.shared[i]
            if i in self.shared
            else traversal.read(ref, index[o.place], o.shape, inside)
            for i, (o, ref) in enumerate(zip(self.t.operands, self.operands, strict=True))
        ]
