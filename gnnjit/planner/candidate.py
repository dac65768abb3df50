"""One plan of a call, compiled alone: what it needs at its peak, by its own memory analysis."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from gnnjit.ir.program import Program
from gnnjit.ir.space import Space
from gnnjit.lower.run_program import run_program
from gnnjit.sharding.sharded_graph import AnyGraph, ShardedGraph
from gnnjit.system.contexts import cached


@dataclasses.dataclass(frozen=True)
class CallShapes:
    """Shapes and dtypes of a call's graph and arrays, and the spaces of its outputs."""

    graph_def: Any
    graph: tuple[jax.ShapeDtypeStruct, ...]
    arrays: tuple[jax.ShapeDtypeStruct, ...]
    output_spaces: tuple[Space, ...]

    @staticmethod
    def of(
        graph: AnyGraph,
        arrays: Sequence[Any],
        spaces: Sequence[Space],
        output_spaces: tuple[Space, ...],
    ) -> CallShapes:
        """`spaces`: of the arrays."""
        leaves, treedef = jax.tree.flatten(graph)
        places = [_place(graph, space) for space in (*(Space.DST for _ in leaves), *spaces)]
        every = tuple(map(_shape, (*leaves, *arrays), places))
        return CallShapes(treedef, every[: len(leaves)], every[len(leaves) :], output_spaces)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One plan of a call: an optimised program and the limit of its chunks.

    slots, differentiated: as in `Problem`.
    """

    program: Program
    limit: int | None
    slots: tuple[int, ...]
    differentiated: tuple[bool, ...] | None
    shapes: CallShapes


SPARE = 1 << 10
"""Bytes added to what was measured, for the loss that a caller makes of the results."""


def is_available(platform: str) -> bool:
    """Whether what is compiled here is what runs on `platform`."""
    here = jax.default_backend()
    return here == platform or (here == "gpu" and platform in ("cuda", "rocm"))


@cached(maxsize=4096)
def peak(candidate: Candidate) -> int | None:
    """Bytes of arguments, results and temporaries of the call alone; with its gradient if one is
    taken. None where the compiler does not tell."""
    shapes = candidate.shapes
    run = functools.partial(_run, candidate)
    compiled = jax.jit(run, keep_unused=True).lower(shapes.graph, shapes.arrays, _cts(candidate))
    found = compiled.compile().memory_analysis()
    if found is None:
        return None
    return int(
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
        + SPARE
    )


def alone(candidate: Candidate) -> Callable[..., Any]:
    """The call alone, with its gradient if one is taken: a function of the leaves of the graph and
    the arrays. The results are their own cotangents: with others, forward and backward overlap, as
    they cannot in training."""
    return functools.partial(_run, candidate, cts=None)


def compiled(candidate: Candidate) -> Any:
    """`alone`, compiled for the shapes of the call."""
    run = jax.jit(alone(candidate), keep_unused=True)
    return run.lower(candidate.shapes.graph, candidate.shapes.arrays).compile()


def _shape(x: Any, place: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)


def _place(graph: AnyGraph, space: Space) -> NamedSharding | None:
    """Where arrays of a space lie, if they are on several devices: what each needs then counts."""
    if not isinstance(graph, ShardedGraph):
        return None
    return graph.sharding_of(not space.is_replicated)


def _forward(candidate: Candidate, leaves: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    shapes = candidate.shapes
    graph = jax.tree.unflatten(shapes.graph_def, leaves)
    operands = [arrays[i] for i in candidate.slots]
    return run_program(candidate.program, shapes.output_spaces, graph, operands, candidate.limit)


def _cts(candidate: Candidate) -> list[jax.ShapeDtypeStruct]:
    """Shapes of the cotangents that arrive."""
    if candidate.differentiated is None:
        return []
    outs = jax.eval_shape(
        functools.partial(_forward, candidate),
        candidate.shapes.graph,
        candidate.shapes.arrays,
    )
    graph = jax.tree.unflatten(candidate.shapes.graph_def, candidate.shapes.graph)
    return [
        _shape(o, _place(graph, space))
        for o, space in zip(outs, candidate.shapes.output_spaces, strict=True)
        if jnp.issubdtype(o.dtype, jnp.inexact)
    ]


def _run(candidate: Candidate, leaves: Any, arrays: Any, cts: Any) -> Any:
    """The outputs, and the gradients if any are taken; `cts`: the cotangents of the floating-point
    outputs, None for these themselves."""
    if candidate.differentiated is None:
        return _forward(candidate, leaves, arrays)
    at = [i for i, wanted in enumerate(candidate.differentiated) if wanted]

    def f(*some: Any) -> list[Any]:
        every = list(arrays)
        for i, x in zip(at, some, strict=True):
            every[i] = x
        return _forward(candidate, leaves, every)

    outs, pull = jax.vjp(f, *(arrays[i] for i in at))
    floats = [o for o in outs if jnp.issubdtype(o.dtype, jnp.inexact)]
    arriving = iter(floats if cts is None else cts)
    every = [
        next(arriving)
        if jnp.issubdtype(o.dtype, jnp.inexact)
        else np.zeros(o.shape, jax.dtypes.float0)
        for o in outs
    ]
    return outs, pull(every)
