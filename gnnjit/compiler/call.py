"""One call of a layer: checked, traced, then run, interpreted or planned for."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit.compiler.primitive import Call, bind
from gnnjit.cost.machine import platform_here
from gnnjit.errors import GnnjitError, LayerError, PlanError, shortened
from gnnjit.frontend.arguments import checked
from gnnjit.frontend.by_hand import by_hand, muted
from gnnjit.frontend.state import active_linen, names_of, unchanged
from gnnjit.frontend.trace_layer import Arguments, TracedLayer, call_once, leak_message, trace
from gnnjit.graph import Bipartite, Graph, TypedGraph
from gnnjit.graph.parted import PartedTypedGraph
from gnnjit.ir.interpret import interpret
from gnnjit.ir.program import Pool, Program
from gnnjit.ir.space import Space
from gnnjit.lower import members
from gnnjit.lower.run_program import incidence, outputs, real_edges
from gnnjit.passes.over_pairs import over_pairs
from gnnjit.passes.place_in_smallest_space import PlaceInSmallestSpace
from gnnjit.passes.shield_unread_vertices import ShieldUnreadVertices
from gnnjit.planner.plan import Problem
from gnnjit.planner.search import plan
from gnnjit.sharding.sharded_graph import AnyGraph, ShardedGraph
from gnnjit.sharding.sharded_typed_graph import ShardedTypedGraph
from gnnjit.system.contexts import Context
from gnnjit.system.memory_budget import default_budget

PAIR_SECONDS = 3e-8
"""For each pair of edges that were made inside `jit`: it is picked, and sorted by either end. (Two
cores of an EPYC took 15 ns.)"""


@dataclasses.dataclass(frozen=True)
class Definition:
    """A decorated function: what to trace, which keywords are static, where it stands.

    budget: bytes that one call may need at its peak, if it has a limit of its own.
    """

    fn: Callable[..., Any]
    statics: tuple[str, ...]
    where: str
    budget: int | None = None

    @property
    def name(self) -> str:
        return getattr(self.fn, "__qualname__", "layer").replace("<locals>.", "")

    @property
    def is_method(self) -> bool:
        try:
            return next(iter(inspect.signature(self.fn).parameters), "") == "self"
        except (TypeError, ValueError):  # of a builtin
            return False


@dataclasses.dataclass(frozen=True)
class TracedCall:
    """One call of a layer, traced: everything that running or explaining it needs.

    pairs: one of each two edges, where the graph knows them (`Graph.pairs`).
    """

    definition: Definition
    fn: Callable[..., Any]
    graph: AnyGraph
    arguments: Arguments
    traced: TracedLayer
    pairs: Graph | None = None

    @property
    def program(self) -> Program:
        """As the user wrote it, before any pass."""
        return self.traced.program

    def input_names(self) -> dict[int, str]:
        """What the module that the layer is a method of calls its parameters, by the number of
        the program's input."""
        owner = next(iter(getattr(self.fn, "args", ())), None)
        names = enumerate(names_of(owner, self.traced.operands))
        return {number: name for number, name in names if name is not None}

    @property
    def output_spaces(self) -> tuple[Space, ...]:
        """The spaces in which the outputs were returned."""
        return tuple(o.space for o in self.program.outputs)

    @property
    def padded(self) -> bool:
        """Whether some edges are padding, and so perhaps some vertices; not of a sharded graph, of
        whose padding `call` makes zeros."""
        return not isinstance(self.graph, ShardedGraph) and self.graph.mask is not None

    @property
    def pools(self) -> bool:
        """Whether vertices are reduced into graphs."""
        return any(isinstance(e.op, Pool) for e in self.program.equations)

    def without_padding(self, x: Any, space: Space) -> Any:
        """`x` with zeros for vertices that are padding, where they take part: on shards, and in a
        layer that reduces vertices into graphs. What they give reaches no result, but 0 times the
        slope of a NaN would reach a gradient."""
        if not space.is_vertex:
            return x
        if self.pools:
            return members.without_padding(self.graph, x, space)
        if not isinstance(self.graph, ShardedGraph):
            return x
        return self.graph.without_padding(x, space)

    def run(self) -> Any:
        if _reference.value:
            shield = ShieldUnreadVertices(self.padded)
            outs = self.interpret(PlaceInSmallestSpace()(shield(self.program)))
        elif (outs := self.by_hand()) is not None:
            pass
        else:
            chosen = self.chosen()
            arrays, call = chosen.call()
            outs = _run(call, chosen.graph, arrays)
        return jax.tree.unflatten(self.traced.out_tree, outs)

    def chosen(self) -> TracedCall:
        """The call that runs: this one, or the one over pairs of edges that computes the same,
        where it is predicted to be faster in training, with the time to find pairs of edges that
        were made inside `jit`. On GPUs nobody has measured whether it is.
        """
        pairs = self.pairs if platform_here() == "cpu" else None
        if pairs is None or (other := self.over_pairs()) is None:
            return self
        found = 0.0 if pairs.dropped is None else PAIR_SECONDS * pairs.num_edges
        return other if other.seconds() + found < self.seconds() else self

    def over_pairs(self) -> TracedCall | None:
        """The same over pairs of edges; None where the graph knows of none, or the program asks for
        single edges."""
        if self.pairs is None:
            return None
        arrays, slots = _distinct(self.traced.operands)
        if (found := over_pairs(self.program, slots)) is None:
            return None
        program, slots = found
        traced = TracedLayer(program, tuple(arrays[i] for i in slots), self.traced.out_tree)
        return dataclasses.replace(self, graph=self.pairs, traced=traced, pairs=None)

    def seconds(self) -> float:
        """What a training step is predicted to take; infinite where no plan fits the budget."""
        floats = [x for x in self.traced.operands if jnp.issubdtype(x.dtype, jnp.inexact)]
        problem = self.problem(floats)
        if problem.budget is None:  # nothing is to be timed for it
            problem = dataclasses.replace(problem, call_shapes=None)
        try:
            return plan(problem).chosen.seconds
        except PlanError:
            return math.inf

    def by_hand(self) -> list[Any] | None:
        """The outputs of running the function itself, edge after edge; None unless
        `jax.disable_jit` asks for it and the numbers are known."""
        if not _compat.jit_is_disabled():
            return None
        own = self.definition
        return by_hand(
            self.fn, self.arguments, self.traced, self.graph, name=own.name, where=own.where
        )

    def call(self) -> tuple[list[Any], Call]:
        """The distinct arrays of the call, and what is known of it."""
        inputs, (arrays, slots) = self.program.inputs, _distinct(self.traced.operands)
        spaces: dict[int, set[Space]] = {}
        for slot, v in zip(slots, inputs, strict=True):
            spaces.setdefault(slot, set()).add(v.space)
        for slot, found in spaces.items():
            # An array that is also one of edges, or of two vertex sets, has no padding of its own.
            if len(found) == 1 or (all(s.is_vertex for s in found) and not self.graph.bipartite):
                arrays[slot] = self.without_padding(arrays[slot], next(iter(found)))
        own = self.definition
        budget = default_budget() if own.budget is None else own.budget
        label = f"{own.where}: {own.name}"
        return arrays, Call(self.program, self.output_spaces, slots, self.padded, budget, label)

    def problem(self, differentiated: Any = None) -> Problem:
        """What a plan is made for, on the default backend: with gradients of the arrays in the tree
        `differentiated`, or none."""
        arrays, call = self.call()
        wanted = None
        if differentiated is not None:
            ids = {id(x) for x in jax.tree.leaves(differentiated)}
            wanted = tuple(id(x) in ids for x in arrays)
        return call.problem(self.graph, arrays, wanted, platform_here())

    def why_no_gradient(self, differentiated: Sequence[int]) -> str | None:
        """What JAX says if plain JAX has no gradient of the outputs with respect to these operands
        (a loop of unknown length has none), else None."""

        def loss(some: Sequence[Any]) -> Any:
            every = list(self.traced.operands)
            for i, x in zip(differentiated, some, strict=True):
                every[i] = x
            outs = self.interpret(self.program, every)
            return [o for o in outs if jnp.issubdtype(o.dtype, jnp.inexact)]

        def gradient(some: Sequence[Any]) -> Any:
            outs, back = jax.vjp(loss, some)
            return back(outs)

        try:
            jax.eval_shape(gradient, [self.traced.operands[i] for i in differentiated])
        except (NotImplementedError, TypeError, ValueError) as error:
            if isinstance(error, GnnjitError):
                raise
            return shortened(str(error).partition("\n")[0], 300)
        return None

    def run_recorded(self) -> Any:
        """`run`, seen by `recorded_calls`; a leaked tracer is an error in the user's terms."""
        for calls in getattr(_state, "recorders", []):
            calls.append(self)
        try:
            return self.run()
        except jax.errors.UnexpectedTracerError as error:  # a captured value of an earlier trace
            message = leak_message(self.definition.name, self.definition.where)
            raise LayerError(message) from error

    def interpret(self, program: Program, operands: Sequence[Any] | None = None) -> list[Any]:
        """The outputs of `program` (this one, after any pass), edge by edge."""
        edges = incidence(self.graph)
        arrays = [
            real_edges(self.graph, x) if v.space is Space.EDGE else x
            for v, x in zip(program.inputs, operands or self.traced.operands, strict=True)
        ]
        if self.pools:
            pairs = zip(program.inputs, arrays, strict=True)
            arrays = [self.without_padding(x, v.space) for v, x in pairs]
        outs = interpret(program, edges, arrays)
        return outputs(self.graph, program, self.output_spaces, outs)


