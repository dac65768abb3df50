"""Checks of what the modules are made with, and of features that they read before any layer."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gnnjit.errors import LayerError
from gnnjit.graph.reading import is_number
from gnnjit.graph.validate import INT32_MAX, cut, is_traced, refuse_sparse, shown


def check_sizes(module: str, least: int = 1, **sizes: Any) -> None:
    """Raises LayerError unless each is a whole number, `least` or more, or None where the module
    has it as a default (`edge_features`)."""
    for name, value in sizes.items():
        if name == "edge_features" and value is None:
            continue
        number: int | None = None
        try:
            if not isinstance(value, bool | np.bool_ | None):
                number = operator.index(value)
        except TypeError:
            pass
        if number is None or not least <= number <= INT32_MAX:
            raise _odd(
                module, name, value, f"a whole number from {least} to {INT32_MAX}: pass an int"
            )


def check_flags(module: str, **flags: Any) -> None:
    """Raises LayerError unless each is True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise _odd(module, name, value, "True or False: pass one of them")


def check_numbers(module: str, **values: Any) -> None:
    """Raises LayerError unless each is one finite real number."""
    for name, value in values.items():
        if not _is_real(value) or not (is_traced(value) or math.isfinite(value)):
            raise _odd(module, name, value, "a finite real number: pass a float")


def check_rate(
    module: str, rate: Any, name: str = "dropout", what: str = "the share of coefficients to drop"
) -> None:
    """Raises LayerError unless the rate is a number from 0 to 1."""
    if not _is_real(rate) or not (is_traced(rate) or 0 <= rate <= 1):
        raise _odd(module, name, rate, f"a number from 0 to 1: pass {what}")


def check_choice(module: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises LayerError unless the value is one of the names."""
    if not isinstance(value, str) or value not in choices:
        raise _odd(module, name, value, f"one of {', '.join(map(repr, choices))}: pass one of them")


def check_rngs(module: str, rngs: Any) -> None:
    """Raises LayerError unless `rngs` can draw parameters."""
    if not isinstance(rngs, nnx.Rngs):
        raise _odd(module, "rngs", rngs, "an nnx.Rngs: pass nnx.Rngs(0), of any seed")
    if not ("params" in rngs or "default" in rngs):
        streams = cut(", ".join(map(str, rngs)))
        raise LayerError(
            f"nn.{module}: rngs has the streams {streams}, expected one for parameters: pass "
            "nnx.Rngs(0), or name one, as in nnx.Rngs(params=0)"
        )


def float_features(module: str, x: Any) -> jax.Array:
    """`x: [N, F]` as floating-point numbers. Raises GraphError on a sparse array, LayerError on
    anything else."""
    refuse_sparse(f"nn.{module}: x", x)
    is_array = isinstance(x, (np.ndarray, jax.Array)) and x.ndim == 2
    if not is_array or not is_number(x.dtype) or jnp.issubdtype(x.dtype, np.complexfloating):
        shape = f" of {cut(str(x.dtype))}{list(x.shape)}" if hasattr(x, "dtype") else ""
        remedy = "x[:, None], one feature" if getattr(x, "ndim", 2) == 1 else "jnp.asarray(x)"
        raise LayerError(
            f"nn.{module} got {cut(type(x).__name__)}{shape} as features, expected an array [N, F] "
            f"of real numbers: pass {remedy}"
        )
    if isinstance(x, np.ndarray):
        x = jnp.asarray(x.astype(x.dtype.newbyteorder("=")))
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def _is_real(value: Any) -> bool:
    if isinstance(value, np.ndarray | jax.Array) and value.ndim == 0:
        return jnp.issubdtype(value.dtype, np.floating) or jnp.issubdtype(value.dtype, np.integer)
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def _odd(module: str, name: str, value: Any, expected: str) -> LayerError:
    return LayerError(f"nn.{module}: {name} is {shown(value)}, expected {expected}")
