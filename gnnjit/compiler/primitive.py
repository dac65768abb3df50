"""A layer's call as one JAX primitive: planned when it is known what is asked of it.

`layer(graph, x, ...)` binds `layer_call` with the program as the user wrote it. What becomes of it:

- lowered as it is (inference): the plan that is fastest forward;
- differentiated: its jvp rule sees which inputs have a tangent, so the plan is the fastest for
  forward and backward together and for these gradients (GraphTensor V-A has this for the first
  layer, whose features need none), and runs as plain JAX around `aggregate`, which is closed under
  differentiation;
- transposed, where it is linear: the plan that is fastest for its gradients, transposed;
- batched: a call that knows of its batches (`Levels`), so that what is transposed is still a layer;
  otherwise it is the plan of inference, batched;
- read in part: the program without the outputs that nobody reads, before any plan is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit._compat import ad, batching
from gnnjit.compiler.debug import print_plan
from gnnjit.cost.machine import platform_here
from gnnjit.cost.sketch import GraphSizes
from gnnjit.errors import LayerError, PlanError
from gnnjit.graph import Graph
from gnnjit.ir.linear import nonlinear
from gnnjit.ir.program import Equation, Program, depends
from gnnjit.ir.space import Space
from gnnjit.lower import sort_edges
from gnnjit.lower.apart import apart
from gnnjit.lower.explicit import gathered, on_each_device
from gnnjit.lower.primitives import lowers_to, runs_alone
from gnnjit.lower.run_program import num_bytes, run_program, shape_of
from gnnjit.planner.candidate import CallShapes
from gnnjit.planner.plan import Problem
from gnnjit.planner.search import plan
from gnnjit.sharding.sharded_graph import AnyGraph, ShardedGraph
from gnnjit.system import autotuning
from gnnjit.system.contexts import Context

layer_p = _compat.Primitive("layer_call")
layer_p.multiple_results = True

Levels = tuple[tuple[tuple[int | None, ...], int], ...]
"""For each `jax.vmap` around a call, innermost first: the axis of each operand, and the size."""

_sizes: Context[GraphSizes | None] = Context(None)


@contextlib.contextmanager
def planned_as(sizes: GraphSizes) -> Iterator[None]:
    """A context in which layers are planned for a graph of these sizes, not those of the arrays."""
    with _sizes(sizes):
        yield


@dataclasses.dataclass(frozen=True)
class Call:
    """What is known of a call when it is traced.

    program: as the user wrote it.
    output_spaces: the spaces in which the outputs were returned.
    slots: which of the arrays each operand is (`v` and `e.src` are often the same).
    padded: whether some edges are padding.
    budget: bytes that the call may need at its peak, if limited.
    label: where the layer stands and its name, for errors; of equal calls, that of any.
    """

    program: Program
    output_spaces: tuple[Space, ...]
    slots: tuple[int, ...]
    padded: bool
    budget: int | None = None
    label: str = dataclasses.field(default="layer", compare=False)

    def problem(
        self,
        graph: AnyGraph,
        arrays: Sequence[Any],
        differentiated: tuple[bool, ...] | None,
        platform: str,
    ) -> Problem:
        sizes = _sizes.value or _sizes_here(graph)
        spaces = self._spaces(arrays)
        outs = [
            shape_of(graph, a, s)
            for a, s in zip(self.program.outputs, self.output_spaces, strict=True)
        ]
        of_arrays = [_device_bytes(graph, x, s) for x, s in zip(arrays, spaces, strict=True)]
        of_outs = [
            _device_bytes(graph, x, s) for x, s in zip(outs, self.output_spaces, strict=True)
        ]
        of_graph = [_device_bytes(graph, x, Space.DST) for x in jax.tree.leaves(graph)]
        least = sum((*of_graph, *of_arrays, *of_outs))
        if differentiated is not None:
            least += sum(n for n, wanted in zip(of_arrays, differentiated, strict=True) if wanted)
            inexact = [jnp.issubdtype(x.dtype, jnp.inexact) for x in outs]
            least += sum(n for n, counts in zip(of_outs, inexact, strict=True) if counts)
        call_shapes = None
        timed = autotuning.is_on() and _sizes.value is None and not isinstance(graph, ShardedGraph)
        if self.budget is not None or timed:
            call_shapes = self.call_shapes(graph, arrays)
        return Problem(
            self.program, self.slots, self.padded, sizes, differentiated, self.budget, platform,
            least, call_shapes,
        )  # fmt: skip

    def call_shapes(self, graph: AnyGraph, arrays: Sequence[Any]) -> CallShapes:
        return CallShapes.of(graph, arrays, self._spaces(arrays), self.output_spaces)

    def _spaces(self, arrays: Sequence[Any]) -> list[Space]:
        """The space of each array."""
        spaces = [Space.DST] * len(arrays)
        for i, v in zip(self.slots, self.program.inputs, strict=True):
            spaces[i] = v.space
        return spaces


def _device_bytes(graph: AnyGraph, x: Any, space: Space) -> int:
    """Bytes of an array of a space, on one device."""
    if space.is_replicated or not isinstance(graph, ShardedGraph):
        return num_bytes(x)
    return num_bytes(x) // graph.num_shards


def _sizes_here(graph: AnyGraph) -> GraphSizes:
    """Vertices and edges that one device works on."""
    if isinstance(graph, ShardedGraph):
        sources = graph.rows("src").length
        return GraphSizes(sources, graph.num_rows, graph.num_slots, graph.num_graphs)
    return GraphSizes(graph.num_src, graph.num_dst, graph.num_edges, graph.num_graphs)


def bind(call: Call, graph: AnyGraph, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of the call, as the user gets them."""
    leaves, treedef = jax.tree.flatten(graph)
    if not isinstance(graph, ShardedGraph):
        leaves, arrays = gathered(leaves), gathered(arrays)
    return layer_p.bind(*leaves, *arrays, call=call, graph_def=(treedef, len(leaves)), levels=())


