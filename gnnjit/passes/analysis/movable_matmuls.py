"""Where a shared matrix may stand before or after sums over edges: the analysis behind
`reorder-aggregate-combine`.

Forward, it follows what is linear in products with one matrix, up to the last such value (a root):

    h = x @ W;  y = sum over (u -> v) of s[e] * h[u];  z = y + b      y is a root, x its features

Backward, from a product `t @ W`, it follows what `t` is linear in, down to leaves.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any
from typing import Literal as OneOf

import numpy as np
from jax import lax

from gnnjit.ir import build
from gnnjit.ir.dtypes import is_floating
from gnnjit.ir.program import (
    Atom,
    Builder,
    Degree,
    Equation,
    Lax,
    Location,
    Program,
    Reduce,
    Value,
    remembered,
)
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.linear import ADD, Algebra, fill, per_head, where_edges
from gnnjit.passes.wide import in_float32, widened, working

Order = OneOf["aggregate-first", "combine-first"]

Tree = Mapping[Value, tuple[int, ...]]
"""Values, with the operands in which each is linear."""

LARGEST_TREE = 64
"""Values that one matrix is moved past, at most."""

PRECISIONS = (None, *((p, p) for p in lax.Precision))
"""Precisions of both operands that a product keeps wherever it stands."""


@dataclasses.dataclass(frozen=True)
class Matmul:
    """Features `[F]` of each element times a shared matrix `[F, G]`, or `[G, F]`."""

    eqn: Equation
    at: int
    """Which operand is the matrix."""
    axis: int
    """Which of its axes is contracted."""

    @property
    def features(self) -> Value:
        return self.eqn.inputs[1 - self.at]  # type: ignore[return-value]

    @property
    def matrix(self) -> Value:
        return self.eqn.inputs[self.at]  # type: ignore[return-value]

    @property
    def width(self) -> int:
        """The number of columns of the product."""
        return self.matrix.shape[1 - self.axis]

    @property
    def precision(self) -> Any:
        return precision_of(self.eqn)

    def same(self, other: Matmul) -> bool:
        one = (self.axis, self.precision) == (other.axis, other.precision)
        return one and self.matrix is other.matrix

    def in_dtype(self, builder: Builder, dtype: Any) -> Atom:
        """The matrix, as it multiplies features of this dtype."""
        return widened(builder, builder[self.matrix], dtype, self.eqn.location)

    def applied(self, builder: Builder, x: Atom, space: Space) -> Value:
        inputs, op = [x, self.in_dtype(builder, x.dtype)], self.eqn.op
        assert isinstance(op, Lax)
        out = Value((self.width,), x.dtype, space)
        order = inputs[::-1] if self.at == 0 else inputs
        op = op if x.dtype == self.matrix.dtype else in_float32(op)
        return builder.emit(op, order, [out], self.eqn.location)[0]


def match_matmul(eqn: Equation) -> Matmul | None:
    if not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
        return None
    if any(not isinstance(a, Value) for a in eqn.inputs) or not is_plain(eqn):
        return None
    shared = [a.space is Space.SHARED for a in eqn.inputs]
    if shared not in ([False, True], [True, False]):
        return None
    at = shared.index(True)
    if [len(eqn.inputs[at].shape), len(eqn.inputs[1 - at].shape)] != [2, 1]:
        return None
    return Matmul(eqn, at, eqn.op["dimension_numbers"][0][at][0])


def precision_of(eqn: Equation) -> Any:
    """What was asked of a product, as JAX has it: None, a pair, or the name of an algorithm."""
    assert isinstance(eqn.op, Lax)
    return dict(eqn.op.params).get("precision")


def is_plain(eqn: Equation) -> bool:
    """Whether nothing but a precision is asked of a product of two arrays of one dtype."""
    assert isinstance(eqn.op, Lax)
    params, dtype = dict(eqn.op.params), eqn.outputs[0].dtype
    contracted, batched = params["dimension_numbers"]
    usual = precision_of(eqn) in PRECISIONS and params.get("out_sharding") is None
    one = len(contracted[0]) == 1 and not batched[0]
    same = all(a.dtype == dtype for a in eqn.inputs)
    return usual and one and same and is_floating(dtype)


@dataclasses.dataclass(frozen=True)
class Form:
    """What a value is, if it is linear in products with the matrix of `matmul`."""

    matmul: Matmul
    heads: int | None = None
    """How many vectors the product is reshaped to."""
    per_head: bool = False
    """Whether the heads have been scaled by different factors."""
    summed: bool = False


@dataclasses.dataclass(frozen=True)
class MatmulSite:
    """One matrix whose place is free, and what rewriting needs to know of it."""

    root: Value
    written: Order
    matmul: Matmul
    tree: Tree
    """The values that are written again, with the operands in which each is linear."""
    leaves: tuple[Value, ...]
    sums: int

    def reads(self, made: Mapping[Value, Equation]) -> list[Atom]:
        """What the rewritten tree reads, of the values that were there before."""
        leaves: list[Atom] = list(self.leaves)
        if self.written == "combine-first":
            leaves = [a for leaf in self.leaves for a in made[leaf].inputs]
        return [*reads(self.tree, made), *leaves, self.matmul.matrix]


class Analysis:
    """The movable matmuls of a program (`sites`), in the order of their roots.

    `program` is the one that was given, except that sums of a product with something that is the
    same on all edges of the row are split. `split` holds, for what such a sum gives, the sum of
    the product alone, and the sum as it was written.
    """

    def __init__(self, given: Program):
        self.builder = Builder(given.inputs)
        self.algebra = Algebra()
        self.made = self.algebra.made
        self.forms: dict[Value, Form] = {}
        self.linear: dict[Value, tuple[int, ...]] = {}
        self.split: dict[Value, tuple[Value, Equation]] = {}
        for eqn in given.equations:
            self.visit(eqn)
        self.program = self.builder.finish(given)
        self.sites = [site for eqn in self.program.equations for site in self.at(eqn)]

    def visit(self, eqn: Equation) -> None:
        before = len(self.builder.equations)
        if not self.split_sum(eqn):
            self.builder.copy(eqn)
        for new in self.builder.equations[before:]:
            self.algebra.add(new)
            form = self.form(new)
            if form is not None:
                self.forms[new.outputs[0]] = form

    def form(self, eqn: Equation) -> Form | None:
        out = eqn.outputs[0]
        matmul = match_matmul(eqn)
        if matmul is not None:
            return Form(matmul)
        if eqn.op.name == "reshape":
            return self.seen_as_heads(eqn)
        linear = self.algebra.operands(eqn, self.forms.__contains__)
        if linear is None:
            return None
        forms = [self.forms[eqn.inputs[i]] for i in linear]  # type: ignore[index]
        heads = {f.heads for f in forms} - {None}
        if len(heads) > 1 or not all(f.matmul.same(forms[0].matmul) for f in forms):
            return None
        self.linear[out] = linear
        scaled = per_head(self.algebra, eqn, linear) or any(f.per_head for f in forms)
        summed = isinstance(eqn.op, Reduce) or any(f.summed for f in forms)
        return Form(forms[0].matmul, next(iter(heads), None), scaled, summed)

    def seen_as_heads(self, eqn: Equation) -> Form | None:
        """`[G] -> [H, C]`, or back."""
        out, source = eqn.outputs[0], eqn.inputs[0]
        form = self.forms.get(source)  # type: ignore[arg-type]
        shape = max(out.shape, source.shape, key=len)
        if form is None or {len(out.shape), len(source.shape)} != {1, 2}:
            return None
        if form.heads not in (None, shape[0]):
            return None
        self.linear[out] = (0,)
        return dataclasses.replace(form, heads=shape[0])

    def split_sum(self, eqn: Equation) -> bool:
        """`sum of h + b`, with b the same on all edges of a row: `(sum of h) + count * b`."""
        op = eqn.op
        if not isinstance(op, Reduce) or op.kind != "sum" or not op.into.is_vertex:
            return False
        h, added = eqn.inputs[0], []
        while h not in self.forms:
            outer = self.made.get(h)  # type: ignore[arg-type]
            if outer is None or outer.op.name not in ADD:
                return False
            moving = [a for a in outer.inputs if not a.space <= op.into]
            if len(moving) != 1 or any(a.shape != eqn.outputs[0].shape for a in outer.inputs):
                return False
            added.append(outer)
            (h,) = moving
        if added:
            self.emit_split(eqn, h, added)
        return bool(added)

    def emit_split(self, eqn: Equation, h: Atom, added: list[Equation]) -> None:
        """The sum of `h`, then what `added`, outermost first, adds to it or it is taken from; of
        half precision, in float32."""
        builder, where, out = self.builder, eqn.location, eqn.outputs[0]
        dtype = working(out.dtype)
        alone = Value(out.shape, dtype, out.space)
        like = Value(out.shape, dtype, out.space)
        wide = widened(builder, h, dtype, where)
        total: Value = builder.emit(eqn.op, [wide], [alone], where)[0]
        for outer in reversed(added):
            terms = [total if a is h else self.counted(a, like, where) for a in outer.inputs]
            last = outer is added[0] and dtype == out.dtype
            into = out if last else Value(out.shape, dtype, out.space)
            (total,) = builder.emit(outer.op, terms, [into], where)
            h = outer.outputs[0]
        if dtype != out.dtype:
            builder.emit(build.convert_op(np.dtype(out.dtype)), [total], [out], where)
        self.split[out] = alone, eqn

    def counted(self, b: Atom, like: Value, where: Location | None) -> Value:
        """The sum over edges of what is the same on all of them."""
        builder, into = self.builder, like.space
        (count,) = builder.emit(Degree(), [], [Value((), np.dtype(np.int32), into)], where)
        number = build.emit_op(builder, build.convert_op(like.dtype), [count], where, into)
        counts = fill(builder, number, like.shape, (), into, where)
        safe = where_edges(builder, widened(builder, b, like.dtype, where), into, where)
        return build.elementwise(builder, lax.mul, [counts, safe], where, into)

    @functools.cached_property
    def ends(self) -> set[Atom]:
        """What is read other than as an operand of something linear in it."""
        return {
            a
            for eqn in self.program.equations
            for i, a in enumerate(eqn.inputs)
            if i not in self.linear.get(eqn.outputs[0], ())
        }.union(self.program.outputs)

    def at(self, eqn: Equation) -> Iterator[MatmulSite]:
        """The sites whose root `eqn` makes."""
        out = eqn.outputs[0]
        form = self.forms.get(out)
        if form is None:
            return
        if form.matmul.eqn.outputs[0] is out and out not in self.linear:
            yield from self.before(form.matmul)
        elif form.summed and out in self.ends:
            yield from self.site(out, "combine-first", form.matmul, out, self.linear)

    def before(self, matmul: Matmul) -> Iterator[MatmulSite]:
        """The site of a product with something that contains sums."""
        features = matmul.features
        growth = _Growth(self.algebra, features)
        if growth.grow(features)[0] and not growth.refused:
            out = matmul.eqn.outputs[0]
            yield from self.site(out, "aggregate-first", matmul, features, growth.tree)

    def site(
        self,
        root: Value,
        written: Order,
        matmul: Matmul,
        top: Value,
        linear: Tree,
    ) -> Iterator[MatmulSite]:
        tree, leaves = walk(top, linear, self.made)
        if len(tree) <= LARGEST_TREE:
            sums = sum(isinstance(self.made[v].op, Reduce) for v in tree)
            yield MatmulSite(root, written, matmul, tree, leaves, sums)


analysis = remembered(Analysis)
"""The analysis of a program, made once."""


def walk(
    top: Value, linear: Tree, made: Mapping[Value, Equation]
) -> tuple[dict[Value, tuple[int, ...]], tuple[Value, ...]]:
    """The part of `linear` that is below `top`, and what is below that; if it is too large, only
    its beginning."""
    tree: dict[Value, tuple[int, ...]] = {}
    leaves: dict[Value, None] = {}
    below: list[Atom] = [top]
    while below and len(tree) <= LARGEST_TREE:
        value = below.pop()
        assert isinstance(value, Value)
        if value not in linear:
            leaves[value] = None
        elif value not in tree:
            tree[value] = linear[value]
            below += [made[value].inputs[i] for i in linear[value]]
    return tree, tuple(leaves)


def reads(tree: Tree, made: Mapping[Value, Equation]) -> list[Atom]:
    """The factors in a tree."""
    return [
        a
        for value, linear in tree.items()
        for i, a in enumerate(made[value].inputs)
        if i not in linear
    ]


class _Growth:
    """What the features of a product are linear in, from the product down."""

    def __init__(self, algebra: Algebra, top: Value):
        self.algebra, self.top = algebra, top
        self.tree: dict[Value, tuple[int, ...]] = {}
        self.known: dict[Value, tuple[bool, frozenset[Value]]] = {}
        self.refused = False

    def grow(self, value: Value) -> tuple[bool, frozenset[Value]]:
        """Whether there is a sum over edges in `value`, and what it is made of."""
        if value not in self.known:
            self.known[value] = self.parts(value)
        return self.known[value]

    def parts(self, value: Value) -> tuple[bool, frozenset[Value]]:
        leaf = False, frozenset([value])
        eqn = self.algebra.made.get(value)
        if eqn is None:
            return leaf
        linear = self.algebra.operands(eqn, self.is_like_top)
        if linear is None or len(self.tree) > LARGEST_TREE:
            self.refused |= isinstance(eqn.op, Reduce) or linear is not None
            return leaf
        self.tree[value] = linear
        below = [self.grow(eqn.inputs[i]) for i in linear]  # type: ignore[arg-type]
        summed = isinstance(eqn.op, Reduce) or any(s for s, _ in below)
        leaves = frozenset[Value]().union(*(found for _, found in below))
        on_edges = value.space is Space.EDGE
        if len(linear) > 1 and not summed:  # one product of the terms' sum, where that is cheaper
            if not on_edges or any(x.space is Space.EDGE for x in leaves):
                del self.tree[value]
                return leaf
        return summed, leaves

    def is_like_top(self, atom: Atom) -> bool:
        shape = isinstance(atom, Value) and atom.shape == self.top.shape
        return shape and working(atom.dtype) == working(self.top.dtype)
