"""What the features need to know of a device."""

from __future__ import annotations

import dataclasses
import math

import jax

from gnnjit.allocator import keeps_memory


@dataclasses.dataclass(frozen=True)
class Machine:
    """A device, as far as work depends on it.

    line: bytes of a cache line. vector: bytes of a vector register. registers: of them, those that
        hold the sums of a row.
    fresh: blocks above this many bytes are asked of the system anew in every call, unless
        `gnnjit.keep_memory()` was called.
    cache: bytes that a product finds again in a cache.
    heads: of a product with a matrix for each head, those that are products of their own.
    product: multiplications of a product on an edge that a traversal kernel takes at most; larger
        ones are done in chunks of edges.
    """

    platform: str
    line: int
    vector: int
    registers: int
    fresh: float
    cache: float
    heads: int
    product: int


_CPU = Machine("cpu", 64, 64, 16, 32 << 20, 16 << 20, 16, 8192)
_GPU = Machine("cuda", 128, 128, 64, math.inf, math.inf, 16, 16384)
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
    return dataclasses.replace(_CPU, fresh=math.inf) if keeps_memory() else _CPU
