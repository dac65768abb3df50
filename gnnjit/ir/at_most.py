"""`at_most(x, top)`: the smaller of the two, to differentiation `x` itself.

Softmax computes a score twice, once for the maximum of its row and once for the exponential, and
compilers round the two differently: `a * b - top` becomes one operation, or sums are re-associated.
For scores near 1e9, the largest score then differs from itself by hundreds, and its exponential is
infinite. `at_most(score, top) - top` is never positive, and what stands between the product and the
difference keeps them two operations. Where the two are equal, up to rounding, the gradient goes to
the score, all of it, which `min` would share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gnnjit import _compat

at_most_p = _compat.Primitive("at_most")


def at_most(x: jax.Array, top: jax.Array) -> jax.Array:
    """`x`, or `top` where that is smaller, of the same shape and dtype; NaN where either is."""
    return at_most_p.bind(x, top)


def _batch(args: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, int]:
    (count,) = {x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None}
    moved = [
        jnp.broadcast_to(x, (count, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    ]
    return at_most_p.bind(*moved), 0


at_most_p.def_impl(lax.min)
at_most_p.def_abstract_eval(lambda *xs: _compat.result_aval(xs, xs[0].shape, xs[0].dtype))
_compat.ad.primitive_jvps[at_most_p] = lambda primals, tangents: (
    at_most_p.bind(*primals),
    tangents[0],
)
_compat.batching.primitive_batchers[at_most_p] = _batch
_compat.mlir.register_lowering(at_most_p, _compat.lower_fun(lax.min, multiple_results=False))
