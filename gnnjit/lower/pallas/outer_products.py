"""Sums of outer products that a program holds; `gnnjit.ir.outer_products` finds them."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from gnnjit.ir.outer_products import OuterProduct
from gnnjit.ir.program import Atom
from gnnjit.lower.pallas.tile import clear, read
from pallas_kernels.traversal import DOT, padded

MAX_SUM = 8192
"""Scalars of a sum of outer products that a program holds; more spill into memory."""


def tiles(pair: OuterProduct, env: dict[Any, Any]) -> tuple[Any, Any]:
    """Both vectors."""
    return _wide(pair.left, env), _wide(pair.right, env)


def too_large(pair: OuterProduct) -> list[str]:
    """Why no kernel sums a product; empty if one does."""
    sizes = [atom.shape[0] for atom in (pair.left, pair.right)]
    if math.prod(padded(sizes)) <= MAX_SUM:
        return []
    what = " x ".join(map(str, sizes))
    return [f"a sum of outer products of {what} is larger than a program holds"]


def _wide(atom: Atom, env: dict[Any, Any]) -> Any:
    """The tile of a vector, cleared and at least as wide as a matrix product needs."""
    x = clear(read(env, atom), atom.shape)
    missing = DOT - padded(atom.shape)[0]
    if missing <= 0:
        return x
    at = jnp.arange(DOT)[None, :, None] == jnp.arange(x.shape[1])[None, None, :]
    return jnp.sum(jnp.where(at, x[:, None, :], jnp.zeros((), x.dtype)), axis=2)
