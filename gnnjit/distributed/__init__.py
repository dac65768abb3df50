"""Several processes as one: where they are, how they connect, agree and end together.

In: the environment of a cluster or of `gnnjit launch`. Out: a `jax.distributed` runtime and a
control plane beside it, which notices a process that is gone. `training`, `store` and `cli` use it.
"""

from gnnjit.distributed.connection import (
    DistributedError,
    barrier,
    broadcast_bytes,
    connect,
    everywhere,
    gather_bytes,
    is_main,
)

__all__ = [
    "DistributedError",
    "barrier",
    "broadcast_bytes",
    "connect",
    "everywhere",
    "gather_bytes",
    "is_main",
]
