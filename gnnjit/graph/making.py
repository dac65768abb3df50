"""What a graph is made of: the edges, checked and sorted by either endpoint."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.graph import hosting, order, validate
from gnnjit.graph.structure import sort_on_host

Counts = tuple[int | None, int | None]
"""Sources and destinations; None where they are to be inferred."""

Said = tuple[str | None, bool]
"""By which endpoint edges are sorted, and whether each is there in both directions."""


def from_concrete(
    src: Any, dst: Any, mask: Any, counts: Counts, bipartite: bool, said: Said
) -> dict[str, Any]:
    """The fields of the graph of concrete edges."""
    src, dst = np.asarray(src), np.asarray(dst)
    mask = None if mask is None else np.array(mask)
    num_src, num_dst = counts
    if num_src is None:
        validate.plausible_count("src", src, mask)
    if num_dst is None:
        validate.plausible_count("dst", dst, mask)
    if not bipartite and num_src is None:
        num_src = num_dst = max(
            validate.inferred_count(src, mask), validate.inferred_count(dst, mask)
        )
    num_src = validate.inferred_count(src, mask) if num_src is None else num_src
    num_dst = validate.inferred_count(dst, mask) if num_dst is None else num_dst
    validate.in_range("src", src, mask, num_src, "num_src" if bipartite else "num_nodes")
    validate.in_range("dst", dst, mask, num_dst, "num_dst" if bipartite else "num_nodes")
    named = {"num_src": num_src, "num_dst": num_dst} if bipartite else {"num_nodes": num_dst}
    dtype = validate.index_dtype(num_edges=len(src), **named)
    if mask is not None:
        validate.room_for_padding(len(src), num_src, num_dst)
        src, dst = np.where(mask, src, 0), np.where(mask, dst, 0)
    src, dst = hosting.copied(src, dtype), hosting.copied(dst, dtype)
    order.check_concrete(src, dst, mask, *said)
    into, outward = sort_on_host(src, dst, mask, (num_src, num_dst))
    arrays = {
        "src": src, "dst": dst, "mask": mask, "in_structure": into, "out_structure": outward,
    }  # fmt: skip
    sizes = {"num_src": num_src, "num_dst": num_dst, "num_edges": len(src)}
    return {**hosting.to_device(arrays), **sizes, "dropped": None, "bipartite": bipartite}


def from_traced(
    src: Any, dst: Any, mask: Any, counts: Counts, bipartite: bool, said: Said
) -> dict[str, Any]:
    """The fields of the graph of traced edges."""
    num_src = validate.needed_count("num_src" if bipartite else "num_nodes", counts[0])
    num_dst = validate.needed_count("num_dst" if bipartite else "num_nodes", counts[1])
    num_edges = src.shape[0]
    dtype = validate.index_dtype(num_edges=num_edges, num_src=num_src, num_dst=num_dst)
    validate.room_for_padding(num_edges, num_src, num_dst)
    src, dst = _widen(src, dtype), _widen(dst, dtype)
    inside = (src >= 0) & (src < num_src) & (dst >= 0) & (dst < num_dst)
    given = jnp.ones(num_edges, bool) if mask is None else jnp.asarray(mask)
    mask = given & inside
    src = jnp.where(mask, src, 0).astype(dtype)
    dst = jnp.where(mask, dst, 0).astype(dtype)
    into, outward = order.traced_structures(src, dst, mask, (num_src, num_dst), *said)
    return {
        "src": src, "dst": dst, "mask": mask, "in_structure": into, "out_structure": outward,
        "dropped": jnp.sum(given & ~inside, dtype=dtype), "num_src": num_src, "num_dst": num_dst,
        "num_edges": num_edges, "bipartite": bipartite,
    }  # fmt: skip


def _widen(index: Any, dtype: np.dtype) -> jax.Array:
    """`index`, in `dtype` unless that is narrower (a comparison must come before narrowing)."""
    index = jnp.asarray(index)
    return index.astype(dtype) if index.dtype.itemsize <= dtype.itemsize else index
