"""`reorder-aggregate-combine`: a shared matrix is applied before the sums over edges, or after.

aggregate-first:  t: f32[dst, 32] = sum over (u -> v) of x[u]
                  y: f32[dst, 64] = t @ W

combine-first:    h: f32[src, 64] = x @ W
                  y: f32[dst, 64] = sum over (u -> v) of h[u]

Which is cheaper depends on the widths and on the graph (GraphTensor, section V-A; GRANII), so the
pass is told: one order for each of `movable_matmuls(program)`. Between the matrix and its sums
there may be sums and differences, and factors that are one number per element: of the edge, of
either end, of the whole graph; and choices between such a value and 0. A vertex's own term takes
part. A sum of `h[u] + b`, with b the same on all edges of the row, counts as
`sum of h[u] + count * b`.

Heads: features of shape `[G]` that are looked at as `[H, C]` may be scaled by one number per head.
Aggregated first, they are `[H, F]`, and the matrix is applied to each head with its own columns.
Attention scores `reduce_sum(h * a)`, or `h @ a`, with a shared are then products of the features
with `W a`, if that leaves no other use of `h`.

Where one site lies inside another, the outer one, which comes later, is written from the values
below both: the inner one's order then holds for its other readers alone.

Legal: matmul is linear; sums are re-associated. Aggregated first, features are averaged, and their
product is multiplied by the number of edges last, where the program does not do so itself: a sum of
features may be too large for a number. Half precision is multiplied and summed in float32. A
product that moves from the edges to a vertex space reads 0 at vertices without edges, so that a NaN
which nobody read stays out of the gradient of W. Refuses maxima and minima, factors that vary along
the features (gates), what has another dtype than the matrix (but for float32 and half precision),
products of different precisions, matrices that are not shared, and more than 64 values between a
matrix and its features. A product keeps the precision that was asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gnnjit.ir import build
from gnnjit.ir.program import Atom, Builder, Equation, Location, Program, Reduce, Value, rewrite
from gnnjit.ir.show import kind
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.attention_scores import product_per_head, replaceable_scores
from gnnjit.passes.analysis.linear import Rebuild, fill, reshape, where_edges
from gnnjit.passes.analysis.movable_matmuls import Analysis, MatmulSite, Order, Tree, analysis
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.store_edge_values import parameter_name
from gnnjit.passes.wide import edge_count, has_share, share, widened, working

__all__ = ["MovableMatmul", "Order", "ReorderAggregateCombine", "movable_matmuls"]


@dataclasses.dataclass(frozen=True)
class MovableMatmul:
    """One matrix whose place among the sums is free."""

    written: Order
    """How the program has it now."""
    location: Location | None
    """The line of the first product with it."""
    description: str
    name: str
    """What the user calls the matrix; nothing, if it has no name."""
    kind: str
    """The type of the matrix: `f32[64, 32]`."""


def movable_matmuls(program: Program) -> tuple[MovableMatmul, ...]:
    """The matrices that could be moved, in program order."""
    found = analysis(program)
    return tuple(_described(site, found.made) for site in found.sites)


def _described(found: MatmulSite, made: Mapping[Value, Equation]) -> MovableMatmul:
    sums = "1 sum" if found.sums == 1 else f"{found.sums} sums"
    matrix = found.matmul.matrix
    text = f"{kind(matrix)} with {sums}"
    name = parameter_name(matrix, made)
    return MovableMatmul(found.written, found.matmul.eqn.location, text, name, kind(matrix))


@dataclasses.dataclass(frozen=True)
class ReorderAggregateCombine:
    """`orders`: one for each site; None, or none at all, leaves it as it is written.

    `aliased_inputs`: pairs of inputs, by number, that are the same array, as the features of
    sources and of destinations often are. Where a vertex's own term reads the other one of a pair,
    its product is the same as the one that edges read, NaN or not, and is shared.
    """

    orders: tuple[Order | None, ...] = ()
    name: str = "reorder-aggregate-combine"
    aliased_inputs: tuple[tuple[int, int], ...] = ()

    def __call__(self, program: Program) -> Program:
        if not any(self.orders):
            return program
        found = analysis(program)
        orders = zip(found.sites, self.orders, strict=False)
        chosen = [s for s, order in orders if order is not None and order != s.written]
        if not chosen:
            return program
        inputs = program.inputs
        same = {(inputs[i], inputs[j]) for i, j in self.aliased_inputs}
        rule = _Rule(found, chosen, same | {(b, a) for a, b in same})
        return DropDead()(rewrite(found.program, rule))


class _Rule:
    """Writes the roots of the chosen matmuls anew, and the scores that read their products."""

    def __init__(
        self, analysis: Analysis, chosen: list[MatmulSite], same: set[tuple[Value, Value]]
    ):
        self.analysis, self.same = analysis, same
        self.made = analysis.made
        self.roots = {site.root: site for site in chosen}
        self.moved = {value for site in chosen for value in site.tree}
        self.scores = replaceable_scores(analysis, chosen)

    def __call__(self, builder: Builder, eqn: Equation) -> bool:
        out = eqn.outputs[0]
        total, written = self.analysis.split.get(out, (None, eqn))
        if out in self.roots:
            builder.env[out] = self.root(builder, self.roots[out])
        elif out in self.scores:
            score = self.scores[out].write(builder, self.features(builder, out))
            builder.env[out] = widened(builder, score, out.dtype, eqn.location)
        elif total is not None and total not in self.moved:
            builder.copy(written)
        else:
            return False
        return True

    def root(self, builder: Builder, site: MatmulSite) -> Atom:
        if site.written == "combine-first":
            return self.aggregate_first(builder, site)
        matmul, own = site.matmul, self.own_features(site)
        dtype = working(site.root.dtype)

        def product(x: Value, on_edges: bool) -> Atom:
            new: Atom = widened(builder, builder[x], dtype, matmul.eqn.location)
            twin = any((x, y) in self.same for y in own)
            if on_edges and not twin and self.may_be_unread(x):
                new = where_edges(builder, new, x.space, matmul.eqn.location)
            return matmul.applied(builder, new, x.space)

        rebuild = Rebuild(self.analysis.algebra, builder, site.tree, matmul.width, product)
        total = rebuild(matmul.features)
        return widened(builder, total, site.root.dtype, matmul.eqn.location)

    def own_features(self, site: MatmulSite) -> list[Value]:
        """What the matrix is applied to at every vertex, not through edges alone."""
        found, stack = [], [site.matmul.features]
        while stack:
            value = stack.pop()
            eqn = self.made.get(value)
            if value not in site.tree:
                found.append(value)
            elif eqn is not None and not isinstance(eqn.op, Reduce):
                stack += [v for i in site.tree[value] if isinstance(v := eqn.inputs[i], Value)]
        return found

    def may_be_unread(self, x: Value) -> bool:
        """Whether `x` has rows that no edge reads and that hold what they like."""
        if not x.space.is_vertex:
            return False
        chosen = self.made.get(x)
        if chosen is None or chosen.op.name != "select_n":
            return True
        if chosen.inputs[1].space is not Space.SHARED:  # what the rows without edges get
            return True
        mask: Atom = chosen.inputs[0]
        for name in ("broadcast_in_dim", "gt"):
            eqn = self.made.get(mask)  # type: ignore[arg-type]
            mask = eqn.inputs[0] if eqn is not None and eqn.op.name == name else mask
        eqn = self.made.get(mask)  # type: ignore[arg-type]
        return eqn is None or eqn.op.name != "degree"

    def aggregate_first(self, builder: Builder, site: MatmulSite) -> Atom:
        matmul, (root, scalings) = site.matmul, self.unscaled(site)
        where, width, dtype = matmul.eqn.location, matmul.features.size, working(root.dtype)
        averages = self.averages(site)
        count = edge_count(builder, root.space, dtype, where) if averages else None
        part = share(builder, count, where) if count else None
        x = self.rebuilt(builder, site.tree, width, dtype, part)(root)
        if len(x.shape) == 2 and x.shape[0] > 1:
            y: Atom = product_per_head(builder, matmul, x, root.space)
        else:
            x = reshape(builder, x, x.shape[-1:], where)
            y = matmul.applied(builder, x, root.space)
        y = reshape(builder, y, root.shape, where)
        if count is not None:
            times = fill(builder, count, root.shape, (), root.space, where)
            y = build.mul(builder, y, times, where)
        y = widened(builder, y, root.dtype, where)
        for eqn, at in scalings:
            factors = [y if i == at else builder[a] for i, a in enumerate(eqn.inputs)]
            out = Value(tuple(y.shape), y.dtype, eqn.outputs[0].space)
            (y,) = builder.emit(eqn.op, factors, [out], eqn.location)
        return y

    def unscaled(self, site: MatmulSite) -> tuple[Value, list[tuple[Equation, int]]]:
        """The value of a site that is multiplied, and what the product is multiplied with or
        divided by then, innermost first: where that is shorter than the features, numbers scale
        it in their place."""
        root: Value = site.root
        scalings: list[tuple[Equation, int]] = []
        while site.matmul.features.size > site.matmul.width:
            eqn, linear = self.made[root], site.tree[root]
            if eqn.op.name not in ("mul", "div") or not root.space.is_vertex or len(linear) != 1:
                break
            scalings.append((eqn, linear[0]))
            root = eqn.inputs[linear[0]]  # type: ignore[assignment]
        return root, scalings[::-1]

    def averages(self, site: MatmulSite) -> bool:
        """Whether sums are taken as means, which are not yet: sums of features may be too large
        for a number where those of the products are not. To float16, float32 is large enough."""
        sums = [self.made[v] for v in site.tree if isinstance(self.made[v].op, Reduce)]
        spaces = {e.outputs[0].space for e in sums}
        done = all(has_share(e.inputs[0], self.made) for e in sums)
        half = site.root.dtype == np.float16
        return not done and not half and spaces == {site.root.space}

    def features(self, builder: Builder, score: Value) -> Atom:
        found = self.scores[score]
        width = found.form.matmul.features.size
        dtype = working(score.dtype)
        return self.rebuilt(builder, found.tree, width, dtype)(found.product)

    def rebuilt(
        self,
        builder: Builder,
        tree: Tree,
        width: int,
        dtype: Any,
        part: Value | None = None,
    ) -> Rebuild:
        """On the features that were multiplied."""

        def features(h: Value, on_edges: bool) -> Atom:
            matmul = self.analysis.forms[h].matmul
            return widened(builder, builder[matmul.features], dtype, matmul.eqn.location)

        return Rebuild(self.analysis.algebra, builder, tree, width, features, part)
