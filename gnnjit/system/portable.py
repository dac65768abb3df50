"""Whether what is compiled may depend on this process: on kernels that it has generated, or on a
kernel language that other releases of JAX do not know."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gnnjit.system.contexts import Context

_portable = Context(False)

PORTABLE = "the code is for other processes (gnnjit.portable)"
"""The reason against a lowering that is not."""


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Within it, layers are compiled to XLA's own operations alone, for other processes.

    A layer on a CPU usually runs in kernels that this process has generated, and on a GPU in
    kernels of Pallas. Neither can be written to a file for another process. `jax.export` turns this
    on by itself; `jax.experimental.serialize_executable` needs it, since it takes what was
    compiled before. Within, layers are slower on a CPU, and take more memory.

    A function that `jax.jit` has compiled outside is compiled anew within it.
    """
    with _portable(True):
        yield


def is_portable() -> bool:
    """Whether `portable` holds here."""
    return _portable.value
