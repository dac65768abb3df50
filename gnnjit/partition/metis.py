"""METIS, through the package `pymetis`, which is optional."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnjit.errors import GraphError
from gnnjit.shapes import HostArray

if TYPE_CHECKING:  # a tenth of a second, for those who part graphs
    import scipy.sparse

WEIGHT = 1 << 30
"""What the whole numbers that METIS takes for costs sum up to, about: they fit 32 bits."""


def pymetis() -> Any:
    """The package; None where it cannot be imported."""
    try:
        return importlib.import_module("pymetis")
    except ImportError:
        return None


def symmetric_pattern(src: HostArray, dst: HostArray, num_nodes: int) -> scipy.sparse.csr_array:
    """Which vertices are neighbours, `bool[N, N]`: both directions, each once, sorted within a
    row, without self loops (METIS allows none)."""
    import scipy.sparse

    proper = src != dst
    src, dst = src[proper], dst[proper]
    # Bool, whose sum is "or": a count of duplicates could overflow to 0 and drop the entry.
    ones = np.ones(len(src), bool)
    one_way = scipy.sparse.csr_array((ones, (dst, src)), shape=(num_nodes, num_nodes))
    return scipy.sparse.csr_array(one_way + one_way.T)


def metis_parts(
    pattern: scipy.sparse.csr_array,
    parts: int,
    seed: int,
    cost: HostArray | None = None,
    *,
    instead: str,
) -> HostArray:
    """`int64[N]`, the part of each vertex, from 0 to `parts - 1`: of equal size, or `cost`.

    Raises GraphError where METIS cannot count the neighbours; `instead` is what else to do.
    """
    package = pymetis()
    index = package.zero_copy_dtype() if hasattr(package, "zero_copy_dtype") else np.dtype(np.int32)
    limit = int(np.iinfo(index).max)
    if pattern.nnz > limit:
        raise GraphError(
            f"the vertices have {pattern.nnz} neighbours in all, expected at most {limit}, which "
            f"the indices of this build of METIS can count: {instead}"
        )
    starts = pattern.indptr.astype(index, copy=False)
    adjacent = pattern.indices.astype(index, copy=False)
    # Since 2025.2, which warns of the keywords that earlier releases know.
    if hasattr(package, "CSRAdjacency"):
        given = {"adjacency": package.CSRAdjacency(starts, adjacent)}
    else:
        given = {"xadj": starts, "adjncy": adjacent}
    # Where a release has no options, METIS takes a seed of its own, which is fixed too.
    if hasattr(package, "Options"):
        given["options"] = package.Options(seed=seed)
    if cost is not None and cost.any():
        given["vweights"] = np.rint(cost / cost.sum() * WEIGHT).astype(index)
    _, part = package.part_graph(parts, **given)
    return np.asarray(part, np.int64)
