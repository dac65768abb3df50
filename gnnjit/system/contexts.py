"""Contexts that decide what a trace gives, each part of the key of JAX's caches and of ours.

A function that `jax.jit` compiled in one context is traced anew in another, and found again in the
first. A flag in a thread-local or a global is not: JAX would run what it compiled before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any, Generic, ParamSpec, TypeVar, cast

import jax

T = TypeVar("T", bound=Hashable)
P = ParamSpec("P")
R = TypeVar("R")


class Context(Generic[T]):
    """`with context(value):` sets the value in this thread; `context.value` reads it. Made when a
    module is imported: JAX takes no new ones while it traces."""

    def __init__(self, default: T) -> None:
        self._jax = jax.make_user_context(default)
        _every.append(self)

    @property
    def value(self) -> T:
        return self._jax.value

    def __call__(self, value: T) -> AbstractContextManager[None]:
        hash(value)  # an error here has the user's line, one of JAX's caches has not
        return self._jax(value)

    def set_in_all_threads(self, value: T) -> None:
        """From now on, where no `with` says otherwise."""
        hash(value)
        self._jax.set_global(value)


_every: list[Context[Any]] = []


def values() -> tuple[Hashable, ...]:
    """The values of all contexts, and JAX's settings that decide what our passes trace: equal where
    a trace gives the same."""
    config = cast(Any, jax.config)
    settings = config.jax_default_matmul_precision, config.jax_enable_x64
    return (*settings, *(context.value for context in _every))


def cached(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`functools.lru_cache` for a function whose result depends on the contexts."""

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @functools.lru_cache(maxsize)
        def known(_: Hashable, *args: Any, **keywords: Any) -> R:
            return fn(*args, **keywords)

        @functools.wraps(fn)
        def wrapper(*args: P.args, **keywords: P.kwargs) -> R:
            return known(values(), *args, **keywords)

        wrapper.cache_info = known.cache_info  # type: ignore[attr-defined]
        wrapper.cache_clear = known.cache_clear  # type: ignore[attr-defined]
        return cast(Callable[P, R], wrapper)

    return decorate
