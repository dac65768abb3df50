"""Libraries that only some functions need."""

from __future__ import annotations

import importlib
from typing import Any


def optional(module: str, asked: str, how: str) -> Any:
    """The module that `asked` needs. Raises ImportError, which says `how` to get it or do without,
    where its library is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ImportError(f"{asked} needs {library}: {how}") from error
