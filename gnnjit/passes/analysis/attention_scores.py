"""Scores of products `h = x @ W`, as products of the features with `W a`.

before:  h = x @ W;  s = reduce_sum(h * a)        after:  c = W @ a;  s = x @ c

with `a` shared; per head, too, and `h @ a` likewise. `W @ a` is computed once for all vertices.
What is left of `h` may then be summed before it is multiplied: `reorder-aggregate-combine`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gnnjit.ir.program import Atom, Builder, Equation, Lax, Program, Value
from gnnjit.ir.space import Space
from gnnjit.passes.analysis.linear import dot, reshape
from gnnjit.passes.analysis.movable_matmuls import (
    LARGEST_TREE,
    Analysis,
    Form,
    Matmul,
    MatmulSite,
    Tree,
    is_plain,
    precision_of,
    reads,
    walk,
)
from gnnjit.passes.wide import widened


@dataclasses.dataclass(frozen=True)
class Score:
    """`eqn` contracts `product`, which is linear in products with a matrix, with `vector`."""

    eqn: Equation
    product: Value
    form: Form
    vector: Value
    axis: int
    """The contracted axis of `vector`."""
    tree: Tree
    leaves: tuple[Value, ...]

    def reads(self, made: Mapping[Value, Equation]) -> list[Atom]:
        leaves = [a for leaf in self.leaves for a in made[leaf].inputs]
        return [*reads(self.tree, made), *leaves, self.vector]

    def write(self, builder: Builder, x: Atom) -> Value:
        """The score, of the features `x`: `[F]`."""
        matmul, like = self.form.matmul, self.form.matmul.eqn
        a = widened(builder, builder[self.vector], x.dtype, like.location)
        if len(self.product.shape) == 1:
            numbers = (((1 - matmul.axis,), (self.axis,)), ((), ()))
            c = dot(builder, like, matmul.in_dtype(builder, x.dtype), a, numbers, Space.SHARED)
            return dot(builder, like, x, c, (((0,), (0,)), ((), ())), self.eqn.space)
        w, features, head = by_head(builder, matmul, self.product.shape[0], x.dtype)
        numbers = (((1,), (3 - features - head,)), ((0,), (head,)))
        c = dot(builder, like, a, w, numbers, Space.SHARED)
        return dot(builder, like, c, x, (((1,), (0,)), ((), ())), self.eqn.space)


def by_head(builder: Builder, matmul: Matmul, heads: int, dtype: Any) -> tuple[Atom, int, int]:
    """The matrix with an axis of heads, and which axes are those of the features and the heads."""
    inner = matmul.features.size, heads, matmul.width // heads
    shape, axes = (inner, (0, 1)) if matmul.axis == 0 else ((*inner[1:], inner[0]), (2, 0))
    return reshape(builder, matmul.in_dtype(builder, dtype), shape, matmul.eqn.location), *axes


def product_per_head(builder: Builder, matmul: Matmul, x: Atom, space: Space) -> Value:
    """`[H, F]` times each head's columns of the matrix: `[H, C]`."""
    w, features, head = by_head(builder, matmul, x.shape[0], x.dtype)
    numbers = (((1,), (features,)), ((0,), (head,)))
    return dot(builder, matmul.eqn, x, w, numbers, space)


def replaceable_scores(analysis: Analysis, chosen: list[MatmulSite]) -> dict[Value, Score]:
    """The scores of products with a matrix that is to be applied last, if nothing else reads those
    products any more."""
    made, program = analysis.made, analysis.program
    matmuls = [s.matmul for s in chosen if s.written == "combine-first"]
    scores = {}
    for eqn in program.equations if matmuls else ():
        score = _match(analysis, eqn)
        if score is not None and any(score.form.matmul.same(m) for m in matmuls):
            scores[eqn.outputs[0]] = score
    roots = {site.root: site.reads(made) for site in chosen}
    while scores:
        replaced = {out: score.reads(made) for out, score in scores.items()}
        live = _live(program, replaced | roots)
        kept = {o: s for o, s in scores.items() if live.isdisjoint(s.leaves)}
        if len(kept) == len(scores):
            break
        scores = kept
    return scores


def _live(program: Program, replaced: Mapping[Value, list[Atom]]) -> set[Atom]:
    """What is still read if some values are computed from others than before."""
    live = set(program.outputs)
    for eqn in reversed(program.equations):
        if not live.isdisjoint(eqn.outputs):
            live.update(replaced.get(eqn.outputs[0], eqn.inputs))
    return live


def _match(analysis: Analysis, eqn: Equation) -> Score | None:
    found = _contraction(analysis, eqn)
    if found is None:
        return None
    product, vector, axis = found
    form = analysis.forms.get(product)  # type: ignore[arg-type]
    if form is None or form.summed or form.per_head or vector.dtype != eqn.outputs[0].dtype:
        return None
    if not isinstance(vector, Value) or vector.space is not Space.SHARED:
        return None
    assert isinstance(product, Value)
    if eqn.op.name == "dot_general" and precision_of(eqn) != form.matmul.precision:
        return None
    tree, leaves = walk(product, analysis.linear, analysis.made)
    too_large = len(tree) > LARGEST_TREE
    return None if too_large else Score(eqn, product, form, vector, axis, tree, leaves)


def _contraction(analysis: Analysis, eqn: Equation) -> tuple[Atom, Atom, int] | None:
    """The linear operand of a contraction over all its features, the other one, and its axis."""
    op = eqn.op
    if not isinstance(op, Lax):
        return None
    if op.name == "dot_general" and is_plain(eqn):
        for i in (0, 1):
            if eqn.inputs[i] in analysis.forms and len(eqn.inputs[i].shape) == 1:
                return eqn.inputs[i], eqn.inputs[1 - i], op["dimension_numbers"][0][1 - i][0]
    if op.name != "reduce_sum" or op["axes"] != (len(eqn.inputs[0].shape) - 1,):
        return None
    product = analysis.made.get(eqn.inputs[0])  # type: ignore[arg-type]
    if product is None or product.op.name != "mul":
        return None
    for h, a in (product.inputs, product.inputs[::-1]):
        if h in analysis.forms and h.shape == a.shape:
            return h, a, len(a.shape) - 1
    return None
