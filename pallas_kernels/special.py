"""Functions that the backend lacks, of float32 tiles."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

# Rational approximation of erf(x) / x on |x| < 3.832..., beyond which float32's erf is 1. The
# coefficients are those of Eigen and XLA; the error stays within a few units in the last place.
_ERF_TOP = (
    0.00022905065861350646,
    0.0034082910107109506,
    0.050955695062380861,
    0.18520832239976145,
    1.128379143519084,
)
_ERF_BOTTOM = (
    -1.1791602954361697e-7,
    0.000023547966471313185,
    0.0010179625278914885,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067538,
    1.0,
)

# Cephes' rational approximations of erfc(x) exp(x^2) x in 1 / x^2, on 1 <= x < 2 and beyond.
_ERFC_NEAR = (
    2.326819970068386e-2,
    -1.387039388740657e-1,
    3.687424674597105e-1,
    -5.824733027278666e-1,
    6.210004621745983e-1,
    -4.944515323274145e-1,
    3.404879937665872e-1,
    -2.741127028184656e-1,
    5.638259427386472e-1,
)
_ERFC_FAR = (
    -1.047766399936249e1,
    1.297719955372516e1,
    -7.495518717768503e0,
    2.921019019210786e0,
    -1.015265279202700e0,
    4.218463358204948e-1,
    -2.820767439740514e-1,
    5.641895067754075e-1,
)


def erf(x: jax.Array) -> jax.Array:
    """Within a few units in the last place; NaN of NaN."""
    bound = 3.832506856900711
    near = jnp.minimum(jnp.maximum(x, -bound), bound)
    square = near * near
    found = near * _horner(_ERF_TOP, square) / _horner(_ERF_BOTTOM, square)
    return jnp.where(x != x, x, found)


def erfc(x: jax.Array) -> jax.Array:
    """`1 - erf(x)`, with relative accuracy where it is small; 2 far below zero."""
    size = jnp.maximum(jnp.abs(x), 1)
    inverse = 1 / size
    square = inverse * inverse
    factor = jnp.where(size < 2, _horner(_ERFC_NEAR, square), _horner(_ERFC_FAR, square))
    tail = jnp.exp(-size * size) * inverse * factor
    far = jnp.where(x < 0, 2 - tail, tail)
    return jnp.where(jnp.abs(x) > 1, far, 1 - erf(x))


def _horner(coefficients: Sequence[float], x: jax.Array) -> jax.Array:
    total = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + np.asarray(c, x.dtype)
    return total