_state = threading.local()
_reference = Context(False)


def location(fn: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}" if code else "?"


@contextlib.contextmanager
def reference() -> Iterator[None]:
    """A context in which layers run on plain gathers and `jax.ops.segment_sum`, edge by edge.

    It is what to compare with. Work on one endpoint is still done once per vertex, as a careful
    user writes it by hand. A function that `jax.jit` has compiled outside is compiled anew within
    it, and the other way round. It acts in this thread, and decides while a function is traced:
    what was lowered or compiled ahead of time stays as it is.
    """
    with _reference(True):
        yield


def is_reference() -> bool:
    """Whether layers run edge by edge (`reference`)."""
    return _reference.value


@contextlib.contextmanager
def recorded_calls() -> Iterator[list[TracedCall]]:
    """Collects every layer call that is made (or traced) within it."""
    calls: list[TracedCall] = []
    recorders = _state.__dict__.setdefault("recorders", [])
    recorders.append(calls)
    try:
        yield calls
    finally:
        recorders.remove(calls)


def is_layer(target: Any) -> bool:
    """Whether `gnnjit.layer` made it."""
    return hasattr(target, "__gnnjit_layer__")


def calls_of(
    asked: str, target: Any, args: Sequence[Any], keywords: Mapping[str, Any]
) -> list[TracedCall]:
    """The layer calls of `target(*args, **keywords)`: of a layer that call, which is traced alone;
    of anything else, which is called once, every layer that it runs, in order.

    Raises LayerError, in the name of `asked`, where there is none.
    """
    if is_layer(target) and not any(
        isinstance(a, TypedGraph | ShardedTypedGraph | PartedTypedGraph) for a in args
    ):
        owner = getattr(target, "__self__", None)
        args = args if owner is None else (owner, *args)
        rest = dict(keywords)
        edges, of_graphs = rest.pop("edges", None), rest.pop("globals", None)
        return [trace_call(target.__gnnjit_layer__, args, edges, rest, of_graphs)]
    if not callable(target):
        raise LayerError(f"{asked}: got {type(target).__name__}, expected a layer or a function")
    with recorded_calls() as calls:
        target(*args, **keywords)
    if not calls:
        raise LayerError(f"{asked}: the call ran no layer (was it compiled by jax.jit before?)")
    return calls


