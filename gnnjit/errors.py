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
    """Base of all errors that are raised on purpose. A long message is cut in its middle, so that
    its beginning, which says where, and its end, which says what to do, are kept."""

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
    """A memory budget is no size, or no plan fits it."""


class CostError(GnnjitError, ValueError):
    """The cost model has no figure for an operation, or cannot be read or written."""


class StoreError(GnnjitError, ValueError):
    """A file of a vertex store is missing, damaged, foreign, or has no room."""


class StreamError(GnnjitError, ValueError):
    """A function cannot be run block by block, or not within its memory budget."""


class SampleError(GnnjitError, ValueError):
    """A sampler, a loader or a selection of neighbours cannot do what it is asked to."""


class GnnjitWarning(UserWarning):
    """A layer runs as it is written, but was probably meant otherwise."""


class OutputError(GnnjitError, ValueError):
    """A file that a command was told to write cannot be written."""


class VerifyError(GnnjitError, AssertionError):
    """A program of the IR is ill-formed: a bug in a pass, not in the user's code."""

    longest = None


class CheckError(GnnjitError, AssertionError):
    """An optimised layer and its interpreted program disagree."""

    longest = None