def _split(args: Sequence[Any], graph_def: Any) -> tuple[Graph, list[Any]]:
    treedef, n = graph_def
    return jax.tree.unflatten(treedef, list(args[:n])), list(args[n:])


def _run(
    call: Call,
    graph: AnyGraph,
    arrays: Sequence[Any],
    differentiated: tuple[bool, ...] | None,
    platform: str,
    linear: set[int] | None = None,
) -> list[Any]:
    """`linear`: the inputs that the result is transposed for."""
    problem = call.problem(graph, arrays, differentiated, platform)
    try:
        chosen = plan(problem)
    except PlanError as error:
        raise PlanError(f"{call.label}: {error}") from None
    print_plan(call.label, problem, chosen, graph, lambda: call.call_shapes(graph, arrays))
    operands = [arrays[i] for i in call.slots]
    program = chosen.program if linear is None else apart(chosen.program, linear)
    return run_program(program, call.output_spaces, graph, operands, chosen.chosen.choices.limit)


def _mapped(run: Callable[..., list[Any]], levels: Levels) -> Callable[..., list[Any]]:
    for axes, size in levels:
        run = jax.vmap(run, in_axes=axes, axis_size=size)
    return run


@layer_p.def_abstract_eval
def _shapes(*args: Any, call: Call, graph_def: Any, levels: Levels) -> list[Any]:
    graph, _ = _split(args, graph_def)
    batch = tuple(size for _, size in reversed(levels))
    return [
        _compat.result_aval(args, (*batch, *x.shape), x.dtype)
        for x in map(functools.partial(shape_of, graph), call.program.outputs, call.output_spaces)
    ]


def _jvp(
    args: Sequence[Any], tangents: Sequence[Any], *, call: Call, graph_def: Any, levels: Levels
) -> tuple[list[Any], list[Any]]:
    n = graph_def[1]
    arrays, tangents = args[n:], tangents[n:]
    differentiated = tuple(
        type(t) is not ad.Zero and jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)
        for x, t in zip(arrays, tangents, strict=True)
    )
    at = [i for i, wanted in enumerate(differentiated) if wanted]

    def run(*every: Any) -> list[Any]:
        planned_for = None if levels else differentiated
        return _run(call, *_split(every, graph_def), planned_for, platform_here())

    def f(*some: Any) -> list[Any]:
        every = list(args)
        for i, x in zip(at, some, strict=True):
            every[n + i] = x
        return _mapped(run, levels)(*every)

    outs, out_tangents = jax.jvp(f, [arrays[i] for i in at], [tangents[i] for i in at])
    touched = depends(call.program, {k for k, i in enumerate(call.slots) if differentiated[i]})
    return outs, [
        tangent
        if live and jnp.issubdtype(out.dtype, jnp.inexact)
        else _compat.zero_tangent(jax.typeof(out))
        for out, tangent, live in zip(outs, out_tangents, touched, strict=True)
    ]


