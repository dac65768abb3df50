"""Formulas of reductions: what the words of `vocabulary` and `readout` compute with.

Each takes what is reduced over, the edges of a vertex or the elements of a graph, and one array.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from gnnjit.ir.at_most import at_most


class Over(Protocol):
    """What reductions run over."""

    def reduce(self, kind: str, x: jax.Array) -> jax.Array:
        """The `sum`, `max` or `min` of `x`; 0 over nothing."""
        ...

    def count(self, x: jax.Array) -> jax.Array:
        """`int32[]`: how many values are reduced."""
        ...


def as_by(word: str, x: Any) -> jax.Array:
    """`x` in the dtype that `jax.numpy` gives this word of it; of integers and truth values too."""
    x = jnp.asarray(x)
    return x.astype(_dtype_by(word, x.dtype, bool(jax.config.read("jax_enable_x64"))))


@functools.cache
def _dtype_by(word: str, dtype: Any, x64: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact) or jnp.issubdtype(dtype, jax.dtypes.extended):
        return dtype  # keys are refused by name
    return jax.eval_shape(getattr(jnp, word), jax.ShapeDtypeStruct((1,), dtype)).dtype


def as_float(x: Any) -> jax.Array:
    """`x` in the dtype of a mean of it."""
    return as_by("mean", x)


def real(x: Any) -> Any:
    """The dtype of a spread of `x`."""
    return jnp.finfo(as_float(x).dtype).dtype


def wide(x: Any) -> jax.Array:
    """Half precision as float32: a sum or a square of it may not fit, where a mean does."""
    x = as_float(x)
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


def mean(over: Over, x: Any) -> jax.Array:
    x = wide(x)
    return over.reduce("sum", x) / jnp.maximum(over.count(x), 1).astype(x.dtype)


def _spread(over: Over, x: Any) -> tuple[jax.Array, jax.Array]:
    """The variance, and how large a standard deviation rounding alone may give.

    The mean is off by rounding, in a long row by many units, and the values may be rounded
    otherwise where they are computed again. The mean of the deviations is what it is off by, the
    same for all edges; its square leaves the variance (the corrected two-pass algorithm). What is
    left may be the rounding of that square, or of each value by itself.
    """
    x = wide(x)
    middle = mean(over, x)
    away = x - middle
    off = _squared(lax.stop_gradient(mean(over, away)))
    variance = mean(over, _squared(away)) - off
    eps = jnp.finfo(x.dtype).eps
    count = over.count(x).astype(off.dtype)
    least = _ROUNDINGS * eps * jnp.abs(middle) + jnp.sqrt(_ROUNDINGS * eps * count * off)
    return variance, lax.stop_gradient(least)


def _squared(x: jax.Array) -> jax.Array:
    """`|x|^2`, real for complex numbers too."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.square(x.real) + jnp.square(x.imag)
    return jnp.square(x)


_ROUNDINGS = 4
"""Units in the last place by which two evaluations of one value may differ."""


def var(over: Over, x: Any) -> jax.Array:
    variance, _ = _spread(over, x)
    return jnp.where(variance <= 0, jnp.zeros_like(variance), variance)


def std(over: Over, x: Any) -> jax.Array:
    variance, least = _spread(over, x)
    none = variance <= 0
    found = jnp.sqrt(jnp.where(none, jnp.ones_like(variance), variance))
    return jnp.where(none | (found <= least), jnp.zeros_like(found), found)


def shifted(over: Over, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`x` less its maximum, never positive, and the maximum, a constant; where that is not finite,
    0 stands for it."""
    top = lax.stop_gradient(over.reduce("max", x))
    shift = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
    return at_most(x, top) - shift, shift


def logsumexp(over: Over, x: Any) -> jax.Array:
    x = wide(x)
    below, shift = shifted(over, x)
    total = over.reduce("sum", jnp.exp(below))
    nothing = jnp.where(over.count(x) > 0, -jnp.inf, 0).astype(x.dtype)
    none = total == 0
    return jnp.where(none, nothing, jnp.log(jnp.where(none, 1, total)) + shift)


def softmax(over: Over, x: Any) -> jax.Array:
    dtype = as_float(x).dtype
    weight = jnp.exp(shifted(over, wide(x))[0])
    total = over.reduce("sum", weight)
    return (weight / jnp.where(total == 0, jnp.ones_like(total), total)).astype(dtype)
