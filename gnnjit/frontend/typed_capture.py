"""From a layer function, traced for one vertex type, to a program with spaces for each relation.

The destinations are those of the type, and shared values are shared by all relations. Sources and
edges belong to a relation, which their space names. A value over the edges of all relations
(`e.map`) is one value for each: what is computed from it is computed for each, and reductions of
it meet at the vertex.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gnnjit import _compat
from gnnjit.errors import LayerError
from gnnjit.frontend import formulas
from gnnjit.frontend.capture import LayerWalker, opened_up, refuse
from gnnjit.frontend.folding import fold_p
from gnnjit.frontend.interned import interned
from gnnjit.frontend.ranks import select_p
from gnnjit.frontend.readout import pool_p
from gnnjit.frontend.straightened import straightened
from gnnjit.frontend.typed_words import union_p
from gnnjit.frontend.vocabulary import Edges, count_p, degree_p, index_p, reduce_p, softmax_p
from gnnjit.graph.schema import shown_key
from gnnjit.ir import build
from gnnjit.ir.program import (
    Atom,
    Builder,
    Degree,
    Index,
    Lax,
    Literal,
    Program,
    Reduce,
    Value,
)
from gnnjit.ir.space import Space, join


@dataclasses.dataclass(frozen=True, eq=False)
class Union:
    """One value over the edges of all relations.

    parts: the value on the edges of each relation.
    scales: what each part is still to be multiplied by, a value of the vertex; None: by nothing.
        The scale of a softmax leaves the sum over edges that way, so that one traversal of each
        relation computes both.
    """

    parts: tuple[Atom, ...]
    scales: tuple[Atom, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    @property
    def dtype(self) -> Any:
        return self.parts[0].dtype


@dataclasses.dataclass(frozen=True, eq=False)
class TypedProgram:
    """A layer, traced for one vertex type.

    program: its source and edge spaces name relations. Its last inputs are `constants`;
        `own` are those of them that the function itself closed over.
    owner: the relation that each reduction and degree runs over.
    outputs: what was returned; the program's outputs are the atoms in it.
    """

    program: Program
    owner: Mapping[Value, str]
    outputs: tuple[Atom | Union, ...]
    constants: tuple[Any, ...]
    own: tuple[Value, ...]
    unread: frozenset[Value]


def capture_typed(
    fn: Callable[..., Sequence[Any]], inputs: Sequence[Value],
    relations: Callable[[], Mapping[str, Any]], dst_type: str, name: str,
) -> TypedProgram:  # fmt: skip
    """Trace `fn(*per-element arrays) -> flat list` once. `relations`: those in `e.map`, known once
    it is traced: the name in spaces and the key of each."""
    with _compat.without_mesh():
        closed = jax.make_jaxpr(fn)(*[_compat.like(v) for v in inputs])
        opened = opened_up(closed, inputs)
        every = (*inputs, *opened.closed_over)
        known = zip(opened.closed_over, opened.arrays, strict=True)
        walker = TypedWalker(Builder(every), relations(), dst_type, known)
        outs = [walker.returned(x) for x in walker.run([opened.jaxpr], [], list(every))]
    atoms = tuple(a for x in outs for a in (x.parts if isinstance(x, Union) else (x,)))
    program = Program(every, tuple(walker.builder.equations), atoms, name)
    read = {a for eqn in program.equations for a in eqn.inputs} | set(atoms)
    unread = frozenset(v for v in inputs if v not in read)
    results = tuple(outs)
    return TypedProgram(program, walker.owner, results, opened.arrays, opened.own, unread)


KNOWN = (
    "sum", "mean", "max", "min", "any", "all", "var", "std", "logsumexp", "softmax", "degree",
)  # fmt: skip
"""The words of layers on typed graphs."""

_LINEAR = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose"})
"""What is done to a product is done to both of its factors."""


class TypedWalker(LayerWalker):
    """Appends the equations of a jaxpr to a program with spaces for each relation."""

    def __init__(
        self,
        builder: Builder,
        relations: Mapping[str, Any],
        dst_type: str,
        known: Iterable[tuple[Value, Any]] = (),
    ):
        super().__init__(builder, edge_values=True, known=known)
        self.relations = tuple(relations)
        self.keys = {**relations, None: dst_type}
        self.owner: dict[Value, str] = {}

    def equation(self, eqns: Sequence[Any], ins: list[Any]) -> Sequence[Any]:
        (eqn,) = eqns
        prim = eqn.primitive
        if prim is pool_p:
            raise LayerError(
                f"{self.at}gnnjit.{eqn.params['said']} in a layer on a gnnjit.TypedGraph, expected "
                "reductions over edges: reduce the vertices of a type between layers"
            )
        if prim in (select_p, fold_p) or eqn.params.get("kind") == "prod":
            raise LayerError(
                f"{self.at}gnnjit.{eqn.params['said']} in a layer on a gnnjit.TypedGraph, expected "
                f"one of {', '.join(KNOWN)}: these are combined over relations"
            )
        if prim is union_p:
            return [Union(tuple(map(self.on_relation, self.relations, ins)))]
        if prim is degree_p:
            return [self.total_degree()]
        if prim is count_p:
            return [self.count(ins[0])]
        if prim is reduce_p:
            return [self.reduce(eqn, ins[0])]
        if prim is softmax_p:
            return [self.softmax(eqn, ins[0])]
        if any(isinstance(x, Union) for x in ins):
            return self.on_each(eqn, ins)
        return self.element(eqn, ins)

    @property
    def at(self) -> str:
        return f"{self.where}: " if self.where else ""

    def shown(self, name: Any) -> str:
        """A relation in a message."""
        return shown_key(self.keys.get(name, name))

    def on_relation(self, name: str, atom: Any) -> Atom:
        """A part of a `Union`: on the edges of its relation, whatever `e.map`'s function gave."""
        if isinstance(atom, Union):
            raise LayerError(
                f"{self.at}e.map stands inside the function of another e.map, expected a value of "
                "one relation: map once, and combine the results"
            )
        edges = Space("edge", name)
        if atom.space is edges:
            return atom
        if atom.space.of not in (None, name):
            raise LayerError(
                f"{self.at}e.map's function gave a value of {self.shown(atom.space.of)} for "
                f"{self.shown(name)}, expected one of its argument: use its r"
            )
        axes = tuple(range(len(atom.shape)))
        op = build.broadcast_in_dim_op(tuple(atom.shape), axes)
        return build.emit_op(self.builder, op, [atom], self.where, edges)

    def returned(self, x: Any) -> Any:
        """An output: what is read of a source has one value for each edge."""
        x = self.whole(x)
        is_source = isinstance(x, Value) and x.space.kind == "src"
        return self.on_relation(str(x.space.of), x) if is_source else x

    def element(self, eqn: Any, ins: Sequence[Atom]) -> Sequence[Atom]:
        """An equation of values of one relation, or of vertices."""
        refuse(eqn, ins, self.where, self.outermost.source_info)
        names = {a.space.of for a in ins} - {None}
        if len(names) > 1:
            first, second = [self.shown(name) for name in sorted(map(str, names))[:2]]
            raise LayerError(
                f"{self.at}{eqn.primitive.name} combines values of {first} and {second}, whose "
                "edges are not the same, expected values of one relation: reduce "
                "them into the vertex first, as in gnnjit.sum(r.src)"
            )
        plain = join(*(Space(a.space.kind) for a in ins)) if ins else Space.SHARED
        kind = "edge" if plain is Space.SRC else plain.kind
        space = Space(kind, names.pop()) if names else plain
        if eqn.primitive is index_p:
            return [self.index(space)]
        if (plain := straightened(eqn, ins)) is not None:
            return self.call([plain], ins)
        op = interned(Lax(eqn.primitive, tuple(sorted(eqn.params.items()))), eqn, ins)
        outs = [Value(tuple(v.aval.shape), v.aval.dtype, space) for v in eqn.outvars]
        return self.append(op, ins, outs)

    def index(self, space: Space) -> Value:
        """The number of an element, others in each relation and type: one key draws other numbers
        for each."""
        number = Value((), np.dtype(np.int32), space)
        self.builder.emit(Index(), [], [number], self.where)
        salt = zlib.crc32(repr(self.keys.get(space.of, space.of)).encode())
        literal = Literal(np.uint32(salt).astype(np.int32), np.dtype(np.int32))
        return build.elementwise(self.builder, lax.add, [number, literal], self.where, space)

    def reduced(self, kind: str, atom: Atom, name: str) -> Value:
        out = Value(tuple(atom.shape), atom.dtype, Space.DST)
        self.builder.emit(Reduce(kind, Space.DST), [atom], [out], self.where)
        self.owner[out] = name
        return out

    def reduce(self, eqn: Any, x: Any) -> Atom:
        kind = eqn.params["kind"]
        if isinstance(x, Union):
            return self.reduce_all(kind, x)
        if x.space.of is not None:
            return self.reduced(kind, x, x.space.of)
        refuse(eqn, [x], self.where, self.outermost.source_info)
        self.warn_of_vertex_value(eqn, x)
        if not self.relations:
            return build.constant(self.builder, 0, tuple(x.shape), x.dtype)
        return self.reduce_all(kind, Union(tuple(self.on_relation(n, x) for n in self.relations)))

    def reduce_all(self, kind: str, x: Union) -> Atom:
        """The reduction over all relations, from that over each."""
        if kind == "sum" and x.scales is not None:
            return self.by(_weighted, [*x.parts, *x.scales])[0]
        x = self.whole(x)
        if len(x.parts) == 1:
            return self.reduced(kind, x.parts[0], self.relations[0])
        if kind == "sum":
            return self.by(_total, x.parts)[0]
        return self.by(functools.partial(_extreme, kind), x.parts)[0]

    def softmax(self, eqn: Any, x: Any) -> Any:
        if not isinstance(x, Union):
            if x.space.of is None:
                raise LayerError(
                    f"{self.at}softmax() needs a value on edges, got one of {x.space.value}, the "
                    "same for every edge: write gnnjit.softmax(e.map(lambda r: ...))"
                )
            return self.by(_softmax_of_one, [x])[0]
        if len(x.parts) == 1:
            return Union(tuple(self.by(_softmax_of_one, self.whole(x).parts)))
        outs = self.by(_softmax, self.whole(x).parts)
        half = len(outs) // 2
        return Union(tuple(outs[:half]), tuple(outs[half:]))

    def degree_of(self, name: str) -> Value:
        out = Value((), np.dtype(np.int32), Space.DST)
        self.builder.emit(Degree(), [], [out], self.where)
        self.owner[out] = name
        return out

    def total_degree(self) -> Atom:
        if not self.relations:
            return Literal(np.int32(0), np.dtype(np.int32))
        degrees = [self.degree_of(name) for name in self.relations]
        return functools.reduce(
            lambda a, b: build.elementwise(self.builder, lax.add, [a, b], self.where), degrees
        )

    def count(self, x: Any) -> Atom:
        of = None if isinstance(x, Union) else x.space.of
        return self.total_degree() if of is None else self.degree_of(of)

    def by(self, fn: Callable[..., Any], atoms: Sequence[Atom]) -> list[Any]:
        """The results of a function in JAX, which may reduce."""
        closed = jax.make_jaxpr(fn)(*[_compat.like(a) for a in atoms])
        return self.call([closed], list(atoms))

    def whole(self, x: Any) -> Any:
        """A value without scales that are still to be multiplied by."""
        if not isinstance(x, Union) or x.scales is None:
            return x
        pairs = zip(x.parts, x.scales, strict=True)
        product = [self.by(lambda a, b: [a * b], pair)[0] for pair in pairs]
        return Union(tuple(product))

    def on_each(self, eqn: Any, ins: Sequence[Any]) -> Sequence[Any]:
        """The equation for each relation."""
        others = {x.space.of for x in ins if not isinstance(x, Union)} - {None}
        if others:
            raise LayerError(
                f"{self.at}{eqn.primitive.name} combines a value of all relations (of e.map) with "
                f"one of {self.shown(others.pop())}, expected values of the same edges: compute "
                "it within e.map's function"
            )
        scaled = [x for x in ins if isinstance(x, Union) and x.scales is not None]
        scales = None
        if scaled and self.keeps_scale(eqn, ins):
            scales = self.scales_of(eqn, scaled)
            ins = [Union(x.parts) if isinstance(x, Union) else x for x in ins]
        ins = [self.whole(x) for x in ins]
        rows = []
        for i in range(len(self.relations)):
            rows.append(self.element(eqn, [x.parts[i] if isinstance(x, Union) else x for x in ins]))
        return [Union(tuple(column), scales) for column in zip(*rows, strict=True)]

    def keeps_scale(self, eqn: Any, ins: Sequence[Any]) -> bool:
        """Whether a factor of an operand is a factor of the result."""
        name = eqn.primitive.name
        if name in ("mul", "neg") or (name in _LINEAR and len(ins) == 1):
            return True
        if name == "div":
            return not (isinstance(ins[1], Union) and ins[1].scales is not None)
        dtypes = [*(x.dtype for x in ins), *(v.aval.dtype for v in eqn.outvars)]
        inexact = all(jnp.issubdtype(d, jnp.floating) for d in dtypes)
        return name == "convert_element_type" and inexact

    def scales_of(self, eqn: Any, scaled: Sequence[Union]) -> tuple[Atom, ...]:
        """The factors of the result."""
        name = eqn.primitive.name
        rows = zip(*(x.scales for x in scaled if x.scales is not None), strict=True)
        if name in ("mul", "neg", "div"):
            return tuple(
                functools.reduce(lambda a, b: self.by(lambda x, y: [x * y], [a, b])[0], row)
                for row in rows
            )
        return tuple(self.element(eqn, row)[0] for row in rows)