def _transpose(
    cts: Sequence[Any], *args: Any, call: Call, graph_def: Any, levels: Levels
) -> list[Any]:
    n = graph_def[1]
    nonzero = [k for k, ct in enumerate(cts) if type(ct) is not ad.Zero]
    linear = [i for i, x in enumerate(args) if ad.is_undefined_primal(x)]
    call, levels, inputs = _reading(call, levels, nonzero, n)
    at = {number: i for number, i in enumerate(inputs) if i in linear}
    roots = {k for k, slot in enumerate(call.slots) if n + slot in at}
    if (eqn := nonlinear(call.program, roots)) is not None:
        raise LayerError(_not_linear(call, eqn))
    differentiated = tuple(number in at for number in range(n, len(inputs)))

    def run(*every: Any) -> list[Any]:
        return _run(call, *_split(every, graph_def), differentiated, platform_here(), roots)

    def f(*some: Any) -> list[Any]:
        rest = iter(some)
        return _mapped(run, levels)(*(next(rest) if i in linear else args[i] for i in inputs))

    result: list[Any] = [None] * len(args)
    for i in linear:
        result[i] = ad.Zero(args[i].aval)
    if nonzero and at:
        transposed = jax.linear_transpose(f, *(args[i].aval for i in at.values()))
        for i, ct in zip(at.values(), transposed([cts[k] for k in nonzero]), strict=True):
            result[i] = ct
    return result


def _not_linear(call: Call, eqn: Equation) -> str:
    where = f" at {eqn.location}" if eqn.location else ""
    return (
        f"{call.label}: the layer is transposed (by jax.linear_transpose or a linear solver), but "
        f"it is not linear in what it is transposed for: {eqn.op.name}{where}. Solvers take a "
        "layer that is linear in its unknowns; of any other, jax.vjp transposes the derivative"
    )


def _batch(
    args: Sequence[Any], dims: Sequence[Any], *, call: Call, graph_def: Any, levels: Levels
) -> tuple[list[Any], list[int]]:
    def f(*some: Any) -> list[Any]:
        count = next(x.shape[d] for x, d in zip(some, dims, strict=True) if d is not None)
        every = (*levels, (tuple(dims), count))
        return layer_p.bind(*some, call=call, graph_def=graph_def, levels=every)

    outs = [0] * len(call.output_spaces)
    return on_each_device(f, args, dims, outs), outs


def _no_jet(call: Call, graph_def: Any, levels: Levels) -> Any:
    raise LayerError(
        f"{call.label}: jax.experimental.jet has no rule for a layer; nest jax.jvp, once for each "
        "order, which layers take"
    )


def _drop(read: tuple[int, ...], params: dict[str, Any]) -> _compat.Kept:
    n = params["graph_def"][1]
    call, levels, inputs = _reading(params["call"], params["levels"], read, n)
    return inputs, read, {**params, "call": call, "levels": levels}


def _reading(
    call: Call, levels: Levels, outputs: Sequence[int], leaves: int
) -> tuple[Call, Levels, list[int]]:
    """A call for some of its outputs, and the operands that it reads for them, by number: all
    `leaves` of the graph, and some arrays."""
    program, inputs = call.program.select(outputs)
    slots = [call.slots[i] for i in inputs]
    arrays = sorted(set(slots))
    spaces = tuple(call.output_spaces[k] for k in outputs)
    slots = tuple(arrays.index(i) for i in slots)
    read = [*range(leaves), *(leaves + i for i in arrays)]
    levels = tuple((tuple(axes[i] for i in read), size) for axes, size in levels)
    call = dataclasses.replace(call, program=program, output_spaces=spaces, slots=slots)
    return call, levels, read


def _lower(*args: Any, call: Call, graph_def: Any, levels: Levels, platform: str) -> list[Any]:
    def run(*every: Any) -> list[Any]:
        return _run(call, *_split(every, graph_def), None, platform)

    return _mapped(run, levels)(*args)


def written_out(params: Mapping[str, Any]) -> Callable[..., list[Any]]:
    """What an equation of `layer_call` with these parameters stands for, as it is lowered here."""
    return functools.partial(_lower, platform=platform_here(), **params)


ad.primitive_jvps[layer_p] = _jvp
ad.primitive_transposes[layer_p] = _transpose
batching.primitive_batchers[layer_p] = _batch
_compat.drop_unused(layer_p, _drop)
_compat.refuse_jet(layer_p, _no_jet)
runs_alone(layer_p, lambda call, **_: call.label)
lowers_to(layer_p, _lower)
sort_edges.register()
