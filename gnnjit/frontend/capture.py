"""From a JAX function of per-element values to a program: the only place that reads jaxprs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gnnjit import _compat
from gnnjit.errors import LayerError
from gnnjit.frontend import in_turn, suspicions
from gnnjit.frontend.folding import fold_p
from gnnjit.frontend.interned import interned
from gnnjit.frontend.known import Known
from gnnjit.frontend.lifted import CUSTOM, lifted
from gnnjit.frontend.pooled import pool
from gnnjit.frontend.ranks import select_p
from gnnjit.frontend.readout import pool_p
from gnnjit.frontend.straightened import straightened
from gnnjit.frontend.vocabulary import at_vertex_p, degree_p, index_p, reduce_p
from gnnjit.frontend.walker import Walker
from gnnjit.ir.program import (
    Aggregate,
    Atom,
    AtVertex,
    Builder,
    Degree,
    Equation,
    Fold,
    Index,
    Lax,
    Literal,
    Location,
    OfGraph,
    Op,
    Pool,
    Program,
    Reduce,
    Select,
    Value,
    rewrite,
)
from gnnjit.ir.space import Space, join

MUTABLE = (
    "the layer reads or writes a mutable array (jax.Ref), and is traced once for all vertices and "
    "edges: read it before the layer and pass the array; return what should be stored, and store "
    "it where the layer is called"
)
_OURS = (reduce_p, pool_p, degree_p, index_p, at_vertex_p, select_p, fold_p)
_OF_EDGES = (reduce_p, select_p)


@dataclasses.dataclass(frozen=True)
class Captured:
    """A traced function: `program`'s last inputs are `constants`, arrays it closed over.

    own: the inputs for those that the function itself closed over; others, what it calls did.
    unread: the inputs that no output depends on, as the function was written.
    """

    program: Program
    constants: tuple[Any, ...]
    own: tuple[Value, ...] = ()
    unread: frozenset[Value] = frozenset()


def capture(
    fn: Callable[..., Sequence[Any]],
    inputs: Sequence[Value],
    *,
    name: str = "body",
    edge_values: bool = False,
    effects: bool = False,
) -> Captured:
    """Trace `fn(*per-element arrays) -> flat list` once.

    Each equation lands in the join of its operands' spaces; with `edge_values`, whatever touches
    a source's features or an edge lands on the edges, as a vertex-by-vertex reading of the code
    has it, and so does what only edges read of the work on `v`. `effects`: whether what has an
    effect and no result is left out, instead of an error.
    """
    with _compat.without_mesh():  # whatever one lies on that `fn` closes over
        closed = jax.make_jaxpr(fn)(*[_compat.like(v) for v in inputs])
        return from_jaxpr(closed, inputs, name=name, edge_values=edge_values, effects=effects)


def from_jaxpr(
    closed: Any,
    inputs: Sequence[Value],
    *,
    name: str,
    edge_values: bool = False,
    effects: bool = False,
) -> Captured:
    """The program of a jaxpr whose inputs are `inputs`; constants become shared inputs."""
    opened = opened_up(closed, inputs)
    every = (*inputs, *opened.closed_over)
    known = zip(opened.closed_over, opened.arrays, strict=True)
    walker = LayerWalker(Builder(every), edge_values, effects, known)
    outputs = walker.run([opened.jaxpr], [], list(every))
    program = Program(every, tuple(walker.builder.equations), tuple(outputs), name)
    live = _live(opened.jaxpr)
    read_by = zip(every, opened.jaxpr.invars, strict=True)
    unread = frozenset(v for v, x in read_by if x not in live).intersection(inputs)
    program = on_the_edges(program) if edge_values else program
    return Captured(program, opened.arrays, opened.own, unread)


class OpenedUp(NamedTuple):
    """A jaxpr without constants; the inputs of a program for those that it had, the arrays they
    are, and the inputs among them that the function itself closed over, not what it calls."""

    jaxpr: Any
    closed_over: tuple[Value, ...]
    arrays: tuple[Any, ...]
    own: tuple[Value, ...]


def opened_up(closed: Any, inputs: Sequence[Value]) -> OpenedUp:
    """What becomes a program with these inputs and those for constants.

    Raises:
        LayerError: if a constant is no array.
    """
    jaxpr, arrays = lifted(closed)
    variables = jaxpr.invars[len(inputs) :]
    if not all(hasattr(v.aval, "shape") for v in variables):  # Variables of Flax, as hijax
        raise LayerError(MUTABLE)
    closed_over = tuple(
        Value(tuple(v.aval.shape), v.aval.dtype, Space.SHARED, f"c{i}")
        for i, v in enumerate(variables)
    )
    own = len(_compat.open_jaxpr(closed)[1])
    return OpenedUp(jaxpr, closed_over, tuple(arrays), closed_over[:own])


def _live(jaxpr: Any) -> set[Any]:
    """The variables of a jaxpr that its outputs depend on."""
    live = {v for v in jaxpr.outvars if not isinstance(v, _compat.JaxprLiteral)}
    for eqn in reversed(jaxpr.eqns):
        if not live.isdisjoint(eqn.outvars):
            live.update(v for v in eqn.invars if not isinstance(v, _compat.JaxprLiteral))
    return live


def on_the_edges(program: Program) -> Program:
    """`program` with the work on destinations that only edges read on the edges.

    before:  a: f32[dst] = log(v); y = sum of x[u] * a[v]    after:  a: f32[edge] = log(v)[v]

    `log(v)` stands among what the user does with an edge, so a vertex without edges never
    computes it, in value or gradient. What reaches an output other than through a reduction
    stays per vertex, also where edges read it too: the user asked for it at every vertex. So does
    what is reduced over the vertices of a graph.
    """
    asked = set(program.outputs)
    for eqn in reversed(program.equations):
        if isinstance(eqn.op, (Pool, Select, Fold)):
            asked.update(eqn.inputs if isinstance(eqn.op, Pool) else eqn.inputs[: eqn.op.own])
        elif eqn.space is Space.DST and not isinstance(eqn.op, Reduce) and asked & {*eqn.outputs}:
            asked.update(eqn.inputs)

    def rule(builder: Builder, eqn: Equation) -> bool:
        if not isinstance(eqn.op, Lax) or eqn.space is not Space.DST or asked & {*eqn.outputs}:
            return False
        outs = [Value(v.shape, v.dtype, Space.EDGE, v.name) for v in eqn.outputs]
        builder.emit(eqn.op, [builder[a] for a in eqn.inputs], outs, eqn.location)
        builder.env.update(zip(eqn.outputs, outs, strict=True))
        return True

    return rewrite(program, rule)


class LayerWalker(Walker[Atom]):
    """Appends the equations of a jaxpr to a program."""

    def __init__(
        self,
        builder: Builder,
        edge_values: bool,
        effects: bool = False,
        known: Iterable[tuple[Value, Any]] = (),
    ):
        self.builder = builder
        self.edge_values = edge_values
        self.effects = effects
        self.known = Known(known)
        self.warned: set[Any] = set()
        self.read: dict[tuple[Atom, Space], Atom] = {}
        self.inputs = {v for v in builder.env if v.space is Space.SRC}

    def constant(self, variables: Sequence[Any], value: Any) -> Atom:
        assert not np.shape(value), "arrays are lifted"
        dtype = np.dtype(variables[0].aval.dtype)
        return Literal(np.asarray(value, dtype)[()], dtype)

    def line(self, eqn: Any) -> Location | None:
        found = _compat.user_line(eqn.source_info)
        return Location(*found) if found else None

    def equation(self, eqns: Sequence[Any], ins: list[Atom]) -> Sequence[Atom]:
        (eqn,) = eqns
        if self.effects and not eqn.outvars:
            return []
        refuse(eqn, ins, self.where, self.outermost.source_info)
        if eqn.primitive is pool_p:
            return [pool(self.builder, eqn.params["kind"], ins[0], self.where)]
        if eqn.primitive is fold_p:
            space = in_turn.into(eqn.params["over"])
            ins = [self.of_graph(a, space) if a.space is Space.GRAPH else a for a in ins]
            return in_turn.fold(self.builder, eqn.params, ins, self.step_of(eqn), self.where)
        ins = self.out_of_graphs(ins, eqn.primitive in _OF_EDGES)
        if eqn.primitive is select_p:
            return in_turn.select(self.builder, eqn.params, ins, self.where)
        if (plain := straightened(eqn, ins)) is not None:
            return self.call([plain], ins)
        op, space = self.operation(eqn, ins)
        if op.name == "index":
            ins = []
        outs = [Value(tuple(v.aval.shape), v.aval.dtype, space) for v in eqn.outvars]
        return self.append(op, ins, outs)

    def append(self, op: Op, ins: Sequence[Atom], outs: list[Value]) -> Sequence[Atom]:
        """Append an operation, or a simpler one with the same result."""
        if len(outs) == 1 and self.known.arrays:
            found = self.known.scaled(self.builder, op, ins, outs[0], self.where)
            if found is not None:
                return [found]
            self.known.learn(op, ins, outs[0])
        return self.builder.emit(op, ins, outs, self.where)

    def step_of(self, eqn: Any) -> Callable[[Sequence[Value]], Program]:
        """The program of a fold's step, of its inputs."""

        def body(inputs: Sequence[Value]) -> Program:
            walker = LayerWalker(Builder(inputs), edge_values=False)
            walker.outermost, walker.where = self.outermost, self.where
            outs = walker.run([eqn.params["step"]], [], list(inputs))
            return Program(tuple(inputs), tuple(walker.builder.equations), tuple(outs), "body")

        return body

    def out_of_graphs(self, ins: list[Atom], reduced: bool) -> list[Atom]:
        """The operands, values of graphs as values of vertices where the others are of those (or
        all edges of a vertex read them: `reduced`)."""
        others = join(*(a.space for a in ins if a.space is not Space.GRAPH))
        if others is Space.SHARED and not reduced:
            return ins
        space = Space.SRC if others is Space.SRC else Space.DST
        return [self.of_graph(a, space) if a.space is Space.GRAPH else a for a in ins]

    def of_graph(self, value: Atom, space: Space) -> Atom:
        if (value, space) not in self.read:
            out = Value(tuple(value.shape), value.dtype, space)
            self.builder.emit(OfGraph(), [value], [out], self.where)
            self.read[value, space] = out
        return self.read[value, space]

    def operation(self, eqn: Any, ins: list[Atom]) -> tuple[Op, Space]:
        if eqn.primitive is reduce_p or eqn.primitive is degree_p:
            into = Space.DST if eqn.params["over"] == "in" else Space.SRC
            if eqn.primitive is degree_p:
                return Degree(), into
            if self.edge_values and ins[0].space is into is Space.DST:
                self.warn_of_vertex_value(eqn, ins[0])
            return Reduce(eqn.params["kind"], into), into
        if eqn.primitive is at_vertex_p:
            return AtVertex(), Space.DST
        space = join(*(a.space for a in ins)) if ins else Space.SHARED
        if eqn.primitive is index_p:
            return Index(), Space.EDGE if eqn.params["edge"] else space
        if self.edge_values and space is Space.SRC and not self.inputs.isdisjoint(ins):
            space = Space.EDGE  # else it is what was reduced over outgoing edges
        return interned(Lax(eqn.primitive, tuple(sorted(eqn.params.items()))), eqn, ins), space

    def warn_of_vertex_value(self, eqn: Any, value: Atom) -> None:
        where, said = self.where, eqn.params["said"]
        if (where, said) in self.warned:  # a word may reduce twice
            return
        self.warned.add((where, said))
        reduced = any(isinstance(e.op, (Reduce, Pool, Degree)) for e in self.builder.equations)
        suspicions.warn(where, suspicions.reduced_vertex_value(said, value, reduced))


