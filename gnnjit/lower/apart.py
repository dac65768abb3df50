"""Cuts aggregates in two, so that the part that is linear in some inputs is transposed by itself.

before:  a, b = aggregate(x, y)        after:  a = aggregate(x, y); b = aggregate(y)

where `x` is transposed: JAX takes every result of an equation that reads `x` to be linear in it,
and the sum of a softmax's weights, in one aggregate with the weighted sum, is not.
"""

from __future__ import annotations

from gnnjit.ir.program import Aggregate, Atom, Builder, Equation, Program, Value, depends, rewrite


def apart(program: Program, roots: set[int]) -> Program:
    """`program` without traversals of which only some outputs depend on the inputs `roots`."""
    dependent: set[Atom] = {v for i, v in enumerate(program.inputs) if i in roots}

    def rule(builder: Builder, eqn: Equation) -> bool:
        at = {i for i, a in enumerate(eqn.inputs) if a in dependent}
        if not isinstance(eqn.op, Aggregate):
            dependent.update(eqn.outputs if at else ())
            return False
        touched = depends(eqn.op.body, at)
        dependent.update(o for o, hit in zip(eqn.outputs, touched, strict=True) if hit)
        if all(touched) or not any(touched):
            return False
        for wanted in (False, True):
            part = [k for k, hit in enumerate(touched) if hit is wanted]
            op, keep, slots = eqn.op.select(part)
            outs = [eqn.outputs[k] for k in keep]
            fresh = [o if k in part else _again(o) for o, k in zip(outs, keep, strict=True)]
            inputs = [builder[eqn.inputs[i]] for i in slots]
            builder.emit(op, inputs, fresh, eqn.location)
        return True

    return rewrite(program, rule)


def _again(value: Value) -> Value:
    return Value(value.shape, value.dtype, value.space, value.name)
