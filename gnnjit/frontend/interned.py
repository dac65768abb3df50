"""One object for operations that mean the same, so that programs of them are equal.

`jax.nn.relu` and its like, loops and conditions hold jaxprs and functions, which are other objects
in each trace. A layer that uses them would never be the same program twice, and each call outside
`jax.jit`, and each derivative, would compile anew.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit import _compat
from gnnjit.frontend.lifted import CUSTOM, lifted
from gnnjit.ir.evaluate import bind
from gnnjit.ir.program import Atom, Lax

MOST = 4096
"""Operations that are remembered."""

MOST_BYTES = 1 << 20
"""Bytes of closed-over arrays at most, by whose contents an operation is recognised."""

_seen: dict[Hashable, Lax] = {}


def interned(op: Lax, eqn: Any, ins: Sequence[Atom]) -> Lax:
    """The first operation seen with the same value and the same derivative; `op` itself where the
    text of its jaxprs does not tell."""
    if not any(True for _ in _compat.subjaxprs(eqn)) or _compat.holds_arrays(eqn):
        return op
    avals = [_compat.like(a) for a in ins]
    key = (_of_custom if op.name in CUSTOM else _of_jaxprs)(op, eqn, avals)
    if key is None:
        return op
    if len(_seen) >= MOST and key not in _seen:
        del _seen[next(iter(_seen))]
    return _seen.setdefault(key, op)


def _of_custom(op: Lax, eqn: Any, avals: Sequence[Any]) -> Hashable:
    closed_over = op["num_consts"]  # which the derivative leaves out
    differentiated = [*avals[closed_over:], *(v.aval for v in eqn.outvars)]
    if not all(jnp.issubdtype(a.dtype, jnp.inexact) for a in differentiated):
        return None

    def with_derivative(*xs: Any) -> Any:
        held = xs[:closed_over]
        if op.name == "custom_jvp_call":
            return jax.jvp(lambda *ys: bind(op, (*held, *ys)), xs[closed_over:], xs[closed_over:])
        values, transpose = jax.vjp(lambda *ys: bind(op, (*held, *ys)), *xs[closed_over:])
        return values, transpose(values)

    try:
        value, derivative = str(op["call_jaxpr"]), _text(with_derivative, avals)
    except _compat.CustomVJPException:  # JAX has traced it anew, and some input is no constant now
        return None
    texts = (op.name, closed_over, value, derivative)
    return None if derivative is None or _ADDRESS.search(value + derivative) else texts


def _of_jaxprs(op: Lax, eqn: Any, avals: Sequence[Any]) -> Hashable:
    """A loop or a condition. Its text tells everything but the derivatives of functions that have
    one of their own."""
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
    """The text of a function's jaxpr, with what it closes over; None where that does not show
    everything."""
    jaxpr, arrays = lifted(jax.make_jaxpr(fn)(*avals))
    if any(map(_compat.holds_arrays, jaxpr.eqns)) or not all(map(_is_array, arrays)):
        return None
    if sum(x.nbytes for x in arrays) > MOST_BYTES:
        return None
    contents = [hashlib.sha256(np.asarray(x).tobytes()).hexdigest() for x in arrays]
    return f"{jaxpr} {contents}"


def _is_array(x: Any) -> bool:
    """Whether it is an array of numbers that are known."""
    known = _compat.is_numpy(x) or (isinstance(x, jax.Array) and not _compat.is_tracer(x))
    return known and isinstance(x.dtype, np.dtype)