def trace_call(
    definition: Definition,
    args: Any,
    edges: Any,
    keywords: dict[str, Any],
    of_graphs: Any = None,
) -> TracedCall:
    """Check the arguments of one call, and trace the function. `of_graphs`: its `globals`."""
    owner, graph, x, params = _split(definition, args)
    where = f"{definition.where}: {definition.name}"
    if isinstance(x, Bipartite):
        x = Bipartite(checked(x.src, "x.src", where), checked(x.dst, "x.dst", where))
    else:
        x = checked(x, "x", where)
    edges, of_graphs = checked(edges, "edges", where), checked(of_graphs, "globals", where)
    _check_sizes(definition, graph, x, edges)
    graph.check(of_graphs, Space.GRAPH, f"{where}: globals")
    if isinstance(graph, ShardedGraph):
        check_mesh(definition)
    else:
        x = graph.at_both_ends(x)
    src, dst = (x.src, x.dst) if isinstance(x, Bipartite) else (x, x)
    static = {k: keywords[k] for k in definition.statics if k in keywords}
    shared = {k: v for k, v in keywords.items() if k not in static}
    arguments = Arguments(src, dst, edges, params, shared, of_graphs, graph.relations)
    fn = functools.partial(definition.fn, *owner, **static)
    own = owner[0] if owner else None
    linen = active_linen(own)
    if _is_initialising(linen):
        call_once(fn, arguments, linen, name=definition.name, where=definition.where)
    with unchanged(own, f"{definition.where}: {definition.name}"):
        traced = _trace(definition, fn, arguments, graph)
    pairs = None
    if isinstance(graph, Graph) and graph.pairs is not None:
        pairs = dataclasses.replace(graph.pairs, members=graph.members)
        graph = dataclasses.replace(graph, pairs=None)
    return TracedCall(definition, fn, graph, arguments, traced, pairs)


