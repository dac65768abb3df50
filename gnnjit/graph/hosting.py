"""Work on concrete graphs: in NumPy, and then one transfer.

Array operations of JAX compile anew for every size: a batch of graphs has another one each time.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from gnnjit.graph import validate
from gnnjit.shapes import HostArray, PyTree

CACHE_LINE = 64


def on_host(*trees: PyTree) -> bool:
    """Whether NumPy can do the work: values are known, and each array is whole where it is."""
    return all(_is_host_work(leaf) for leaf in jax.tree.leaves(trees))


def _is_host_work(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array):
        return True
    if validate.is_traced(leaf) or not isinstance(leaf.dtype, np.dtype):  # keys of jax.random
        return False
    one = len(leaf.sharding.device_set) == 1
    copies = isinstance(leaf.sharding, NamedSharding) and leaf.is_fully_replicated
    return leaf.is_fully_addressable and (one or copies)


def read(array: Any) -> HostArray | None:
    """A concrete array in NumPy."""
    return None if array is None else np.asarray(array)


def empty(length: int, dtype: Any) -> HostArray:
    """An array of unknown content that a CPU device takes over as it is, without a copy: it begins
    at a cache line."""
    size = length * np.dtype(dtype).itemsize
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype)


def copied(array: HostArray, dtype: Any) -> HostArray:
    """A copy in `dtype`, placed as `empty` places it."""
    copy = empty(len(array), dtype)
    np.copyto(copy, array, casting="unsafe")
    return copy


def to_device(tree: PyTree, like: Any = None) -> PyTree:
    """`tree` as arrays of JAX, transferred together to where `like` was put on purpose."""
    if not (isinstance(like, jax.Array) and not validate.is_traced(like) and like.committed):
        return jax.device_put(tree)
    place = like.sharding
    if isinstance(place, NamedSharding):
        place = NamedSharding(place.mesh, PartitionSpec(), memory_kind=place.memory_kind)
    return jax.device_put(tree, place)


def concatenated(arrays: list[Any]) -> Any:
    """One after the other: in NumPy where all are known, else in JAX."""
    if on_host(arrays):
        return np.concatenate([np.asarray(a) for a in arrays])
    return jnp.concatenate(arrays)
