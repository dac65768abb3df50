"""An aggregate as a flat program again, for the passes that run before it is lowered."""

from __future__ import annotations

from jax import lax

from gnnjit.ir import build
from gnnjit.ir.at_most import at_most
from gnnjit.ir.kept import KEPT
from gnnjit.ir.program import Atom, Builder, Equation, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.lowering import Reductions


def flat(
    body: Program,
    reductions: Reductions,
    *,
    online: bool,
    keep: frozenset[Space] = frozenset(),
) -> Program:
    """The edge equations, then one reduction for each output.

    Not `online`: an `exp_sum` is written as what it was made of, the maximum, the exponential and
    a sum, for kernels that do not know it. Equations of the vertex spaces in `keep` (a body made by
    differentiation has such) are equations of edges, as all of a body are by its meaning. Nothing
    is differentiated any more: what a `stop_gradient` or a `kept` gave is what it was given.
    """
    inputs = tuple(Value(v.shape, v.dtype, v.space, v.name) for v in body.inputs)
    builder = Builder()
    builder.env.update(zip(body.inputs, inputs, strict=True))
    for eqn in body.equations:
        if eqn.op.name == "stop_gradient" or eqn.op == KEPT:
            builder.env[eqn.outputs[0]] = builder[eqn.inputs[0]]
            continue
        if eqn.space not in keep:
            builder.copy(eqn)
            continue
        outs = [Value(v.shape, v.dtype, Space.EDGE, v.name) for v in eqn.outputs]
        builder.emit(eqn.op, [builder[a] for a in eqn.inputs], outs, eqn.location)
        builder.env.update(zip(eqn.outputs, outs, strict=True))
    values = [builder[atom] for atom in body.outputs]
    outs = list(values)
    for i, r in enumerate(reductions):
        if r is not None and r.score is None:
            outs[i] = _emit(builder, r, [values[i]])
    for i, r in enumerate(reductions):
        if r is None or r.score is None:
            continue
        if online:
            outs[i] = _emit(builder, Reduce(r.kind, r.into), [values[r.score], values[i]])
        else:
            outs[i] = _expand(builder, values[r.score], outs[r.score], values[i], r.into)
    return Program(inputs, tuple(builder.equations), tuple(outs), "aggregate")


def _emit(builder: Builder, reduction: Reduce, operands: list[Atom]) -> Value:
    value = operands[-1]
    out = Value(tuple(value.shape), value.dtype, reduction.into)
    return builder.emit(reduction, operands, [out])[0]


def _expand(builder: Builder, score: Atom, top: Atom, value: Atom, into: Space) -> Value:
    """The sum of `exp(score - shift) * value`. Nothing is differentiated any more, so that the
    shift needs no `stop_gradient`."""
    finite = build.elementwise(builder, lax.is_finite, [top])
    zero = build.constant(builder, 0, tuple(top.shape), top.dtype)
    shift = build.elementwise(builder, lax.select_n_p.bind, [finite, zero, top])
    score = build.combine(builder, at_most, score, top)
    weight = build.elementwise(builder, lax.exp, [build.combine(builder, lax.sub, score, shift)])
    made = {o: e for e in builder.equations for o in e.outputs}
    weight = build.convert(builder, weight, value.dtype)
    weight, value = _scaled(builder, weight, value, into, made)
    return _emit(builder, Reduce("sum", into), [_times(builder, weight, value, made)])


def _scaled(
    builder: Builder, weight: Value, value: Atom, into: Space, made: dict[Value, Equation]
) -> tuple[Value, Atom]:
    """The weight times a number of the row that `value` was multiplied by, and `value` without it:
    the weight is at most 1, and has fewer scalars."""
    product = made.get(value) if isinstance(value, Value) else None
    if product is None or product.op.name != "mul":
        return weight, value
    for number, other in (product.inputs, product.inputs[::-1]):
        eqn = made.get(number) if isinstance(number, Value) else None
        if eqn is None or eqn.op.name != "broadcast_in_dim" or eqn.inputs[0].shape != ():
            continue
        if eqn.inputs[0].space is into and tuple(other.shape) == tuple(value.shape):
            number = build.broadcast(builder, eqn.inputs[0], weight.shape)
            return build.mul(builder, weight, number), other
    return weight, value


def _times(builder: Builder, weight: Value, value: Atom, made: dict[Value, Equation]) -> Atom:
    """`value` times the weight, which fills its first axes."""
    shape = tuple(value.shape)
    if weight.shape != shape:
        axes = tuple(range(len(weight.shape)))
        weight = build.emit_op(builder, build.broadcast_in_dim_op(shape, axes), [weight])
    if build.is_filled_with(value, 1, made):
        return weight
    return build.mul(builder, weight, value)
