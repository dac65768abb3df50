"""Writing equations from inside a pass: plain JAX expressions instead of primitive parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from gnnjit import _compat
from gnnjit.ir.evaluate import Kind, result_kinds
from gnnjit.ir.program import Atom, Builder, Degree, Equation, Lax, Literal, Location, Value
from gnnjit.ir.space import Space, join
from gnnjit.system.contexts import cached

_NUMBER: Kind = ((), np.dtype(np.float32))
_COUNT: Kind = ((), np.dtype(np.int32))
_TRUTH: Kind = ((), np.dtype(bool))


def emit_op(
    builder: Builder,
    op: Lax,
    inputs: Sequence[Atom],
    where: Location | None = None,
    space: Space | None = None,
) -> Value:
    """Append an operation that gives one result, in the join of the inputs' spaces (or `space`)."""
    ((shape, dtype),) = result_kinds(op, tuple((tuple(a.shape), a.dtype) for a in inputs))
    out = Value(shape, dtype, space or join(*(a.space for a in inputs)))
    return builder.emit(op, inputs, [out], where)[0]


def elementwise(
    builder: Builder,
    fn: Callable[..., Any],
    inputs: Sequence[Atom],
    where: Location | None = None,
    space: Space | None = None,
) -> Value:
    """Append `fn(*inputs)`, one JAX primitive whose parameters do not depend on the shapes: it is
    traced once, on scalars."""
    op = traced_op(fn, tuple(((), a.dtype) for a in inputs))
    return emit_op(builder, op, inputs, where, space)


@cached(maxsize=4096)
def traced_op(fn: Callable[..., Any], kinds: tuple[Kind, ...]) -> Lax:
    """The JAX primitive that a function is on arguments of these kinds, and no others. It is traced
    once for equal functions."""
    found = _often().get((fn, kinds))
    return _traced([(fn, kinds)])[0] if found is None else found


_Call = tuple[Callable[..., Any], tuple[Kind, ...]]


@cached(maxsize=16)
def _often() -> dict[_Call, Lax]:
    """The primitives that most layers need, in one trace: each takes half a millisecond, however
    short."""
    dtype = _NUMBER[1]
    calls: list[_Call] = [
        (jax.lax.mul, (_NUMBER, _NUMBER)),
        (jax.lax.div, (_NUMBER, _NUMBER)),
        (jax.lax.sub, (_NUMBER, _NUMBER)),
        (jax.lax.exp, (_NUMBER,)),
        (jax.lax.is_finite, (_NUMBER,)),
        (jax.lax.max, (_COUNT, _COUNT)),
        (jax.lax.gt, (_COUNT, _COUNT)),
        (jax.lax.eq, (_COUNT, _COUNT)),
        (jax.lax.select_n_p.bind, (_TRUTH, _NUMBER, _NUMBER)),
        (_as_vector, (_NUMBER,)),
        (_to_vector, (_NUMBER,)),
        (_numbers, ()),
        (_to_number, (_COUNT,)),
        (_dot, (((1,), dtype), ((1, 1), dtype))),
    ]
    return dict(zip(calls, _traced(calls), strict=True))


def _traced(calls: Sequence[_Call]) -> list[Lax]:
    structs = [[jax.ShapeDtypeStruct(*kind) for kind in kinds] for _, kinds in calls]

    def every(args: list[list[Any]]) -> list[Any]:
        return [fn(*xs) for (fn, _), xs in zip(calls, args, strict=True)]

    with _compat.without_mesh():
        eqns = jax.make_jaxpr(every)(structs).eqns
    for eqn, (_, kinds) in zip(eqns, calls, strict=True):
        if len(eqn.invars) != len(kinds):
            raise ValueError(f"{eqn.primitive.name} does not take exactly the inputs given")
    return [Lax(eqn.primitive, tuple(sorted(eqn.params.items()))) for eqn in eqns]


def reshape_op(shape: tuple[int, ...]) -> Lax:
    return with_params(traced_op(_as_vector, (_NUMBER,)), new_sizes=shape)


def broadcast_in_dim_op(shape: tuple[int, ...], axes: tuple[int, ...]) -> Lax:
    return with_params(traced_op(_to_vector, (_NUMBER,)), shape=shape, broadcast_dimensions=axes)


