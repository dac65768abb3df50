"""What JAX or Python say of a layer that cannot be traced, in the terms of a layer's user."""

from __future__ import annotations

import dis
import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gnnjit import _compat
from gnnjit.errors import GnnjitError, LayerError, shortened
from gnnjit.ir.program import Value

_RAISE = dis.opmap["RAISE_VARARGS"]

_CONCRETE: dict[type[Exception], tuple[str, str]] = {
    jax.errors.TracerBoolConversionError: (
        "needs the truth of a value of the graph in Python (if, while, and, or, not, assert)",
        "jnp.where(condition, a, b), jnp.logical_and(a, b) or jax.lax.cond",
    ),
    jax.errors.TracerArrayConversionError: (
        "gave a value of the graph to NumPy or another library (np.exp, np.asarray, ...)",
        "the function of jax.numpy, as jnp.exp for np.exp",
    ),
    jax.errors.TracerIntegerConversionError: (
        "used a value of the graph as a Python integer (an index of a list, a size, a range)",
        "an index of a JAX array, as in jnp.asarray(table)[i]",
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        "picked entries by a condition, of which it is not known how many hold",
        "jnp.where(condition, x, 0)",
    ),
    jax.errors.ConcretizationTypeError: (
        "made a Python number of a value of the graph (float(), int(), .item(), math.exp, ...)",
        "jnp.exp for math.exp, x.astype(float) for float(x)",
    ),
}
"""What a layer did where JAX needs a number, and what to write instead; subclasses first."""


def in_words(error: Exception, values: Sequence[Value], name: str, where: str) -> LayerError | None:
    """The error to raise in place of one that came up in the user's function, or None where that
    one says it best: the user raised it, or a library that is neither JAX nor ours."""
    if isinstance(error, GnnjitError) or not _is_of_tracing(error):
        return None
    at = _compat.raised_at(error) or where
    for kind, (did, write) in _CONCRETE.items():
        if isinstance(error, kind):
            return LayerError(
                f"{at}: {name} {did}. A layer is traced once, for all vertices and edges, so "
                f"Python sees no numbers. Write {write}; under `with jax.disable_jit():` print "
                "shows the numbers"
            )
    if isinstance(error, AttributeError):
        return _attribute(error, values, name, at)
    if not isinstance(error, (TypeError, ValueError, IndexError)):
        return None
    said = shortened(str(error).strip(), 400)
    return LayerError(
        f"{at}: {name} cannot be traced for one element: {said}\n  {per_element(values)}"
    )


def _attribute(
    error: AttributeError, values: Sequence[Value], name: str, at: str
) -> LayerError | None:
    if not _compat.is_tracer(error.obj):
        return None
    if error.name not in ("src", "dst", "data", "globals"):
        asked = shortened(str(error.name), 60)
        return LayerError(
            f"{at}: {name} asked an array for .{asked}, which arrays do not have\n"
            f"  {per_element(values)}"
        )
    return LayerError(
        f"{at}: {name} asked an array for .{error.name}, which an edge has: v are this vertex's "
        "own features, and those of an incoming edge are e.src, e.dst and e.data. Write "
        f"e.{error.name}"
    )


def _is_of_tracing(error: Exception) -> bool:
    """Whether JAX or we found fault, or Python with one of our values: no `raise` of others."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None or not _compat.is_users(frame.f_code.co_filename):
        return True
    return frame.f_code.co_code[at.tb_lasti] != _RAISE


def per_element(values: Sequence[Value]) -> str:
    """What the function was traced with."""
    given = [f"{shortened(v.name, 60)}: {v.dtype.name}{list(v.shape)}" for v in values[:6]]
    more = f" and {len(values) - 6} more" if len(values) > 6 else ""
    return (
        f"per element: {shortened(', '.join(given), 330)}{more}. A feature vector is [F] here, "
        "never [N, F] or [E, F]"
    )


def check_call(
    fn: Callable[..., Any], params: Sequence[Any], keywords: Sequence[str], name: str, where: str
) -> None:
    """Error where `fn` does not take `(v, e, *params, **keywords)`."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        signature.bind(None, None, *params, **dict.fromkeys(keywords))
    except TypeError as error:
        count = f"{len(params)} parameter{'' if len(params) == 1 else 's'}"
        said = ", ".join([count, *(f"{k}=" for k in keywords)][:8])
        raise LayerError(
            f"{where}: {name}{shortened(str(signature), 200)} was called with {said} after the "
            f"graph and x: {shortened(str(error), 200)}. A layer's function takes (v, e, *params); "
            "features of edges are given as edges=..."
        ) from None
