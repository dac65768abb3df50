"""Memory budgets: how they are written, and the default one."""

from __future__ import annotations

import contextlib
import math
import re
import reprlib
from collections.abc import Iterator
from typing import Any

from gnnjit.errors import PlanError
from gnnjit.system.contexts import Context

_UNITS = {
    "": 1,
    "b": 1,
    **{p + "b": 1000**k for k, p in enumerate("kmgt", 1)},
    **{p + "ib": 1024**k for k, p in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)

_default: Context[int | None] = Context(None)


def default_budget() -> int | None:
    """Bytes of the innermost `memory_budget`; None without any."""
    return _default.value


@contextlib.contextmanager
def memory_budget(size: int | str | None) -> Iterator[None]:
    """A context that gives each call of a layer a budget, unless the layer has one of its own.

    The budget means what it means in `@gnnjit.layer(memory_budget=...)`. It holds where a layer is
    called or traced; a function that `jax.jit` has compiled is compiled anew under another budget.

    Args:
        size: bytes, or text such as "64MiB"; None lifts the budget of an outer context.

    Raises:
        PlanError: `size` is no size; or, from a layer, no plan of it fits.
    """
    with _default(None if size is None else parse_size(size)):
        yield


def parse_size(size: Any) -> int:
    """Bytes of "256MiB", "1.5 GB", "1e6" or a whole number."""
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    count: Any = None
    if found and found[2].lower() in _UNITS:
        amount = float(found[1]) * _UNITS[found[2].lower()]
        count = int(amount) if math.isfinite(amount) else None
    elif hasattr(size, "__index__") and not isinstance(size, bool):
        count = int(size)
    if count is None or count <= 0:
        raise PlanError(
            f"memory_budget={reprlib.repr(size)} is no size. Give a positive number of bytes, or "
            'text such as "256MiB", "1GiB" or "500MB"'
        )
    return count


def human(count: float) -> str:
    """A number of bytes for people."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