def _sum(x: Any) -> Any:
    return reduce_p.bind(x, kind="sum", said="sum", over="in")


def _total(*parts: Any) -> list[Any]:
    return [functools.reduce(lax.add, map(_sum, parts))]


def _weighted(*xs: Any) -> list[Any]:
    parts, scales = xs[: len(xs) // 2], xs[len(xs) // 2 :]
    terms = [_sum(x) * scale for x, scale in zip(parts, scales, strict=True)]
    return [functools.reduce(lax.add, terms)]


def _softmax_of_one(scores: Any) -> list[Any]:
    return [formulas.softmax(Edges(), scores)]


def _softmax(*scores: Any) -> list[Any]:
    """The weights of each relation before they are normalised, and for each the factor that does.

    Each relation has a maximum and a total of its own, as one block of an online softmax (Milakov
    and Gimelshein, "Online normalizer calculation for softmax", 2018, section 3.1); a block whose
    maximum is below the largest is scaled down.
    """
    dtype = formulas.as_float(scores[0]).dtype
    weights, totals, lifts = [], [], []
    for score in scores:
        below, shift = formulas.shifted(Edges(), formulas.wide(score))
        weights.append(jnp.exp(below))
        totals.append(_sum(weights[-1]))
        nothing = jnp.asarray(-jnp.inf, shift.dtype)
        lifts.append(lax.stop_gradient(jnp.where(totals[-1] > 0, shift, nothing)))
    top = functools.reduce(jnp.maximum, lifts)
    top = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
    factors = [lax.stop_gradient(jnp.exp(lift - top)) for lift in lifts]
    total = functools.reduce(lax.add, map(lax.mul, factors, totals))
    total = jnp.where(total == 0, jnp.ones_like(total), total)
    scales = [factor / total for factor in factors]
    return [x.astype(dtype) for x in (*weights, *scales)]


def _extreme(kind: str, *parts: Any) -> list[Any]:
    """The extreme over all relations; edges that tie share the gradient evenly."""
    tops = [reduce_p.bind(x, kind=kind, said=kind, over="in") for x in parts]
    counts = [count_p.bind(x) for x in parts]
    if not jnp.issubdtype(parts[0].dtype, jnp.floating):
        return [_best(kind, tops, counts)]
    ties = [
        jnp.maximum(_sum((x == top).astype(jnp.int32)), 1).astype(jnp.float32)
        for x, top in zip(parts, tops, strict=True)
    ]
    return [_shared_best(kind)(tops, [n.astype(jnp.float32) for n in counts], ties)]


def _best(kind: str, tops: Sequence[Any], counts: Sequence[Any]) -> Any:
    better = jnp.maximum if kind == "max" else jnp.minimum
    best, found = tops[0], counts[0] > 0
    for top, count in zip(tops[1:], counts[1:], strict=True):
        some = count > 0
        best = jnp.where(found & some, better(best, top), jnp.where(some, top, best))
        found = found | some
    return best


@functools.cache
def _shared_best(kind: str) -> Callable[..., Any]:
    """The extreme of those of the relations, from the numbers of their edges and of those that
    attain it: by these the gradient is shared."""

    @jax.custom_jvp
    def best_of(tops: list[Any], counts: list[Any], ties: list[Any]) -> Any:
        return _best(kind, tops, counts)

    @best_of.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        tops, counts, ties = primals
        best = best_of(tops, counts, ties)
        shares = [
            jnp.where(((top == best) | jnp.isnan(best)) & (count > 0), tie, 0).astype(best.dtype)
            for top, count, tie in zip(tops, counts, ties, strict=True)
        ]
        total = jnp.maximum(functools.reduce(lax.add, shares), 1)
        terms = [
            jnp.where(share > 0, t * (share / total), jnp.zeros_like(t))
            for t, share in zip(tangents[0], shares, strict=True)
        ]
        return best, functools.reduce(lax.add, terms)

    return best_of