def refuse(eqn: Any, ins: Sequence[Atom], where: Location | None, made_at: Any) -> None:
    """Errors for what cannot mean anything per element. `made_at`: JAX's account of the code that
    made the equation, or the outermost call that it is a part of."""
    at = f"{where}: " if where else ""
    if eqn.primitive.name in ("random_bits", "threefry2x32") and ins[0].space is Space.SHARED:
        drew = _compat.dropout_of(made_at) or "jax.random"
        raise LayerError(
            f"{at}{drew} drew from a key inside a layer. The key is shared by the whole graph, "
            "so every edge and vertex would get the same numbers. Use gnnjit.dropout(value, rate, "
            "key) or gnnjit.random_uniform(key, like=value), which draw once per element"
        )
    if eqn.primitive.name in ("get", "swap", "addupdate"):
        raise LayerError(at + MUTABLE)
    if eqn.primitive.name.startswith(("bcoo_", "bcsr_")):
        raise LayerError(
            f"{at}{eqn.primitive.name} computes with a sparse array inside a layer, expected dense "
            "ones: multiply by it outside the layer, on arrays of all vertices, or make it dense "
            "(todense)"
        )
    if not eqn.outvars:
        raise LayerError(
            f"{at}{eqn.primitive.name} has an effect and no result, so it cannot run once per edge "
            "in a compiled traversal. Under `with jax.disable_jit():` it does, edge after edge; or "
            "print what the layer returns"
        )
    if eqn.primitive is index_p and ins[0].space is Space.SHARED:
        raise LayerError(
            f"{at}random numbers for a shared value ({ins[0].dtype.name}{list(ins[0].shape)}), the "
            "same for the whole graph, expected like= (or what gnnjit.dropout is given) on edges "
            "or vertices: draw for a parameter with jax.random, outside the layer"
        )
    if eqn.primitive in (*_OF_EDGES, pool_p) and ins[0].space is Space.SHARED:
        raise LayerError(at + _shared_message(eqn.params["said"], ins[0]))
    if eqn.primitive is pool_p and ins[0].space is Space.GRAPH:
        raise LayerError(at + _graph_message(eqn.params["said"], ins[0]))
    nested = eqn.primitive.name in CUSTOM or any(True for _ in _compat.subjaxprs(eqn))
    if nested and eqn.primitive is not fold_p:  # whose own step is looked into when it is walked
        inner = next((e for e in _nested(eqn) if e.primitive in _OURS), None)
        if inner is not None:
            raise LayerError(
                f"{at}a gnnjit reduction sits inside {eqn.primitive.name}; reductions must stand "
                "in the layer function itself, not in a loop, a condition or a custom derivative"
            )


