"""A layer run as plain Python, edge after edge: what `jax.disable_jit()` asks for.

The function is called once for each edge with that edge's own arrays, so that `print`, a debugger
and an error see numbers. A reduction needs all edges of its vertex: the call of the first edge
waits in it, while the other edges are called up to the same point, for their operands. A later
reduction, and values returned for the edges, need the other calls again from the start; what these
print a second time is left out. A vertex without edges is called with an edge of made-up numbers,
which no reduction sees, and is silent up to its last reduction.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit import _compat
from gnnjit.errors import GnnjitWarning
from gnnjit.frontend.trace_layer import Arguments, TracedLayer, call_element, fresh_names
from gnnjit.frontend.vocabulary import answered_by
from gnnjit.graph import Graph
from gnnjit.ir.program import Degree, Fold, Index, Reduce, Select
from gnnjit.ir.space import Space

MANY = 10_000
"""Edges from which a warning says how long it will take."""


class _Operand(BaseException):
    """Ends the call of an edge that has come to a reduction. No `Exception`: users catch those."""

    def __init__(self, value: Any):
        super().__init__()
        self.value = value


class _Failed(BaseException):
    """Carries an error past the calls that wait for the one in which it was raised."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error


class _Transformed(BaseException):
    """A reduction stands inside `jax.vmap` or `jax.grad`, which know no numbers."""


def by_hand(
    fn: Callable[..., Any],
    args: Arguments,
    traced: TracedLayer,
    graph: Any,
    *,
    name: str,
    where: str,
) -> list[Any] | None:
    """The outputs of a layer in the spaces in which they are returned, or None where it cannot be
    run so: the numbers are unknown (`jax.vmap`), the graph is in shards or has no vertices."""
    given = [*jax.tree.leaves(graph), *traced.operands]
    known = all(_compat.value_of(x) is not None for x in given)
    if not isinstance(graph, Graph) or not known or not graph.num_dst:
        return None
    if (reason := _why_not_alone(traced)) is not None:
        warnings.warn(
            f"{where}: {name} {reason}, so it cannot run edge by edge under jax.disable_jit(); it "
            "is compiled, and prints nothing",
            GnnjitWarning,
            stacklevel=2,
        )
        return None
    if graph.num_edges > MANY:
        warnings.warn(
            f"{where}: {name} runs edge by edge under jax.disable_jit(), a millisecond or more for "
            f"each of {graph.num_edges:,} edges: debug with a smaller graph",
            GnnjitWarning,
            stacklevel=2,
        )
    try:
        return _Layer(fn, args, traced, graph, name, where).outputs()
    except _Transformed:
        warnings.warn(
            f"{where}: {name} calls a reduction inside jax.vmap or jax.grad, so it cannot run edge "
            "by edge under jax.disable_jit(); it is compiled, and prints nothing",
            GnnjitWarning,
            stacklevel=2,
        )
        return None
    except _Failed as failed:
        error = failed.error
    raise error.with_traceback(_of_the_function(error.__traceback__))


def _why_not_alone(traced: TracedLayer) -> str | None:
    """What the function reads of other vertices than the one that it is called for."""
    program = traced.program
    if any(v.space is Space.GRAPH for v in program.values()):
        return "computes with values of whole graphs (e.globals, gnnjit.readout)"
    if any(isinstance(e.op, (Reduce, Degree)) and e.space is Space.SRC for e in program.equations):
        return 'reduces over outgoing edges (over="out")'
    if any(isinstance(e.op, (Select, Fold)) for e in program.equations):
        return "orders the edges of a vertex (gnnjit.sort, gnnjit.fold and their like)"
    return None


