"""One object for operations that mean the same, so that programs of them are equal.

`jax.nn.relu` and its like, loops and conditions hold jaxprs and functions, which are other objects
in each trace. A layer that uses them would never be the same program twice, and each call outside
`jax.jit`, and each derivative, would compile anew.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit import _compat
from gnnjit.ir.evaluate import bind
from gnnjit.ir.program import Atom, Lax

CUSTOM = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}

MOST = 4096
"""Operations that are remembered."""

_seen: dict[Hashable, Lax] = {}


def interned(op: Lax, eqn: Any, ins: Sequence[Atom]) -> Lax:
    """The first operation seen with the same value and the same derivative; `op` itself where the
    text of its jaxprs does not tell."""
    key = None
    if op.name in CUSTOM:
        key = _of_custom(op, [_compat.like(a) for a in ins], eqn.outvars)
    elif any(True for _ in _compat.subjaxprs(eqn)):
        key = _of_jaxprs(op, eqn, [_compat.like(a) for a in ins])
    if key is None:
        return op
    if len(_seen) >= MOST and key not in _seen:
        del _seen[next(iter(_seen))]
    return _seen.setdefault(key, op)


def _of_custom(op: Lax, avals: Sequence[Any], outs: Sequence[Any]) -> Hashable:
    if not all(jnp.issubdtype(a.dtype, jnp.inexact) for a in [*avals, *(v.aval for v in outs)]):
        return None

    def with_derivative(*xs: Any) -> Any:
        if op.name == "custom_jvp_call":
            return jax.jvp(lambda *ys: bind(op, ys), xs, xs)
        values, transpose = jax.vjp(lambda *ys: bind(op, ys), *xs)
        return values, transpose(values)

    value, derivative = str(op["call_jaxpr"]), _text(with_derivative, avals)
    texts = (op.name, value, derivative)
    return None if derivative is None or _ADDRESS.search(value + derivative) else texts


def _of_jaxprs(op: Lax, eqn: Any, avals: Sequence[Any]) -> Hashable:
    """A loop or a condition. Its text tells everything but the derivatives of functions that have
    one of their own."""
    if _compat.holds_arrays(eqn):
        return None
    value = _ADDRESS.sub("", f"{op.name} {op.params}")
    own = CUSTOM.keys() & set(_compat.primitive_names(eqn))
    if not own:
        return value
    if own != {"custom_jvp_call"}:  # the derivative is another function, of which no text tells
        return None

    def derivative(*xs: Any) -> Any:
        tangents = tuple(
            x if jnp.issubdtype(x.dtype, jnp.inexact) else np.zeros(x.shape, jax.dtypes.float0)
            for x in xs
        )
        return jax.jvp(lambda *ys: bind(op, ys), xs, tangents)

    text = _text(derivative, avals)
    return None if text is None else (value, _ADDRESS.sub("", text))


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""In the text of a function, of which it shows only where it lies."""


def _text(fn: Any, avals: Sequence[Any]) -> str | None:
    """The text of a function's jaxpr; None where it does not show everything."""
    closed = jax.make_jaxpr(fn)(*avals)
    return None if _compat.open_jaxpr(closed)[1] else str(closed)
