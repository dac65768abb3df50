"""What the features need to know of a device."""

from __future__ import annotations

import dataclasses
import math

import jax

from gnnjit.system.allocator import keeps_memory
from gnnjit.system.cpu_features import features, vector_bytes


@dataclasses.dataclass(frozen=True)
class Machine:
    """A device, as far as work depends on it.

    line: bytes of a cache line. vector: bytes of a vector register. registers: how many vector
        registers hold the sums of a row.
    fresh: blocks above this many bytes are asked of the system anew in every call, unless
        `gnnjit.keep_memory()` was called.
    cache: bytes that a product finds again in a cache.
    parallel: loops that write more bytes are divided among threads.
    heads: up to so many heads, the matrix of each is a product of its own.
    product: a traversal kernel takes products of at most so many multiplications on an edge;
        larger ones are done in chunks of edges.
    """

    platform: str
    line: int
    vector: int
    registers: int
    fresh: float
    cache: float
    parallel: float
    heads: int
    product: int


_CPU = Machine(
    platform="cpu", line=64, vector=64, registers=16, fresh=32 << 20, cache=16 << 20,
    parallel=128 << 10, heads=16, product=1 << 62,
)  # fmt: skip
"""A CPU with wide registers."""
_NARROW = {"vector": 32, "registers": 12}
"""What differs on other CPUs."""
_GPU = Machine(
    platform="cuda", line=128, vector=128, registers=64, fresh=math.inf, cache=math.inf,
    parallel=math.inf, heads=16, product=32 * 32 - 1,
)  # fmt: skip
"""One H200."""


def platform_here() -> str:
    """The platform that the default backend's programs are lowered for. JAX calls a GPU of either
    maker `gpu` there; `cuda` stands for both, to which the same choices are open."""
    found = jax.default_backend()
    return "cuda" if found == "gpu" else found


def machine_of(platform: str) -> Machine:
    """The machine of a platform; every one but a CPU is taken for an H200."""
    if platform != "cpu":
        return dataclasses.replace(_GPU, platform=platform)
    narrow = {} if vector_bytes() == 64 else _NARROW
    kept = {"fresh": math.inf} if keeps_memory() else {}
    chunks = {} if features() else {"product": 0}  # without LLVM there are no kernels
    return dataclasses.replace(_CPU, **narrow, **kept, **chunks)
