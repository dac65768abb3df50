"""A layer's call as one JAX primitive: planned when it is known what is asked of it.

`layer(graph, x, ...)` binds `layer_call` with the program as the user wrote it. What becomes of it:

- lowered as it is (inference): the plan that is fastest forward;
- differentiated: its jvp rule sees which inputs have a tangent, so the plan is the fastest for
  forward and backward together and for these gradients (GraphTensor V-A has this for the first
  layer, whose features need none), and runs as plain JAX around `aggregate`, which is closed under
  differentiation;
- batched: the plan of inference, batched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit import _compat, tuning
from gnnjit._compat import ad, batching
from gnnjit.contexts import Context
from gnnjit.cost.machine import platform_here
from gnnjit.cost.sketch import Sizes
from gnnjit.errors import PlanError
from gnnjit.graph import Graph
from gnnjit.graph.sharded import AnyGraph, ShardedGraph
from gnnjit.ir.program import Program, depends
from gnnjit.ir.space import Space
from gnnjit.judge import Layout
from gnnjit.lower.primitives import lowers_to, runs_alone
from gnnjit.planner import plan
from gnnjit.plans import Problem
from gnnjit.run_program import num_bytes, run_program, shape_of

layer_p = _compat.Primitive("layer_call")
layer_p.multiple_results = True

_sizes: Context[Sizes | None] = Context(None)


@contextlib.contextmanager
def planned_as(sizes: Sizes) -> Iterator[None]:
    """Within it, layers are planned for a graph of these sizes, whatever those of the arrays."""
    with _sizes(sizes):
        yield


@dataclasses.dataclass(frozen=True)
class Call:
    """What is known of a call when it is traced.

    program: as the user wrote it.
    given: the spaces in which the outputs were returned.
    slots: which of the arrays each operand is (`v` and `e.src` are often the same).
    padded: whether some edges are padding.
    budget: bytes that the call may need at its peak, if limited.
    label: where the layer stands and its name, for errors; of equal calls, that of any.
    """

    program: Program
    given: tuple[Space, ...]
    slots: tuple[int, ...]
    padded: bool
    budget: int | None = None
    label: str = dataclasses.field(default="layer", compare=False)

    def problem(
        self,
        graph: AnyGraph,
        arrays: Sequence[Any],
        moving: tuple[bool, ...] | None,
        platform: str,
    ) -> Problem:
        sizes = _sizes.value or _sizes_here(graph)
        spaces = [Space.DST] * len(arrays)
        for i, v in zip(self.slots, self.program.inputs, strict=True):
            spaces[i] = v.space
        outs = [
            shape_of(graph, a, s) for a, s in zip(self.program.outputs, self.given, strict=True)
        ]
        of_arrays = [_device_bytes(graph, x, s) for x, s in zip(arrays, spaces, strict=True)]
        of_outs = [_device_bytes(graph, x, s) for x, s in zip(outs, self.given, strict=True)]
        of_graph = [_device_bytes(graph, x, Space.DST) for x in jax.tree.leaves(graph)]
        least = sum((*of_graph, *of_arrays, *of_outs))
        if moving is not None:
            least += sum(n for n, moves in zip(of_arrays, moving, strict=True) if moves)
            inexact = [jnp.issubdtype(x.dtype, jnp.inexact) for x in outs]
            least += sum(n for n, counts in zip(of_outs, inexact, strict=True) if counts)
        layout = None
        timed = tuning.is_on() and _sizes.value is None and not isinstance(graph, ShardedGraph)
        if self.budget is not None or timed:
            layout = Layout.of(graph, arrays, spaces, self.given)
        return Problem(
            self.program, self.slots, self.padded, sizes, moving, self.budget, platform, least,
            layout,
        )  # fmt: skip


def _device_bytes(graph: AnyGraph, x: Any, space: Space) -> int:
    """Of an array of a space, on one device."""
    if space is Space.SHARED or not isinstance(graph, ShardedGraph):
        return num_bytes(x)
    return num_bytes(x) // graph.num_shards


def _sizes_here(graph: AnyGraph) -> Sizes:
    """Of what one device works on."""
    if isinstance(graph, ShardedGraph):
        return Sizes(graph.num_rows, graph.num_rows, graph.num_slots)
    return Sizes(graph.num_src, graph.num_dst, graph.num_edges)


def bind(call: Call, graph: AnyGraph, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of the call, as the user gets them."""
    leaves, treedef = jax.tree.flatten(graph)
    return layer_p.bind(*leaves, *arrays, call=call, graph_def=(treedef, len(leaves)))


def _split(args: Sequence[Any], graph_def: Any) -> tuple[Graph, list[Any]]:
    treedef, n = graph_def
    return jax.tree.unflatten(treedef, list(args[:n])), list(args[n:])


def _run(
    call: Call,
    graph: AnyGraph,
    arrays: Sequence[Any],
    moving: tuple[bool, ...] | None,
    platform: str,
) -> list[Any]:
    try:
        chosen = plan(call.problem(graph, arrays, moving, platform))
    except PlanError as error:
        raise PlanError(f"{call.label}: {error}") from None
    operands = [arrays[i] for i in call.slots]
    return run_program(chosen.program, call.given, graph, operands, chosen.chosen.choices.limit)


@layer_p.def_abstract_eval
def _shapes(*args: Any, call: Call, graph_def: Any) -> list[Any]:
    graph, _ = _split(args, graph_def)
    return [
        _compat.shaped_array(x.shape, x.dtype)
        for x in map(functools.partial(shape_of, graph), call.program.outputs, call.given)
    ]


def _jvp(
    args: Sequence[Any], tangents: Sequence[Any], *, call: Call, graph_def: Any
) -> tuple[list[Any], list[Any]]:
    graph, arrays = _split(args, graph_def)
    given = tangents[graph_def[1] :]
    moving = tuple(
        type(t) is not ad.Zero and jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)
        for x, t in zip(arrays, given, strict=True)
    )
    at = [i for i, moves in enumerate(moving) if moves]

    def f(*some: Any) -> list[Any]:
        every = list(arrays)
        for i, x in zip(at, some, strict=True):
            every[i] = x
        return _run(call, graph, every, moving, platform_here())

    outs, steps = jax.jvp(f, [arrays[i] for i in at], [given[i] for i in at])
    touched = depends(call.program, {k for k, i in enumerate(call.slots) if moving[i]})
    return outs, [
        step if live and jnp.issubdtype(out.dtype, jnp.inexact) else _compat.zero_tangent(out)
        for out, step, live in zip(outs, steps, touched, strict=True)
    ]


def _batch(
    args: Sequence[Any], dims: Sequence[Any], *, call: Call, graph_def: Any
) -> tuple[list[Any], list[int]]:
    def f(*some: Any) -> list[Any]:
        graph, arrays = _split(some, graph_def)
        return _run(call, graph, arrays, None, platform_here())

    outs = jax.vmap(f, in_axes=tuple(dims))(*args)
    return outs, [0] * len(outs)


def _lower(*args: Any, call: Call, graph_def: Any, platform: str) -> list[Any]:
    graph, arrays = _split(args, graph_def)
    return _run(call, graph, arrays, None, platform)


def written_out(params: Mapping[str, Any]) -> Callable[..., list[Any]]:
    """What an equation of `layer_call` with these parameters stands for, as it is lowered here."""
    return functools.partial(_lower, platform=platform_here(), **params)


ad.primitive_jvps[layer_p] = _jvp
batching.primitive_batchers[layer_p] = _batch
runs_alone(layer_p)
lowers_to(layer_p, _lower)
