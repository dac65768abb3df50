"""Neighbourhoods of the user's own: a function over the arrays of a graph, and checks of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gnnjit.errors import GraphError, SampleError
from gnnjit.graph import Graph
from gnnjit.graph.reading import read_on_host
from gnnjit.graph.validate import shown
from gnnjit.neighborhood.assemble import Neighbors, assemble
from gnnjit.neighborhood.hdg import HDG
from gnnjit.sample.adjacency import Adjacency
from gnnjit.sample.frontier import at_least_one
from gnnjit.sample.induced import offsets_of
from gnnjit.shapes import ArrayLike, HostArray


class Records(NamedTuple):
    """The neighbours of all roots, sorted by root, then by type: FlexGraph's formatted records
    (Wang et al. 2021, section 4.1).

    Attributes:
        root: `int[I]`, whose neighbour each is.
        vertex: `int[I]`, a vertex each; or `int[I, L]`, instances of at most L vertices, shorter
            ones filled up with -1 at the end.
        type: `int[I]`, the neighbour type of each; left out where `select` has no `types`.
        data: `[I]` numbers, what `e.data` is; of neighbours that are vertices alone.
    """

    root: ArrayLike
    vertex: ArrayLike
    type: ArrayLike | None = None
    data: ArrayLike | None = None


def select(
    graph: Graph,
    fn: Callable[[HostArray, HostArray], Any],
    *,
    types: int | Sequence[str] | None = None,
) -> HDG:
    """Neighbours are what a function says: FlexGraph's neighbour selection by a user's function.

    Args:
        graph: a concrete graph of one vertex set.
        fn: called once as `fn(indptr, neighbor)`, with read-only NumPy arrays: vertex `v` has
            in-edges from `neighbor[indptr[v]:indptr[v + 1]]`. It gives `Records`, or their parts as
            a tuple, for all roots; numba compiles it well.
        types: the names of the neighbour types, or how many there are; None where they have none,
            and there is no schema level.

    Returns:
        an HDG whose levels follow from the records: vertices to instances where there are
        instances, (root, type) to the root where there are types.

    Raises:
        SampleError: `graph` is none, or what `fn` gives is not such records: numbers of vertices
            and types in range, integers, sorted, as many of each.
        GraphError: there are more neighbours than indices can number.
    """
    where = "select"
    adjacency = Adjacency.of(where, graph)
    names = _names(where, types)
    given = fn(adjacency.indptr, adjacency.neighbor)
    if not isinstance(given, tuple) or not 2 <= len(given) <= 4:
        raise SampleError(
            f"{where}: the function gave {shown(given)}, expected (root, vertex), and where there "
            f"are any type and data: return gnnjit.neighborhood.Records(...)"
        )
    records = Records(*given)
    root = _integers(where, "root", records.root, adjacency.num_nodes, "a vertex")
    number = _group(where, root, records.type, names)
    vertex, size = _vertices(where, records.vertex, len(root), adjacency.num_nodes)
    groups = adjacency.num_nodes * max(1, len(names))
    offset = offsets_of(np.bincount(number, minlength=groups))
    data = _data(where, records.data, len(root), size is not None)
    return assemble(
        where,
        graph,
        Neighbors(offset, vertex, size, data, names),
        sizes=(adjacency.num_nodes,),
    )


def _names(where: str, types: Any) -> tuple[str, ...]:
    if types is None:
        return ()
    if isinstance(types, Sequence) and not isinstance(types, str) and len(types):
        return tuple(map(str, types))
    if isinstance(types, int | np.integer):
        return tuple(f"type {i}" for i in range(at_least_one(where, "types", int(types))))
    raise SampleError(
        f"{where}: types is {shown(types)}, expected names of neighbour types, or their number: "
        f"pass types=2"
    )


def _read(where: str, name: str, values: Any) -> HostArray:
    try:
        return read_on_host(f"{where}: {name}", values)
    except GraphError as error:
        raise SampleError(f"{error} (as the function gave it)") from error


def _integers(
    where: str, name: str, values: Any, count: int, kind: str, shape: tuple[int, ...] | None = None
) -> HostArray:
    """`int64[...]`, each from 0 to `count - 1`; of one dimension where no shape is given."""
    array = _read(where, name, values)
    wanted = "[n]" if shape is None else str(shape)
    fits = array.ndim == 1 if shape is None else array.shape == shape
    if not fits or (array.size and array.dtype.kind not in "iu"):
        raise SampleError(
            f"{where}: the function gave {name} as {array.dtype} of shape {array.shape}, expected "
            f"integers of shape {wanted}: one for each neighbour, as in .astype('int64')"
        )
    out = (array < 0) | (array >= count)
    if out.any():
        at = int(np.argmax(out))
        raise SampleError(
            f"{where}: the function gave {name}[{at}] as {array[at]}, expected {kind} from 0 to "
            f"{count - 1}"
        )
    return array.astype(np.int64)


def _group(where: str, root: HostArray, kinds: Any, names: Sequence[str]) -> HostArray:
    """`int64[I]`: root * types + type, which must not fall."""
    if (kinds is not None) != bool(names):
        got, fix = ("no types", "give them third") if names else ("types", "pass types=")
        raise SampleError(
            f"{where}: the function gave {got} of neighbours, and types is {shown(names or None)}, "
            f"expected both or neither: {fix}"
        )
    number, what = root, "root"
    if names:
        kinds = _integers(where, "type", kinds, len(names), "a type", root.shape)
        number, what = root * len(names) + kinds, "root, then by type"
    falls = np.flatnonzero(np.diff(number) < 0)
    if len(falls):
        at = int(falls[0]) + 1
        raise SampleError(
            f"{where}: neighbour {at} that the function gave is of root {root[at]}, after one of "
            f"root {root[at - 1]}, expected neighbours sorted by {what}: sort all parts by "
            f"numpy.lexsort((type, root)) or numpy.argsort(root, kind='stable')"
        )
    return number


def _vertices(
    where: str, values: Any, count: int, num_nodes: int
) -> tuple[HostArray, int | HostArray | None]:
    """The vertices one after the other, and the sizes of instances as `Neighbors` has them."""
    array = _read(where, "vertex", values)
    if array.ndim != 2:
        return _integers(where, "vertex", array, num_nodes, "a vertex", (count,)), None
    if len(array) != count or not array.shape[1] or array.dtype.kind not in "iu":
        raise SampleError(
            f"{where}: the function gave vertex as {array.dtype} of shape {array.shape}, expected "
            f"integers of shape ({count}, L): the vertices of each instance"
        )
    real = array != -1
    if not real[:, 0].all() or (real[:, 1:] > real[:, :-1]).any():
        holes = ~real[:, 0] | (real[:, 1:] > real[:, :-1]).any(1)
        raise SampleError(
            f"{where}: the function gave instance {int(np.argmax(holes))} as "
            f"{array[np.argmax(holes)].tolist()}, expected one vertex at least, and -1 after the "
            f"last one alone"
        )
    flat = _integers(where, "vertex", array[real], num_nodes, "a vertex")
    return flat, array.shape[1] if real.all() else offsets_of(real.sum(1))


def _data(where: str, values: Any, count: int, instances: bool) -> HostArray | None:
    if values is None:
        return None
    array = _read(where, "data", values)
    if instances or array.shape[:1] != (count,) or array.dtype.kind not in "biuf":
        wanted = "none for instances" if instances else f"{count} rows of numbers"
        raise SampleError(
            f"{where}: the function gave data as {array.dtype} of shape {array.shape}, expected "
            f"{wanted}: one row for each neighbour that is a vertex"
        )
    return array
