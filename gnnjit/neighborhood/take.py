"""Mini-batches of an HDG: the neighbourhoods of some roots."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.validate import is_traced, shown
from gnnjit.neighborhood.assemble import Neighbors
from gnnjit.neighborhood.hdg import HDG
from gnnjit.neighborhood.some_roots import Room, cut, neighbors_of, of_roots, padded
from gnnjit.shapes import HostArray


def take(hdg: HDG, roots: Any, *, size: int | None = None) -> HDG:
    """The neighbourhoods of some roots, as an HDG that is called with the features of all vertices
    and gives a row for each of these roots.

    Args:
        hdg: a concrete HDG.
        roots: `int[n]`, in any order.
        size: the largest batch. Every batch then has the shapes that the largest neighbourhoods
            need, so that one compiled step takes them all; rows from `n` on are padding, of which
            there are `size + 1 - n`. Roots are distinct then. Without it, shapes are those of the
            neighbourhoods.

    Raises:
        GraphError: `hdg` is none, `roots` are no numbers of its roots, or there is a `size` and
            they are more, or one comes twice.
    """
    if not isinstance(hdg, HDG) or is_traced(hdg) or is_traced(roots):
        got = "a traced HDG or roots" if isinstance(hdg, HDG) else shown(hdg)
        raise GraphError(f"take() got {got}, expected concrete ones: take batches outside jit")
    number = read_on_host("roots", roots)
    if number.ndim != 1 or number.dtype.kind not in "iu":
        raise GraphError(f"roots is {shown(roots)}, expected int[n]: the numbers of some roots")
    outside = (number < 0) | (number >= hdg.num_roots)
    if outside.any():
        at = int(outside.argmax())
        raise GraphError(
            f"roots[{at}] is {number[at]}, expected a number from 0 to {hdg.num_roots - 1}"
        )
    every = neighbors_of(hdg)
    found = cut(every, number)
    if size is not None:
        if len(number) > size:
            raise GraphError(f"{len(number)} roots were given, expected at most size={size}")
        found_twice, times = np.unique(number, return_counts=True)
        if (times > 1).any():
            twice = found_twice[times.argmax()]
            raise GraphError(
                f"root {twice} comes {times.max()} times, expected distinct roots where there is a "
                "size: repeat rows of the result, or leave size out"
            )
        found = padded(found, _room(every, size))
    return of_roots(hdg, found, number)


def _room(every: Neighbors, size: int) -> Room:
    """Enough for the neighbourhoods of any `size` roots, and for the root that has the padding."""
    begin = every.offset[:: every.num_types]
    neighbors = _of_largest(np.diff(begin), size)
    if every.size is None or isinstance(every.size, int):
        return Room(size + 1, neighbors, neighbors * (every.size or 1))
    vertices = _of_largest(np.diff(every.size[begin]), size)
    # Instances of padding are no longer than others, however few vertices a batch has.
    return Room(size + 1, neighbors + -(-vertices // every.longest), vertices)


def _of_largest(counts: HostArray, size: int) -> int:
    return int(np.sort(counts)[-size:].sum())
