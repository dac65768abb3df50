"""What a rewrite introduces has at least the range and the precision of what it replaces.

Half precision: float32, rounded where the written program's value stood. Other floats: a sum that
was not there before, from which a factor or a matrix was taken, is taken as a mean, and multiplied
last: `sum of a * m` as `(a * (sum of m / n)) * n`, n the number of edges rounded up to a power of
two. Neither dividing nor multiplying by it rounds anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.ir import build
from gnnjit.ir.dtypes import is_half
from gnnjit.ir.program import (
    Atom,
    Builder,
    Degree,
    Equation,
    Lax,
    Literal,
    Location,
    Reduce,
    Value,
)
from gnnjit.ir.space import Space

_THROUGH = ("broadcast_in_dim", "convert_element_type", "mul", "reshape", "squeeze")


def working(dtype: Any) -> Any:
    """The dtype of what a rewrite introduces in place of a value."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def widened(builder: Builder, atom: Atom, dtype: Any, where: Location | None = None) -> Atom:
    """`atom` in another dtype."""
    if atom.dtype == dtype:
        return atom
    if isinstance(atom, Literal):
        return Literal(np.asarray(atom.value).astype(dtype)[()], np.dtype(dtype))
    return build.convert(builder, atom, dtype, where)


def rounds_only(eqn: Equation) -> bool:
    """Whether it takes a number from half precision to float32 or back."""
    if eqn.op.name != "convert_element_type":
        return False
    dtypes = {np.dtype(eqn.inputs[0].dtype), np.dtype(eqn.outputs[0].dtype)}
    return all(is_half(d) or d == np.float32 for d in dtypes)


def in_float32(op: Lax) -> Lax:
    """A product of half precision as one of float32."""
    params = dict(op.params)
    if params.get("preferred_element_type") is not None:
        params["preferred_element_type"] = np.dtype(np.float32)
    return Lax(op.primitive, tuple(sorted(params.items())))


def edge_count(builder: Builder, space: Space, dtype: Any, where: Location | None) -> Value:
    """A power of two for each element of `space`, as a number of `dtype`: at least the number of
    its edges, and 1, and at most twice as large."""
    (count,) = builder.emit(Degree(), [], [Value((), np.dtype(np.int32), space)], where)
    one = Literal(np.int32(1), np.dtype(np.int32))
    some = build.combine(builder, jax.lax.max, count, one, where)
    real = np.finfo(dtype).dtype  # of complex numbers too
    number = build.convert(builder, some, real, where)
    half_more = Literal(np.asarray(1.5, real)[()], real)
    larger = build.combine(builder, jax.lax.mul, number, half_more, where)
    found = build.elementwise(builder, _to_power_of_two, [larger], where)
    return build.convert(builder, found, dtype, where)


def _to_power_of_two(x: jax.Array) -> jax.Array:
    """The nearest one."""
    return jax.lax.reduce_precision(x, jnp.finfo(x.dtype).nexp, 0)


def share(builder: Builder, count: Value, where: Location | None) -> Value:
    """One over what `edge_count` gives."""
    one = Literal(np.asarray(1, count.dtype)[()], np.dtype(count.dtype))
    return build.combine(builder, jax.lax.div, one, count, where)


_COUNT = ("reduce_precision", "mul", "convert_element_type", "max")
"""What `edge_count` makes of a degree, the last operation first."""


def has_share(atom: Atom, made: Mapping[Any, Equation], depth: int = 16) -> bool:
    """Whether `share` is among the factors of an edge value."""
    eqn = made.get(atom)
    if eqn is None or depth == 0:
        return False
    if eqn.op.name in _THROUGH:
        return any(has_share(a, made, depth - 1) for a in eqn.inputs)
    if eqn.op.name != "div" or not build.is_filled_with(eqn.inputs[0], 1, made):  # type: ignore[arg-type]
        return False
    below: Equation | None = made.get(eqn.inputs[1])
    if below is not None and below.op.name == "convert_element_type":  # to complex numbers
        below = made.get(below.inputs[0])
    for name in _COUNT:
        if below is None or below.op.name != name:
            return False
        below = made.get(below.inputs[0])
    return below is not None and isinstance(below.op, Degree)


def is_softmax_total(atom: Atom, made: Mapping[Any, Equation]) -> bool:
    """Whether `atom` is what a softmax divides by: the sum of `exp(at_most(score, top) - top)` of a
    row, or 1. From 1 to the number of edges, it may be divided by that number."""
    chain = ("select_n", "sum", "exp", "sub", "at_most")
    eqn = _behind_casts(atom, made)
    for name in chain:
        kind = eqn.op.kind if eqn is not None and isinstance(eqn.op, Reduce) else None
        if eqn is None or name not in (eqn.op.name, kind):
            return False
        eqn = _behind_casts(eqn.inputs[1 if name == "select_n" else 0], made)
    return True


def _behind_casts(atom: Atom, made: Mapping[Any, Equation]) -> Equation | None:
    eqn = made.get(atom)
    while eqn is not None and eqn.op.name in (
        "convert_element_type",
        "broadcast_in_dim",
        "reshape",
    ):
        eqn = made.get(eqn.inputs[0])
    return eqn
