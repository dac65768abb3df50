"""Writing equations from inside a pass: plain JAX expressions instead of primitive parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
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
    key: Hashable = None,
) -> Value:
    """Append `fn(*inputs)`, one JAX primitive, in the join of the inputs' spaces (or `space`).

    Tracing takes a third of a millisecond, so it is done once for a named function without captured
    values, and for one that `key` names with all that it captures.
    """
    kinds = tuple((tuple(a.shape), a.dtype) for a in inputs)
    if key is None and getattr(fn, "__closure__", 0) is None and fn.__name__ != "<lambda>":
        key = fn
    op, shape, dtype = _trace(fn, kinds) if key is None else _traced_once(_Keyed(key, fn), kinds)
    at = space or join(*(a.space for a in inputs))
    return builder.emit(op, inputs, [Value(shape, dtype, at)], where)[0]


def _trace(fn: Callable[..., Any], kinds: tuple[Any, ...]) -> tuple[Lax, tuple[int, ...], Any]:
    """The operation that `fn` is on arguments of these shapes and dtypes; its result's."""
    (eqn,) = jax.make_jaxpr(fn)(*[jax.ShapeDtypeStruct(*kind) for kind in kinds]).eqns
    if len(eqn.invars) != len(kinds):
        raise ValueError(f"{eqn.primitive.name} does not take exactly the inputs given")
    out = eqn.outvars[0].aval
    return Lax(eqn.primitive, tuple(sorted(eqn.params.items()))), tuple(out.shape), out.dtype


@dataclasses.dataclass(frozen=True)
class _Keyed:
    """A function, equal to another of the same key."""

    key: Hashable
    fn: Callable[..., Any] = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=4096)
def _traced_once(keyed: _Keyed, kinds: tuple[Any, ...]) -> tuple[Lax, tuple[int, ...], Any]:
    return _trace(keyed.fn, kinds)


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
    fn = functools.partial(jax.lax.convert_element_type, new_dtype=dtype)
    return emit_jax(builder, fn, [a], where, key=("convert_element_type", np.dtype(dtype)))


def broadcast_op(atom: Atom, shape: tuple[int, ...]) -> Lax:
    """The operation that brings `atom`, a scalar or with axes of length 1, to `shape`."""
    return _broadcast_op((tuple(atom.shape), atom.dtype), shape)


@functools.lru_cache(maxsize=4096)
def _broadcast_op(kind: tuple[Any, ...], shape: tuple[int, ...]) -> Lax:
    axes = tuple(range(len(shape))) if kind[0] else ()
    return _trace(lambda x: jax.lax.broadcast_in_dim(x, shape, axes), (kind,))[0]


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
