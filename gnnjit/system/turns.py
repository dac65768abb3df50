"""How long Python's threads take turns."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

SHORT = 0.0005
"""Seconds of a turn."""

_lock = threading.Lock()
_within = 0
_before = _now = 0.0


@contextlib.contextmanager
def short() -> Iterator[None]:
    """Within it, threads take shorter turns than Python's 5 ms, for a thread that is mostly outside
    of Python: it needs a turn after each of its calls, and another thread that traces gives none
    up before it must. What somebody else sets meanwhile stays."""
    global _within, _before, _now
    with _lock:
        _within += 1
        if _within == 1:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(SHORT, _before))
            _now = sys.getswitchinterval()
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0 and sys.getswitchinterval() == _now:
                sys.setswitchinterval(_before)
