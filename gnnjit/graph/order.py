"""What is said of an edge list: that it is sorted, that each edge is there in both directions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph.sorting import sort_edges
from gnnjit.graph.structure import Structure, sort_traced
from gnnjit.graph.validate import shown
from gnnjit.shapes import HostArray

ENDPOINTS = ("src", "dst")


def check_options(sorted_by: Any, symmetric: Any, bipartite: bool) -> None:
    """Raises GraphError if what is said has no meaning."""
    if not (sorted_by is None or (isinstance(sorted_by, str) and sorted_by in ENDPOINTS)):
        raise GraphError(
            f"sorted_by is {shown(sorted_by)}, expected 'dst', 'src' or None: name the endpoint "
            f"whose numbers rise along the edges"
        )
    if not isinstance(symmetric, bool | np.bool_):
        raise GraphError(
            f"symmetric is {shown(symmetric)}, expected True or False: pass True where each edge "
            f"is there in both directions"
        )
    if symmetric and bipartite:
        raise GraphError(
            "symmetric=True was given for two vertex sets, expected one: an edge between two sets "
            "has one direction; leave symmetric out"
        )


def check_concrete(
    src: HostArray, dst: HostArray, mask: HostArray | None, sorted_by: str | None, symmetric: bool
) -> None:
    """Raises GraphError if concrete edges are not as they are said to be."""
    if sorted_by is None and not symmetric:
        return
    number = np.arange(len(src)) if mask is None else np.flatnonzero(mask)
    src, dst = src[number], dst[number]
    if sorted_by is not None:
        row = {"src": src, "dst": dst}[sorted_by]
        falls = row[1:] < row[:-1]
        if falls.any():
            at = int(falls.argmax())
            raise GraphError(
                f"sorted_by={sorted_by!r}, but {sorted_by}[{number[at + 1]}] is {row[at + 1]} "
                f"after {row[at]}: sort the edges, or leave sorted_by out"
            )
    if symmetric:
        there, back = np.lexsort((src, dst)), np.lexsort((dst, src))
        differs = (src[there] != dst[back]) | (dst[there] != src[back])
        if differs.any():
            u, v = _without_return(src, dst)
            raise GraphError(
                f"symmetric=True, but {u} -> {v} is there more often than {v} -> {u}: add the "
                f"edges that are missing (gnnjit.graph.symmetrize), or leave symmetric out"
            )


def _without_return(src: HostArray, dst: HostArray) -> tuple[int, int]:
    """An edge that is there more often than its reverse."""
    pairs, count = np.unique(np.stack([src, dst]), axis=1, return_counts=True)
    found = dict(zip(map(tuple, pairs.T.tolist()), count.tolist(), strict=True))
    return next(pair for pair, n in found.items() if n > found.get(pair[::-1], 0))


def traced_structures(
    src: jax.Array,
    dst: jax.Array,
    mask: jax.Array,
    counts: tuple[int, int],
    sorted_by: str | None,
    symmetric: bool,
) -> tuple[Structure, Structure]:
    """The in-structure and the out-structure of traced edges.

    Of edges in both directions one of them is sorted, and the other one has the same neighbours in
    the same slots; which edges these are is found out where something reads edge data.
    """
    num_src, num_dst = counts
    if not symmetric:
        into = sort_traced(dst, src, mask, num_dst, rises=sorted_by == "dst")
        return into, sort_traced(src, dst, mask, num_src, rises=sorted_by == "src")
    near, far = (src, dst) if sorted_by == "src" else (dst, src)
    first = sort_traced(near, far, mask, num_dst, rises=sorted_by is not None)
    back = _reverse_of(near, far, mask, first, num_dst)
    other = Structure(first.indptr, first.neighbor, back[first.edge], None)
    return (other, first) if sorted_by == "src" else (first, other)


def _reverse_of(
    near: jax.Array, far: jax.Array, mask: jax.Array, by_near: Structure, num_nodes: int
) -> jax.Array:
    """`int[E]`: for each edge the one that goes back; the first to the first, and so on, where two
    vertices have several. Padding has padding."""
    by_far = sort_traced(far, near, mask, num_nodes)
    order = _by_both(by_far, mask, num_nodes)  # by `near`, then `far`
    mirrored = _by_both(by_near, mask, num_nodes)  # by `far`, then `near`
    return jnp.zeros_like(order).at[order].set(mirrored, unique_indices=True)


def _by_both(sorted_once: Structure, mask: jax.Array, num_nodes: int) -> jax.Array:
    """Edge numbers sorted by neighbour, then row."""
    real = jnp.arange(len(mask)) < sorted_once.indptr[-1]
    key = jnp.where(real, sorted_once.neighbor, num_nodes)
    return sort_edges(key, sorted_once.edge, num_nodes)[1]