def slice_op(starts: tuple[int, ...], stops: tuple[int, ...]) -> Lax:
    op = traced_op(_part, (((1,), _NUMBER[1]),))
    strides = (1,) * len(starts)
    return with_params(op, start_indices=starts, limit_indices=stops, strides=strides)


def transpose_op(order: tuple[int, ...]) -> Lax:
    op = traced_op(_transposed, (((1, 1), _NUMBER[1]),))
    return with_params(op, permutation=order)


def iota_op(dtype: Any, shape: tuple[int, ...], axis: int) -> Lax:
    """The numbers along an axis of an array."""
    op = traced_op(_numbers, ())
    return with_params(op, dtype=np.dtype(dtype), shape=shape, dimension=axis)


def convert_op(dtype: Any) -> Lax:
    """From any other dtype."""
    return with_params(traced_op(_to_number, (_COUNT,)), new_dtype=np.dtype(dtype))


def sum_op(axes: tuple[int, ...]) -> Lax:
    """The sum over some axes, of floating-point numbers."""
    op = traced_op(_total, (((1,), _NUMBER[1]),))
    return with_params(op, axes=axes)


def dot_op(dtype: Any) -> Lax:
    """A vector times a matrix of the same dtype."""
    return traced_op(_dot, (((1,), dtype), ((1, 1), dtype)))


def _numbers() -> Any:
    return jax.lax.broadcasted_iota(np.int32, (1,), 0)


def _to_number(x: Any) -> Any:
    return jax.lax.convert_element_type(x, np.float32)


def _dot(x: Any, w: Any) -> Any:
    return jax.lax.dot_general(x, w, (((0,), (0,)), ((), ())))


def _total(x: Any) -> Any:
    return jax.lax.reduce(x, x.dtype.type(0), jax.lax.add, (0,))


def _as_vector(x: Any) -> Any:
    return jax.lax.reshape(x, (1,))


def _to_vector(x: Any) -> Any:
    return jax.lax.broadcast_in_dim(x, (1,), ())


def _transposed(x: Any) -> Any:
    return jax.lax.transpose(x, (1, 0))


def _part(x: Any) -> Any:
    return jax.lax.slice(x, (0,), (1,))


def with_params(op: Lax, **params: Any) -> Lax:
    """The same operation with other parameters."""
    return Lax(op.primitive, tuple(sorted({**dict(op.params), **params}.items())))


def mul(builder: Builder, a: Atom, b: Atom, where: Location | None = None) -> Value:
    return elementwise(builder, jax.lax.mul, [a, b], where)


def combine(
    builder: Builder, fn: Callable[..., Any], a: Atom, b: Atom, where: Location | None = None
) -> Value:
    """A binary primitive of two values of the same shape."""
    return elementwise(builder, fn, [a, b], where)


def degree_like(builder: Builder, space: Space, like: Value, where: Location | None) -> Value:
    """The degree of each element of `space`, with the dtype and shape of `like`."""
    (count,) = builder.emit(Degree(), [], [Value((), np.dtype(np.int32), space)], where)
    return broadcast(builder, convert(builder, count, like.dtype, where), like.shape, where)


def has_edges(builder: Builder, space: Space, shape: tuple[int, ...], where: Any) -> Value:
    """`bool` of `shape`: whether the element has any edge."""
    (count,) = builder.emit(Degree(), [], [Value((), np.dtype(np.int32), space)], where)
    zero = Literal(np.int32(0), np.dtype(np.int32))
    some = elementwise(builder, jax.lax.gt, [count, zero], where)
    return broadcast(builder, some, shape, where)


def convert(builder: Builder, a: Value, dtype: Any, where: Location | None = None) -> Value:
    if a.dtype == dtype:
        return a
    return emit_op(builder, convert_op(np.dtype(dtype)), [a], where)


def reshape(
    builder: Builder, a: Atom, shape: tuple[int, ...], where: Location | None = None
) -> Atom:
    if a.shape == shape:
        return a
    return emit_op(builder, reshape_op(shape), [a], where)


def broadcast_op(atom: Atom, shape: tuple[int, ...]) -> Lax:
    """The operation that brings `atom`, a scalar or with axes of length 1, to `shape`."""
    axes = tuple(range(len(shape))) if atom.shape else ()
    return broadcast_in_dim_op(shape, axes)


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
