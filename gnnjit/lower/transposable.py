"""`transposable`: a linear function that says itself what its transpose is.

    outs = transposable(fn, residuals, linear)

is `fn(residuals, linear)`, linear in the arrays `linear`. JAX transposes it as
`fn.transposed(residuals, cts)`, and need not look inside, where loops of unknown length may be; to
differentiate it with respect to the residuals, it differentiates `fn` itself. So derivatives of
every order exist where both functions have derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from gnnjit import _compat
from gnnjit._compat import ad, batching
from gnnjit.lower.primitives import lowers_to, runs_alone

Arrays = Sequence[Any]


class Linear(Hashable, Protocol):
    """Equal functions do the same."""

    def __call__(self, residuals: Arrays, linear: Arrays) -> Arrays:
        """The results, floating-point arrays."""
        ...

    def results(self, residuals: Arrays, linear: Arrays) -> Sequence[Any]:
        """Arrays, or their shapes and dtypes, that the results are like; the arguments are shapes
        and dtypes."""
        ...

    def transposed(self, residuals: Arrays, cts: Arrays) -> Arrays:
        """The cotangents of the linear arrays, from those of the results."""
        ...


transposable_p = _compat.Primitive("transposable")
transposable_p.multiple_results = True


def transposable(fn: Linear, residuals: Arrays, linear: Arrays) -> list[Any]:
    """See the module."""
    return transposable_p.bind(*residuals, *linear, fn=fn, count=len(residuals), levels=())


def _call(*args: Any, fn: Linear, count: int, levels: Any, platform: str = "") -> list[Any]:
    def run(*every: Any) -> list[Any]:
        return list(fn(every[:count], every[count:]))

    return _mapped(run, levels)(*args)


def _mapped(run: Callable[..., list[Any]], levels: Any) -> Callable[..., list[Any]]:
    """Over the batch axes, each the first one of the arrays that have it."""
    for axes, size in levels:
        run = jax.vmap(run, in_axes=axes, axis_size=size)
    return run


@transposable_p.def_abstract_eval
def _shapes(*args: Any, fn: Linear, count: int, levels: Any) -> list[Any]:
    shapes = [tuple(x.shape) for x in args]
    for axes, _ in levels:
        shapes = [s if a is None else s[1:] for s, a in zip(shapes, axes, strict=True)]
    one = [jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(shapes, args, strict=True)]
    batch = tuple(size for _, size in reversed(levels))
    return [
        _compat.result_aval(args, (*batch, *x.shape), x.dtype)
        for x in fn.results(one[:count], one[count:])
    ]


def _jvp(
    args: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    count = params["count"]
    outs = transposable_p.bind(*args, **params)
    parts: list[list[Any]] = []
    if any(type(t) is not ad.Zero for t in tangents[count:]):
        moved = map(ad.instantiate_zeros, tangents[count:])
        parts.append(transposable_p.bind(*args[:count], *moved, **params))
    at = [
        i
        for i, t in enumerate(tangents[:count])
        if type(t) is not ad.Zero and jnp.issubdtype(jax.typeof(args[i]).dtype, jnp.inexact)
    ]
    if at:

        def of_residuals(*some: Any) -> list[Any]:
            every = list(args)
            for i, x in zip(at, some, strict=True):
                every[i] = x
            return _call(*every, **params)

        moved = [tangents[i] for i in at]
        parts.append(jax.jvp(of_residuals, [args[i] for i in at], moved)[1])
    if not parts:
        return outs, [_compat.zero_tangent(jax.typeof(x)) for x in outs]
    return outs, [sum(some[1:], start=some[0]) for some in zip(*parts, strict=True)]


def _transpose(cts: Sequence[Any], *args: Any, fn: Linear, count: int, levels: Any) -> list[Any]:
    linear = [i for i in range(count, len(args)) if ad.is_undefined_primal(args[i])]

    def run(*every: Any) -> list[Any]:
        return list(fn.transposed(every[:count], every[count:]))

    over = tuple((axes[:count] + (0,) * len(cts), size) for axes, size in levels)
    found = _mapped(run, over)(*args[:count], *map(ad.instantiate_zeros, cts))
    return [found[i - count] if i in linear else None for i in range(len(args))]


def _batch(
    args: Sequence[Any], dims: Sequence[Any], *, fn: Linear, count: int, levels: Any
) -> tuple[list[Any], list[int]]:
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    every: list[Any] = []
    for i, (x, d) in enumerate(zip(args, dims, strict=True)):
        if d is not None:
            x = jnp.moveaxis(x, d, 0)
        elif i >= count:  # so that all cotangents have the axis
            x = jnp.broadcast_to(x, (size, *jnp.shape(x)))
        every.append(x)
    axes = tuple(None if d is None and i < count else 0 for i, d in enumerate(dims))
    outs = transposable_p.bind(*every, fn=fn, count=count, levels=(*levels, (axes, size)))
    return outs, [0] * len(outs)


ad.primitive_jvps[transposable_p] = _jvp
ad.primitive_transposes[transposable_p] = _transpose
batching.primitive_batchers[transposable_p] = _batch
runs_alone(transposable_p)
lowers_to(transposable_p, _call)
