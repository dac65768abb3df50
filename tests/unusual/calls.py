"""A call that is malformed or unusual, and what is wrong with the answer to it, if anything."""

from __future__ import annotations

import dataclasses
import traceback
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit
from gnnjit.errors import CheckError, GnnjitError, VerifyError

LONGEST = 1_000
"""Characters of a message."""


class Nonsense(Exception):
    """Raised by an oracle where a call has no right result."""


@dataclasses.dataclass(frozen=True)
class Call:
    what: str
    call: Callable[[], Any]
    oracle: Callable[[], Any]
    values: bool = False
    """Whether `call` computes (else it is only traced, and shapes are compared)."""
    quiet: bool = False
    """Whether a warning is an error."""


class Pick:
    """Draws from named choices, and remembers the names."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.names: list[str] = []

    def __call__(self, choices: dict[str, Any]) -> Any:
        name = list(choices)[self.rng.integers(len(choices))]
        self.names.append(name)
        found = choices[name]
        return found() if isinstance(found, types.FunctionType) and name[0] == "=" else found


@dataclasses.dataclass(frozen=True)
class Shape:
    """A right result of which only the shape is known."""

    shape: tuple[int, ...]


def anything() -> Any:
    """No oracle: only errors are judged."""
    return None


def nothing_right() -> Any:
    raise Nonsense


def complaint(call: Call) -> str | None:
    """What is wrong with the answer to a call, if anything."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error" if call.quiet else "ignore")
            got = run(call)
    except Exception as error:
        return bad_error(error) or refused(call, error)
    try:
        want = call.oracle()
    except Exception as error:
        return f"gave a result, expected an error ({type(error).__name__}: {error})"
    return None if want is None else difference(call, got, want)


def run(call: Call) -> Any:
    if call.values:
        with gnnjit.reference():
            return call.call()
    found: list[Any] = []

    def traced() -> Any:
        found.append(call.call())
        return [x for x in jax.tree.leaves(found[0]) if isinstance(x, jax.Array)]

    jax.eval_shape(traced)
    return jax.tree.map(lambda x: Shape(jnp.shape(x)), found[0])


def bad_error(error: Exception) -> str | None:
    text = f"{type(error).__name__}: {str(error)[:300]}"
    said = str(error.args[0]) if isinstance(error, GnnjitError) and error.args else str(error)
    if len(said) > LONGEST:  # as it was written: what is printed has its middle left out
        return f"a message of {len(said)} characters: {text}"
    if isinstance(error, (VerifyError, CheckError)):
        return f"an error of ours inside: {text}"
    if isinstance(error, GnnjitError):
        return None
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "/gnnjit/" in f.filename]
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename}:{last.lineno}" if last in ours else "outside"
    users = (
        Path(last.filename).parent == Path(__file__).parent
    )  # Python with what the function was given, as it is
    if last in ours or not (users or isinstance(error, (TypeError, ValueError))):
        return f"a raw error ({place}): {text}"
    return None


def refused(call: Call, error: Exception) -> str | None:
    """An error, where there is a right result."""
    try:
        want = call.oracle()
    except Exception:
        return None
    return None if want is None else f"refused what is right: {type(error).__name__}: {error}"


def difference(call: Call, got: Any, want: Any) -> str | None:
    a, b = jax.tree.leaves(got), jax.tree.leaves(want)
    shapes = [tuple(np.shape(x) if not isinstance(x, Shape) else x.shape) for x in (*a, *b)]
    if shapes[: len(a)] != shapes[len(a) :]:
        return f"shapes {shapes[: len(a)]}, expected {shapes[len(a) :]}"
    if not call.values:
        return None
    off = [np.abs(np.asarray(x) * 1.0 - y).max(initial=0) for x, y in zip(a, b, strict=True)]
    return None if max(off, default=0) < 0.1 else f"values are off by {off}"
