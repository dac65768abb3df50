"""How far two evaluations of one edge function may be apart: a running error analysis.

Two traversals may round the same expression differently: operations are contracted, sums
reassociated, and which depends on what stands around them. The bound follows the computation
(Higham, Accuracy and Stability of Numerical Algorithms, section 3.3): each operation adds its own
rounding, `eps * |result|`, and passes on the errors of its arguments by its derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gnnjit import _compat
from gnnjit.ir.evaluate import bind, literal_array
from gnnjit.ir.program import Equation, Lax, Literal, Program

_EXACT = frozenset(
    "abs at_most broadcast_in_dim concatenate copy expand_dims gather max min neg pad reduce_max "
    "reduce_min reshape rev select_n slice split squeeze stop_gradient transpose".split()
)
"""Operations that return (or negate) numbers that they read."""

_ARITHMETIC = frozenset(
    "add add_any convert_element_type div integer_pow mul reduce_precision sqrt square sub".split()
)
"""Operations that are rounded correctly, or nearly; others are a few units off."""

_NO_JVP = frozenset(("custom_vjp_call", "io_callback", "pure_callback"))

FEW = 4

Error = Any
"""A bound on the error of each scalar; None for inputs, literals and integers."""


def with_error_bounds(body: Program, args: Sequence[Any]) -> list[tuple[Any, Error]]:
    """Each output on one edge, and how far two evaluations may differ, to first order."""
    values: dict[Any, Any] = dict(zip(body.inputs, args, strict=True))
    errors: dict[Any, Error] = dict.fromkeys(body.inputs)

    for eqn in body.equations:
        assert isinstance(eqn.op, Lax), eqn.op
        xs = [literal_array(a) if isinstance(a, Literal) else values[a] for a in eqn.inputs]
        off = [None if isinstance(a, Literal) else errors[a] for a in eqn.inputs]
        outs = bind(eqn.op, xs)
        values.update(zip(eqn.outputs, outs, strict=True))
        errors.update(zip(eqn.outputs, _propagate(eqn, xs, off, outs), strict=True))
    return [
        (literal_array(o), None) if isinstance(o, Literal) else (values[o], errors[o])
        for o in body.outputs
    ]


def _propagate(eqn: Equation, xs: list[Any], off: list[Error], outs: list[Any]) -> list[Error]:
    assert isinstance(eqn.op, Lax)
    if not any(jnp.issubdtype(o.dtype, jnp.inexact) for o in outs):
        return [None] * len(outs)
    if eqn.op.name == "reduce_sum":
        return [_sum(eqn, xs[0], off[0])]
    if eqn.op.name == "dot_general":
        return [_product(eqn, xs, off)]
    inexact = [jnp.issubdtype(o.dtype, jnp.inexact) for o in outs]  # a loop has counters beside
    totals: list[Error] = [None] * len(outs)
    if eqn.op.name not in _EXACT:
        units = 1 if eqn.op.name in _ARITHMETIC else FEW
        totals = [_rounding(o, units) if f else None for o, f in zip(outs, inexact, strict=True)]
    for i, e in enumerate(off):
        if e is not None:
            moved = zip(totals, _move(eqn, xs, outs, i, e), inexact, strict=True)
            totals = [_plus(t, lax.abs(m)) if f else None for t, m, f in moved]
    return totals


def _move(eqn: Equation, xs: list[Any], outs: list[Any], i: int, error: Any) -> list[Any]:
    """The effect of an error of argument `i` on the outputs: by the derivative; by a difference
    where there is none, as in a value through which no gradient flows."""

    def f(x: Any) -> list[Any]:
        assert isinstance(eqn.op, Lax)
        return bind(eqn.op, [*xs[:i], x, *xs[i + 1 :]])

    if _NO_JVP.isdisjoint((eqn.op.name, *_compat.primitive_names(eqn.op))):
        try:
            return jax.jvp(f, [xs[i]], [error])[1]
        except NotImplementedError:  # of a primitive without a rule
            pass
    moved = f(xs[i] + error)
    return [
        a - b if jnp.issubdtype(b.dtype, jnp.inexact) else None
        for a, b in zip(moved, outs, strict=True)
    ]


def _sum(eqn: Equation, x: Any, error: Error) -> Any:
    assert isinstance(eqn.op, Lax)
    return bind(eqn.op, [_plus(error, _rounding(x, 2))])[0]


def _product(eqn: Equation, xs: list[Any], off: list[Error]) -> Any:
    """At least `|a| (error of b) + (error of a) |b|`, and the rounding of the sum."""
    a, b = xs
    total = _most(eqn, _plus(off[0], _rounding(a, 2)), b)  # a sum of many rounds often
    return total if off[1] is None else lax.add(total, _most(eqn, a, off[1]))


def _most(eqn: Equation, a: Any, b: Any) -> Any:
    """At least `|a| |b|`, from the norms of what is summed (Cauchy and Schwarz): a second product
    would take as long as the first, and the norms of a shared matrix are taken once."""
    assert isinstance(eqn.op, Lax)
    contracted, batched = dict(eqn.op.params)["dimension_numbers"]
    norms = []
    for x, summed, batch in zip((a, b), contracted, batched, strict=True):
        left = [k for k in range(x.ndim) if k not in summed]
        free = [k for k in left if k not in batch]
        order = [left.index(k) for k in (*batch, *free)]
        norms.append((lax.transpose(_norm(x, tuple(summed)), order), len(free)))
    (left, columns), (right, _) = norms
    batch = left.ndim - columns
    shape = (*left.shape, *right.shape[batch:])
    axes = (*range(batch), *range(left.ndim, len(shape)))
    left = lax.broadcast_in_dim(left, shape, range(left.ndim))
    return lax.mul(left, lax.broadcast_in_dim(right, shape, axes))


def _norm(x: Any, axes: tuple[int, ...]) -> Any:
    """Over these axes; scaled, so that no square overflows."""
    largest = lax.reduce_max(lax.abs(x), axes)
    zero, one, tiny = (lax.full_like(largest, c) for c in (0, 1, jnp.finfo(x.dtype).tiny))
    scale = lax.select(lax.gt(largest, tiny), lax.div(one, largest), zero)
    kept = tuple(k for k in range(x.ndim) if k not in axes)
    scaled = lax.mul(x, lax.broadcast_in_dim(scale, x.shape, kept))
    return lax.mul(largest, lax.sqrt(lax.reduce_sum(lax.square(scaled), axes)))


def _rounding(x: Any, units: int) -> Any:
    """The rounding of a result, in units of its last place."""
    size = lax.abs(x)
    return lax.mul(size, lax.full_like(size, units * float(jnp.finfo(x.dtype).eps)))


def _plus(a: Error, b: Any) -> Any:
    return b if a is None else lax.add(a, b)
