"""How often XLA compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """What XLA compiles within it."""
    found: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == COMPILED:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