def _shared_message(said: str, atom: Atom) -> str:
    kind = f"{atom.dtype.name}{list(atom.shape)}"
    name = _named(atom)
    advice = "gnnjit.degree() counts the edges"
    if isinstance(atom, Value) and len(atom.shape) == 2:
        advice = f"Did you mean {said}(e.src @ {atom.name or 'w'})?"
    if said.startswith("readout."):
        advice = f"Combine it with v or e.src first, as in {said}({name.strip() or 'w'} * v)"
    return (
        f"{said}() needs a value on edges or vertices, got the shared value{name}: {kind}, which "
        f"is the same for every edge. {advice}"
    )


def _graph_message(said: str, atom: Atom) -> str:
    kind = f"{atom.dtype.name}{list(atom.shape)}"
    return (
        f"{said}() needs a value on edges or vertices, got a value of the whole graph{_named(atom)}"
        f": {kind}, which there is once a graph. Use it as it is"
    )


def _named(atom: Atom) -> str:
    return f" {atom.name}" if isinstance(atom, Value) and atom.name else ""


def _nested(eqn: Any) -> Any:
    for sub in _compat.subjaxprs(eqn):
        for inner in sub.eqns:
            yield inner
            yield from _nested(inner)


def inline_custom_calls(program: Program) -> Program:
    """Replace `custom_jvp` and `custom_vjp` calls by their bodies, once nothing more is
    differentiated."""
    walker = LayerWalker(Builder(program.inputs), edge_values=False)
    builder = walker.builder
    for eqn in program.equations:
        if isinstance(eqn.op, Aggregate):
            op = Aggregate(inline_custom_calls(eqn.op.body), eqn.op.reductions)
            builder.emit(op, [builder[a] for a in eqn.inputs], eqn.outputs, eqn.location)
            continue
        if not isinstance(eqn.op, Lax) or eqn.op.name not in CUSTOM:
            builder.copy(eqn)
            continue
        outs = walker.call([eqn.op[CUSTOM[eqn.op.name]]], [builder[a] for a in eqn.inputs])
        builder.env.update(zip(eqn.outputs, outs, strict=True))
    return builder.finish(program)
