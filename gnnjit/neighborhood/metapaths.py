"""Metapath instances: paths that follow a sequence of relations to a root.

Fu, Zhang, Meng & King, "MAGNN: Metapath Aggregated Graph Neural Network for Heterogeneous Graph
Embedding" (2020), section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit

from gnnjit.errors import SampleError
from gnnjit.graph import Graph, TypedGraph
from gnnjit.neighborhood.assemble import Neighbors, assemble
from gnnjit.neighborhood.blocks import run_in_blocks
from gnnjit.neighborhood.hdg import HDG
from gnnjit.neighborhood.paths import Metapath, read_paths
from gnnjit.sample.frontier import at_least_one
from gnnjit.sample.induced import offsets_of
from gnnjit.sample.random import below_wide, key_of, stream
from gnnjit.sample.workers import ALONE, Workers
from gnnjit.shapes import HostArray

Watch = Callable[[int, int], Any]

_MOST = np.int64(2**62)
"""Instances of a root that can be counted."""


def metapaths(
    graph: TypedGraph | Graph,
    paths: Sequence[Any],
    *,
    cap: int | None = None,
    seed: int = 0,
    workers: Workers = ALONE,
    watch: Watch | None = None,
) -> HDG:
    """Neighbours are the instances of metapaths: paths along their relations that end at the root.

    Three levels: vertices to instances, instances to (root, metapath), and these to the root. The
    vertices of an instance are in the order of the path, the root last. An instance may visit a
    vertex twice, the root too, as in MAGNN. A metapath without instances gives zeros.

    Instances are counted first (a sum over edges for each step, nothing is enumerated). Those of a
    root and metapath beyond `cap` are left out: the kept ones are a uniform sample without
    replacement, each found by its number. `report()` says how many were cut.

    Args:
        graph: a typed graph; or a `Graph`, whose metapaths are steps over any edge, or over edges
            of a relation by number.
        paths: of a typed graph each metapath is a sequence of relations (keys or names) as edges
            lead to the root, or of the types along it, where one relation leads from each to the
            next. All end at one type. Of a `Graph` it is the number of steps, or a sequence of
            relation numbers.
        cap: instances of a root and metapath at most; all if left out.
        seed: of what is kept beyond `cap`.
        workers: threads that share the work; the result is the same.
        watch: called as `watch(roots done, all)`, again and again.

    Raises:
        SampleError: there is no metapath, or one does not compose or names what the graph has not;
            `cap` is below 1; a root has 2**62 instances or more; the graph is traced.
        GraphError: there are more vertices of instances than indices can number.
    """
    where = "metapaths"
    found = read_paths(where, graph, paths)
    cap = None if cap is None else at_least_one(where, "cap", cap)
    key = key_of(where, seed)
    counts, ways = [], []
    for path in found.paths:
        ways.append(_ways(path))
        counts.append(ways[-1][0])
    total = np.stack(counts, axis=1)
    if total.size and total.max() >= _MOST:
        root = int(np.argmax(total.max(1)))
        raise SampleError(
            f"{where}: root {root} has 2**62 instances or more, expected fewer: shorten the "
            f"metapaths"
        )
    kept = total if cap is None else np.minimum(total, cap)
    lengths = np.array([path.length for path in found.paths], np.int64)
    offset = offsets_of(kept.ravel())
    begin = offsets_of((kept * lengths).ravel())
    vertex = np.empty(begin[-1], np.int32 if sum(found.sizes) < 2**31 else np.int64)
    job = _Job(kept, begin, vertex, workers, watch)
    for number, (path, way) in enumerate(zip(found.paths, ways, strict=True)):
        job.fill(number, path, way, np.uint64(stream(key, number)))
    size: int | HostArray = int(lengths[0])
    if (lengths != lengths[0]).any():
        size = offsets_of(np.repeat(np.tile(lengths, len(kept)), kept.ravel()))
    names = tuple(path.name for path in found.paths)
    selected = Neighbors(offset, vertex, size, None, names, total.sum(0).tolist(), cap)
    return assemble(
        where, graph, selected, types=found.types, sizes=found.sizes, root_type=found.root_type
    )


def _ways(path: Metapath) -> list[HostArray]:
    """For each step from the root on, `int64[N]`: the paths from the far end to each vertex there.
    Counts stop at `_MOST`."""
    ways = [np.ones(path.far, np.int64)]
    for step in reversed(path.steps):
        ways.insert(0, _summed(step.indptr, step.neighbor, ways[0], _MOST))
    return ways


@dataclasses.dataclass(frozen=True, eq=False)
class _Job:
    """Writing the vertices of the instances that are kept.

    Attributes:
        kept: `int64[roots, paths]`.
        begin: `int64[roots * paths + 1]`, where the first vertex of each goes.
        vertex: what is written.
    """

    kept: HostArray
    begin: HostArray
    vertex: HostArray
    workers: Workers
    watch: Watch | None

    def fill(self, number: int, path: Metapath, ways: list[HostArray], key: np.uint64) -> None:
        """The instances of one metapath."""
        roots, paths = self.kept.shape
        steps = path.steps
        indptr = np.concatenate([step.indptr for step in steps])
        neighbor = np.concatenate([step.neighbor for step in steps])
        table = np.concatenate(ways)
        parts = [step.indptr for step in steps], [step.neighbor for step in steps], ways
        begins = [np.cumsum([0, *map(len, part)]) for part in parts]
        where = np.array([begins[0][:-1], begins[1][:-1], begins[2][1:-1]], np.int64)
        kept = np.ascontiguousarray(self.kept[:, number])
        begin = np.ascontiguousarray(self.begin[number:-1:paths])
        first, out = np.array(path.first, np.int64), self.vertex

        def work(low: int, high: int) -> None:
            _write(indptr, neighbor, table, where, kept, begin, first, key, low, high, out)

        run_in_blocks(work, roots, self.workers, self.watch, number * roots, paths * roots)


@njit(nogil=True, cache=True)
def _summed(indptr, neighbor, below, most):  # type: ignore[no-untyped-def]
    out = np.zeros(len(indptr) - 1, np.int64)
    for v in range(len(out)):
        total = np.int64(0)
        for slot in range(indptr[v], indptr[v + 1]):
            more = below[neighbor[slot]]
            total = most if more > most - total else total + more
        out[v] = total
    return out


@njit(nogil=True, cache=True)
def _chosen(key, count, size, out):  # type: ignore[no-untyped-def]
    """`size` of the numbers below `count`, rising, each set with the same chance (Floyd)."""
    if size == count:
        for i in range(size):
            out[i] = i
        return
    held = 0
    for j in range(count - size, count):
        wanted = below_wide(key, j - (count - size), j + 1)
        at = np.searchsorted(out[:held], wanted)
        if at < held and out[at] == wanted:
            wanted, at = j, held  # larger than all
        for i in range(held, at, -1):
            out[i] = out[i - 1]
        out[at] = wanted
        held += 1


@njit(nogil=True, cache=True)
def _write(  # type: ignore[no-untyped-def]
    indptr, neighbor, ways, where, kept, begin, first, key, low, high, out
):
    """The instances of each root whose numbers were chosen, in their order: a walk over the tree of
    all, which passes by the parts that hold none.

    where: for each step, where its rows, its slots, and the counts of the vertices that it leads to
    begin in the tables. first: the number of the first vertex of each type along the path.
    """
    steps = where.shape[1]
    vertex, slot = np.zeros(steps + 1, np.int64), np.zeros(steps + 1, np.int64)
    most = np.int64(0)
    for root in range(low, high):
        most = max(most, kept[root])
    wanted = np.empty(most, np.int64)
    for root in range(low, high):
        if kept[root] == 0:
            continue
        _chosen(stream(key, root), ways[root], kept[root], wanted)
        depth, passed, done, at = 0, np.int64(0), 0, begin[root]
        vertex[0], slot[0] = root, indptr[where[0, 0] + root]
        while done < kept[root]:
            if depth == steps:
                for i in range(steps + 1):
                    out[at] = first[i] + vertex[steps - i]
                    at += 1
                done += 1
                passed += 1
                depth -= 1
                slot[depth] += 1
                continue
            if slot[depth] == indptr[where[0, depth] + vertex[depth] + 1]:
                depth -= 1
                slot[depth] += 1
                continue
            after = np.int64(neighbor[where[1, depth] + slot[depth]])
            inside = ways[where[2, depth] + after]
            if wanted[done] >= passed + inside:
                passed += inside
                slot[depth] += 1
                continue
            depth += 1
            vertex[depth] = after
            if depth < steps:
                slot[depth] = indptr[where[0, depth] + after]
