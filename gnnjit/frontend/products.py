"""Products of edge values, and questions about all or any of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.frontend.formulas import as_by
from gnnjit.frontend.vocabulary import Edges, Over, reduced

__all__ = ["all", "any", "prod"]


def prod(value: Any, *, initial: Any = None, over: Over = "in") -> Any:
    """Product of `value` over this vertex's incoming edges: the same pytree, a vertex value.

    Half precision is multiplied in float32. Dtypes are those of `jnp.prod`. The gradient of a
    factor is the product of the others, also where some are 0; second derivatives are right too,
    third ones where no more than two factors of a row are 0.

    Args:
        value: a pytree of `[...]`, one value per edge.
        initial: the result over no edges; 1 if left out.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`.

    Raises:
        LayerError: as of `gnnjit.sum`.
    """
    return reduced("prod", value, 1 if initial is None else initial, over, _prod)


def _prod(edges: Edges, x: Any) -> jax.Array:
    x = as_by("prod", x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return edges.reduce("prod", x)
    wide = x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x
    # The product of the factors that are not 0 has a derivative that divides by each. Where n are
    # 0, it is multiplied by the sum of all products of n of these: 0, with the right derivatives.
    zero = wide == 0
    some = edges.reduce("prod", jnp.where(zero, jnp.ones_like(wide), wide))
    zeros = jnp.where(zero, wide, jnp.zeros_like(wide))
    count = edges.reduce("sum", zero.astype(jnp.int32))
    one = edges.reduce("sum", zeros)
    two = (one * one - edges.reduce("sum", zeros * zeros)) / 2
    rest = jnp.where(count == 1, one, jnp.where(count == 2, two, jnp.zeros_like(two)))
    return jnp.where(count == 0, some, some * rest).astype(x.dtype)


def any(value: Any, *, over: Over = "in") -> Any:
    """Whether `value` is true (not 0) on any incoming edge: a vertex value, `bool`; False over no
    edges.

    Args:
        value: a pytree of `[...]`, one value per edge.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`.

    Raises:
        LayerError: as of `gnnjit.sum`.
    """
    return reduced("any", value, None, over, lambda e, x: e.extreme("max", x.astype(bool)))


def all(value: Any, *, over: Over = "in") -> Any:
    """Whether `value` is true (not 0) on all incoming edges: a vertex value, `bool`; True over no
    edges.

    Args:
        value: a pytree of `[...]`, one value per edge.
        over: "out" for this vertex's outgoing edges, as of `gnnjit.sum`.

    Raises:
        LayerError: as of `gnnjit.sum`.
    """
    return reduced("all", value, True, over, lambda e, x: e.extreme("min", x.astype(bool)))
