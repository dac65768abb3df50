"""What every primitive of ours needs beside its rules: to run by itself, and to become code."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gnnjit import _compat
from gnnjit.system.portable import portable

EVERY = (None, "cpu", "cuda", "rocm", "tpu")
"""Platforms; None stands for all that are not named."""

MOST = 1024
"""Primitives with other parameters whose code is kept for calls outside `jax.jit`."""


def runs_alone(primitive: Any, named: Callable[..., str] | None = None) -> None:
    """What the primitive does outside `jax.jit`, as in `jax.grad` of a layer: it is compiled once
    for the same parameters and shapes. `named(**params)` is what JAX says of it where
    `jax.debug_nans` finds one in its results; its name if left out."""

    def alone(*args: Any, **params: Any) -> Any:
        with jax.disable_jit(False):  # as JAX's own primitives are
            return _jitted(primitive, named, frozenset(params.items()))(*args)

    primitive.def_impl(alone)


@functools.lru_cache(maxsize=MOST)
def _jitted(
    primitive: Any, named: Callable[..., str] | None, params: frozenset[tuple[str, Any]]
) -> Callable[..., Any]:
    """JAX forgets what it compiled when this function is forgotten."""

    def one(*args: Any) -> Any:
        return primitive.bind(*args, **dict(params))

    one.__name__ = primitive.name
    one.__qualname__ = named(**dict(params)) if named else primitive.name
    return jax.jit(_compat.as_one_operation(one))


def lowers_to(
    primitive: Any,
    fn: Callable[..., Any],
    platforms: Sequence[str | None] = EVERY,
    *,
    multiple_results: bool = True,
) -> None:
    """`fn(*args, **params, platform=)` is how a primitive becomes code, on each platform. It is
    called within `gnnjit.portable` where `jax.export` asks."""
    for platform in platforms:
        traced = functools.partial(fn, platform=platform or "other")
        rule = _portable_in_exports(_compat.lower_fun(traced, multiple_results=multiple_results))
        where: dict[str, Any] = {} if platform is None else {"platform": platform}
        _compat.mlir.register_lowering(primitive, rule, **where)


def _portable_in_exports(rule: Callable[..., Any]) -> Callable[..., Any]:
    def lowered(ctx: Any, *args: Any, **params: Any) -> Any:
        with portable() if _compat.is_exported(ctx) else contextlib.nullcontext():
            return rule(ctx, *args, **params)

    return lowered
