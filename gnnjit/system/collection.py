"""Python's garbage collection, put off while many objects are made that all stay for a while."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Collect no garbage within: with JAX's objects in memory, a collection of all takes longer
    than what makes it necessary."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
