"""Whether what is compiled is chosen by time."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax

from gnnjit import config
from gnnjit.system.contexts import Context

T = TypeVar("T")

_tuning: Context[int | None] = Context(None)


@contextlib.contextmanager
def autotuning(on: bool = True, *, stretches: int = 1) -> Iterator[None]:
    """A context in which plans that are predicted to be about equally fast are timed.

    A layer's first compilation then takes longer. Plans whose predicted times are close are
    compiled and timed on made-up arrays and edges of the same sizes, and so are tiles of GPU
    kernels. The times are kept in the user's cache directory, for every later process on the same
    kind of device with the same versions, whether it tunes or not. `GNNJIT_AUTOTUNE=1` turns tuning
    on for a whole process.

    On a busy machine, another program can decide for minutes which of two close plans is faster.
    With `stretches=3` (or `GNNJIT_AUTOTUNE=3`) close plans are timed again in the next two
    processes that compile the layer, and the median counts. These processes may choose other plans
    than the first one, and so add in another order.

    Under a memory budget, for sharded graphs and in programs of several processes, the cost model
    alone chooses.

    Args:
        on: False turns tuning off within.
        stretches: processes in which close plans are timed, 1 or more.

    Raises:
        ValueError: `stretches` is less than 1.
    """
    if stretches < 1:
        raise ValueError(
            f"autotuning: stretches={stretches}, expected 1 or more; to turn it off, "
            "autotuning(False)"
        )
    with _tuning(stretches if on else 0):
        yield


def stretches() -> int:
    """In how many stretches of time close plans are timed; 0: they are not."""
    return int(config.AUTOTUNE if _tuning.value is None else _tuning.value)


def is_on() -> bool:
    return stretches() > 0


def untraced(work: Callable[[], T]) -> T:
    """What `work` gives, run now, although something is being traced: in a thread of its own, which
    knows nothing of that."""
    wide = jax.config.read("jax_enable_x64")

    def alone() -> T:
        with jax.enable_x64(wide):
            return work()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(alone).result()
