"""Layers refuse edges that they never read: what a test gives to layers of several kinds."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any


def reads_edges(fn: Any) -> bool:
    """Whether `fn`, or a function that it holds on to, names `e.data`."""
    if isinstance(fn, (list, tuple)):
        return any(map(reads_edges, fn))
    if isinstance(fn, CodeType):
        return "data" in fn.co_names or any(map(reads_edges, fn.co_consts))
    fn = inspect.unwrap(fn) if callable(fn) else fn
    if not inspect.isfunction(fn):
        return False
    held = [cell.cell_contents for cell in fn.__closure__ or ()]
    return reads_edges(fn.__code__) or any(reads_edges(x) for x in held if x is not fn)


def with_edges_as_read(layer: Callable[..., Any], fn: Any) -> Any:
    """`layer`, of the function `fn`: called without the edges that it would refuse."""
    if reads_edges(fn):
        return layer

    def without(call: Callable[..., Any]) -> Any:
        @functools.wraps(call)
        def plain(*args: Any, edges: Any = None, **keywords: Any) -> Any:
            return call(*args, **keywords)

        return plain

    called = without(layer)
    for name in ("explain", "check"):
        if hasattr(layer, name):
            setattr(called, name, without(getattr(layer, name)))
    return called
