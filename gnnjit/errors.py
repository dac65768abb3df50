"""Every error that gnnjit raises on purpose. Each message names the place, what came, what was
expected and what to do."""

from __future__ import annotations

LONGEST = 1000
"""Characters of a message."""


def shortened(text: str, limit: int) -> str:
    """`text` in at most `limit` characters, its middle left out where it is longer."""
    if len(text) <= limit:
        return text
    kept = (limit - 5) // 2
    return f"{text[:kept]} ... {text[-kept:]}"


class GnnjitError(Exception):
    """Base of all errors raised on purpose. Whatever a user's text, name or path adds to a message,
    its begin and its end, which say where and what to do, are kept."""

    longest: int | None = LONGEST
    """Characters of a message; None where it may hold whole programs."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.longest is None else shortened(text, self.longest)


class LayerError(GnnjitError, ValueError):
    """A layer function cannot be compiled as it is written."""


class GraphError(GnnjitError, ValueError):
    """A graph, or an array that should fit one, is malformed."""


class DataError(GnnjitError, ValueError):
    """A dataset file is missing, damaged or not what its name says."""


class PlanError(GnnjitError, ValueError):
    """A memory budget is no size, or no plan of a layer fits it."""


class CostError(GnnjitError, ValueError):
    """Work or weights that the cost model does not know, or a model that cannot be kept."""


class StoreError(GnnjitError, ValueError):
    """A file of a vertex store is missing, damaged, foreign, or has no room."""


class StreamError(GnnjitError, ValueError):
    """A function cannot be run chunk by chunk, or not within its memory budget."""


class GnnjitWarning(UserWarning):
    """What gnnjit runs as it is written, and what was probably not meant."""


class OutputError(GnnjitError, ValueError):
    """A file that a command was told to write cannot be written."""


class VerifyError(GnnjitError, AssertionError):
    """A program of the IR is ill-formed: a bug in a pass, not in the user's code."""

    longest = None


class CheckError(GnnjitError, AssertionError):
    """An optimised layer and its interpreted program disagree."""

    longest = None
