"""Writing equations from inside a pass: plain JAX expressions instead of primitive parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gnnjit.ir.program import Atom, Builder, Degree, Equation, Lax, Literal, Location, Value
from gnnjit.ir.space import Space, join


def emit_jax(
    builder: Builder,
    fn: Callable[..., Any],
    inputs: list[Atom],
    where: Location | None = None,
    space: Space | None = None,
) -> Value:
    """Append `fn(*inputs)`, one JAX primitive, in the join of the inputs' spaces (or `space`)."""
    jaxpr = jax.make_jaxpr(fn)(*[a.aval for a in inputs])
    (eqn,) = jaxpr.eqns
    if len(eqn.invars) != len(inputs):
        raise ValueError(f"{eqn.primitive.name} does not take exactly the inputs given")
    out = eqn.outvars[0].aval
    at = space or join(*(a.space for a in inputs))
    op = Lax(eqn.primitive, tuple(sorted(eqn.params.items())))
    return builder.emit(op, inputs, [Value(tuple(out.shape), out.dtype, at)], where)[0]


def mul(builder: Builder, a: Atom, b: Atom, where: Location | None = None) -> Value:
    return emit_jax(builder, jax.lax.mul, [a, b], where)


def combine(
    builder: Builder, fn: Callable[..., Any], a: Atom, b: Atom, where: Location | None = None
) -> Value:
    """A binary primitive of two values of the same shape."""
    return emit_jax(builder, fn, [a, b], where)


def degree_like(builder: Builder, space: Space, like: Value, where: Location | None) -> Value:
    """The degree of each element of `space`, with the dtype and shape of `like`."""
    (count,) = builder.emit(Degree(), [], [Value((), np.dtype(np.int32), space)], where)
    return broadcast(builder, convert(builder, count, like.dtype, where), like.shape, where)


def has_edges(builder: Builder, space: Space, shape: tuple[int, ...], where: Any) -> Value:
    """`bool` of `shape`: whether the element has any edge."""
    (count,) = builder.emit(Degree(), [], [Value((), np.dtype(np.int32), space)], where)
    zero = Literal(np.int32(0), np.dtype(np.int32))
    some = emit_jax(builder, jax.lax.gt, [count, zero], where)
    return broadcast(builder, some, shape, where)


def convert(builder: Builder, a: Value, dtype: Any, where: Location | None = None) -> Value:
    if a.dtype == dtype:
        return a
    return emit_jax(builder, lambda x: jax.lax.convert_element_type(x, dtype), [a], where)


def broadcast_op(atom: Atom, shape: tuple[int, ...]) -> Lax:
    """The operation that brings `atom`, a scalar or with axes of length 1, to `shape`."""
    axes = tuple(range(len(shape))) if atom.shape else ()
    eqn = jax.make_jaxpr(lambda x: jax.lax.broadcast_in_dim(x, shape, axes))(atom.aval).eqns[0]
    return Lax(eqn.primitive, tuple(sorted(eqn.params.items())))


def broadcast(builder: Builder, a: Atom, shape: tuple[int, ...], where: Any = None) -> Any:
    """`a`, a scalar or with axes of length 1, brought to `shape`."""
    if a.shape == shape:
        return a
    out = Value(shape, a.dtype, a.space)
    return builder.emit(broadcast_op(a, shape), [a], [out], where)[0]


def is_filled_with(atom: Atom, number: float, made: dict[Value, Equation]) -> bool:
    """Whether `atom` is the literal `number`, or an array filled with it."""
    eqn = made.get(atom) if isinstance(atom, Value) else None
    if eqn is not None and eqn.op.name == "broadcast_in_dim":
        atom = eqn.inputs[0]
    return isinstance(atom, Literal) and bool(atom.value == number)


def constant(builder: Builder, value: float, shape: tuple[int, ...], dtype: Any) -> Atom:
    """A shared array filled with one number; a literal if `shape` is ()."""
    scalar = Literal(np.asarray(value, dtype)[()], np.dtype(dtype))
    return broadcast(builder, scalar, shape)