def _of_the_function(at: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that lies in the user's function."""
    while at is not None and at.tb_frame.f_code is not call_element.__code__:
        at = at.tb_next
    return at and at.tb_next and at.tb_next.tb_next


class _Layer:
    """All vertices of a call."""

    def __init__(
        self, fn: Any, args: Arguments, traced: TracedLayer, graph: Graph, name: str, where: str
    ):
        self.fn, self.args, self.name, self.where = fn, args, name, where
        self.owner = next(iter(getattr(fn, "args", ())), None)  # of a method
        self.outs = traced.program.outputs
        self.drawn_in = [
            e.outputs[0].space for e in traced.program.equations if isinstance(e.op, Index)
        ]
        self.reductions = sum(isinstance(e.op, Reduce) for e in traced.program.equations)
        self.graph = graph
        self.src, self.dst = (np.asarray(_compat.value_of(x)) for x in (graph.src, graph.dst))
        mask = graph.mask
        real = np.ones(len(self.src), bool) if mask is None else np.asarray(_compat.value_of(mask))
        order = np.flatnonzero(real)
        order = order[np.argsort(self.dst[order], kind="stable")]
        ends = np.searchsorted(self.dst[order], np.arange(graph.num_dst + 1))
        self.edges_of = [order[a:b].tolist() for a, b in itertools.pairwise(ends)]
        self.arrays = {
            Space.SRC: jax.tree.map(jnp.asarray, args.src),
            Space.DST: jax.tree.map(jnp.asarray, args.dst),
            Space.EDGE: jax.tree.map(jnp.asarray, args.of_edge),
        }

    def outputs(self) -> list[Any]:
        per_edge = any(o.space in (Space.EDGE, Space.SRC) for o in self.outs)
        at_vertex: list[list[Any]] = []
        at_edge: dict[int, list[Any]] = {}
        for vertex, edges in enumerate(self.edges_of):
            run = _Vertex(self, vertex, edges)
            at_vertex.append(run.call(edges[0] if edges else None))
            if per_edge and edges:
                at_edge |= {edges[0]: at_vertex[-1], **{k: run.call(k) for k in edges[1:]}}
        return [self.collected(i, at_vertex, at_edge) for i in range(len(self.outs))]

    def collected(self, i: int, at_vertex: list[list[Any]], at_edge: dict[int, list[Any]]) -> Any:
        out = self.outs[i]
        if out.space is Space.SHARED:
            return at_vertex[0][i]
        if out.space is Space.DST:
            return jnp.stack([row[i] for row in at_vertex])
        padding = jnp.zeros(out.shape, out.dtype)
        rows = [at_edge[k][i] if k in at_edge else padding for k in range(self.graph.num_edges)]
        return jnp.stack(rows) if rows else jnp.zeros((0, *out.shape), out.dtype)

    def element(self, space: Space, index: int | None) -> Any:
        """The features of one element; made up for the edge of a vertex that has none."""

        def made_up(x: Any) -> Any:
            filling = 0.5 if jnp.issubdtype(x.dtype, jnp.inexact) else 0
            return jnp.full(x.shape[1:], filling, x.dtype)

        pick = made_up if index is None else lambda x: x[index]
        return jax.tree.map(pick, self.arrays[space])

    def number(self, space: Space, vertex: int, edge: int | None) -> int:
        """What random numbers are drawn for."""
        if space is Space.DST:
            return vertex
        if edge is None:
            return 0
        return int(self.src[edge]) if space is Space.SRC else edge


class _Vertex:
    """The calls for one vertex; answers what the vocabulary asks in them."""

    def __init__(self, layer: _Layer, vertex: int, edges: list[int]):
        self.layer, self.vertex, self.edges = layer, vertex, edges
        self.known: list[Any] = []  # the results of the reductions, in their order
        self.calls: list[_Call] = []
        self.trace = _compat.current_trace()

    def call(self, edge: int | None, operand: bool = False) -> Any:
        """What the function returns for one edge (None: the vertex has none), or its operand of
        the reduction after the known ones."""
        layer = self.layer
        call = _Call(edge, operand)
        if edge is None or self.known:  # said before, or of an edge that is none
            call.silence.enter_context(muted())
        src = layer.element(Space.SRC, None if edge is None else int(layer.src[edge]))
        data = layer.element(Space.EDGE, edge)
        dst = layer.element(Space.DST, self.vertex)
        self.calls.append(call)
        try:
            with call.silence, answered_by(self), fresh_names(layer.owner):
                return call_element(layer.fn, layer.args, src, dst, data, layer.name, layer.where)
        except _Operand as found:
            return found.value
        except Exception as error:
            ends = "no edge" if edge is None else f"edge {edge}, from {int(layer.src[edge])}"
            error.add_note(f"{layer.where}: {layer.name}, {ends}, to {self.vertex}")
            raise _Failed(error) from None
        finally:
            self.calls.pop()

    def reduce(self, kind: str, x: jax.Array) -> jax.Array:
        if _compat.current_trace() is not self.trace:
            raise _Transformed
        call = self.calls[-1]
        at, call.reduced = call.reduced, call.reduced + 1
        if at == len(self.known):
            if call.operand:
                raise _Operand(x)
            others = [self.call(edge, operand=True) for edge in self.edges[1:]]
            self.known.append(_reduced(kind, [x, *others]) if self.edges else jnp.zeros_like(x))
        if at + 1 == (len(self.known) if self.edges else self.layer.reductions):
            call.silence.close()
        return self.known[at]

    def degree(self) -> jax.Array:
        return jnp.asarray(len(self.edges), jnp.int32)

    def index(self) -> jax.Array:
        if _compat.current_trace() is not self.trace:
            raise _Transformed
        call = self.calls[-1]
        space, call.drawn = self.layer.drawn_in[call.drawn], call.drawn + 1
        return jnp.asarray(self.layer.number(space, self.vertex, call.edge), jnp.int32)


class _Call:
    """How far one call of the function has come."""

    def __init__(self, edge: int | None, operand: bool):
        self.edge, self.operand = edge, operand
        self.reduced = self.drawn = 0
        self.silence = contextlib.ExitStack()


def _reduced(kind: str, xs: Sequence[Any]) -> Any:
    every = jnp.stack(xs)
    if kind == "sum":
        return jnp.sum(every, 0, dtype=every.dtype)
    return {"max": jnp.max, "min": jnp.min, "prod": jnp.prod}[kind](every, 0)


class _Silent(io.TextIOBase):
    """Drops what is printed, except while a debugger runs: its prompt is printed too."""

    def __init__(self, stream: Any):
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(text) if sys.gettrace() is not None else len(text)

    def flush(self) -> None:
        self.stream.flush()


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Within it nothing is printed, and `breakpoint()` does not stop."""
    hook = sys.breakpointhook
    sys.breakpointhook = lambda *_, **__: None
    try:
        with contextlib.redirect_stdout(_Silent(sys.stdout)):
            yield
    finally:
        sys.breakpointhook = hook