def _trace(
    definition: Definition, fn: Callable[..., Any], arguments: Arguments, graph: AnyGraph
) -> TracedLayer:
    called = functools.partial(
        trace, fn, arguments, graph, name=definition.name, where=definition.where
    )
    if not _compat.jit_is_disabled():
        return called()
    with jax.disable_jit(False), muted():  # what it prints here, it prints again by hand
        return called(effects=True)


def _is_initialising(owner: Any) -> bool:
    """Whether `owner` is a linen module that creates its parameters in this very call."""
    check = getattr(owner, "is_initializing", None)
    return callable(check) and bool(check())


def _split(definition: Definition, args: tuple[Any, ...]) -> tuple[Any, Graph, Any, Any]:
    """The owner of a method (or nothing), the graph, the features, the parameters."""
    for at in (0, 1):
        if len(args) > at and isinstance(args[at], (Graph, ShardedGraph)):
            if len(args) == at + 1:
                break
            if at == 0 and definition.is_method:
                raise LayerError(owner_missing(definition))
            return args[:at], args[at], args[at + 1], args[at + 2 :]
    got = ", ".join(type(a).__name__ for a in args) or "nothing"
    raise LayerError(
        f"{definition.where}: {definition.name} is called as layer(graph, x, *params), with a "
        f"gnnjit.Graph and vertex features; got ({got})"
    )


def owner_missing(definition: Definition) -> str:
    return (
        f"{definition.where}: {definition.name} is a method and its owner is missing: "
        "model.method.explain(...) does not know the model. Use gnnjit.explain(model, graph, x) or "
        "gnnjit.check(model, graph, x)"
    )


def _check_sizes(definition: Definition, graph: AnyGraph, x: Any, edges: Any) -> None:
    where = f"{definition.where}: {definition.name}: "
    if isinstance(x, Bipartite):
        graph.check(x.src, Space.SRC, where + "x.src")
        graph.check(x.dst, Space.DST, where + "x.dst")
    elif isinstance(graph, Graph) and graph.nested:
        graph.check(x, Space.SRC, where + "x")
    elif graph.num_src != graph.num_dst:
        raise LayerError(
            f"{where}the graph has {graph.num_src} sources and {graph.num_dst} destinations, but x "
            "is one array for both; pass gnnjit.Bipartite(src=..., dst=...)"
        )
    else:
        graph.check(x, Space.DST, where + "x")
    graph.check(edges, Space.EDGE, where + "edges")


def check_mesh(definition: Definition) -> None:
    """Layers on shards are left to XLA's partitioner, which explicit axes forbid."""
    mesh = jax.sharding.get_abstract_mesh()
    if jax.sharding.AxisType.Explicit in mesh.axis_types:
        raise LayerError(
            f"{definition.where}: {definition.name} was called on a sharded graph under a mesh "
            f"with explicit axes ({', '.join(mesh.axis_names)}), expected automatic ones: use "
            "jax.set_mesh(graph.mesh), or no mesh"
        )


def _distinct(operands: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """The different arrays among `operands`, and which one each operand is: `v` and `e.src` are
    often the same array, and what is done to both is then done once."""
    arrays: list[Any] = []
    number: dict[int, int] = {}
    for x in operands:
        if id(x) not in number:
            number[id(x)] = len(arrays)
            arrays.append(x)
    return arrays, tuple(number[id(x)] for x in operands)


# Inlined: XLA orders what came from a call of its own otherwise, on a CPU the gradient of a matrix
# before that of the features, on which all else waits. (A GCN's training step took 1.27 times as
# long; gnnjit/design/0009.)
@functools.partial(jax.jit, static_argnums=0, inline=True)
def _run(call: Call, graph: AnyGraph, arrays: Any) -> list[Any]:
    outs = bind(call, graph, arrays)
    if not isinstance(graph, ShardedGraph):
        return outs
    # What a primitive is lowered to is not looked into for the devices that it needs.
    return [
        jax.lax.with_sharding_constraint(x, graph.sharding_of(not space.is_replicated))
        for x, space in zip(outs, call.output_spaces, strict=True)
    ]
