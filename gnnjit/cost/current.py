"""The cost model in use: the stored one of this device, else the shipped one.

It is read once a process, so that plans do not change under a running program.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import jax

from gnnjit.cost.defaults import default_model
from gnnjit.cost.model import CostModel
from gnnjit.cost.store import Key, load
from gnnjit.system.contexts import Context

_used: Context[CostModel | None] = Context(None)


def current(platform: str | None = None, dtype: str = "float32") -> CostModel:
    """The model of a platform, the default backend's where none is named; its `source` says which
    it is. Where this process has no device of the platform, the shipped one."""
    if _used.value is not None:
        return _used.value
    platform = platform or jax.default_backend()
    return _read("gpu" if platform == "cuda" else platform, str(dtype))


@contextlib.contextmanager
def use(model: CostModel) -> Iterator[None]:
    """Within it, in this thread, `model` is the current one of every platform and dtype."""
    with _used(model):
        yield


def forget() -> None:
    """Read anew what is stored. Functions that JAX has compiled stay as they are."""
    _read.cache_clear()


@functools.cache
def _read(platform: str, dtype: str) -> CostModel:
    try:
        key = Key.here(platform, dtype)
    except RuntimeError:  # this process has no such device
        return default_model(platform)
    stored = load(key)
    return default_model(platform) if stored is None else stored.model
