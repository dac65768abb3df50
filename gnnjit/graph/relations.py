"""The relation of each edge, by number: graphs of many relations between the same vertices."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import hosting, reading, validate
from gnnjit.shapes import ArrayLike

MOST_BINS = 8
"""Pairs of a destination and a relation that are counted one by one, for each edge."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["number", "degree"],
    meta_fields=["count"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Relations:
    """The relations of a graph's edges.

    Attributes:
        number: `int32[E]`, the relation of each edge; 0 on padding. A layer reads it as
            `e.relation`.
        degree: `int32[E]`, the edges of the same relation into the same destination, the edge
            itself included; 0 on padding. `e.relation_degree` in a layer.
        count: the number of relations, those without edges included (static).
    """

    number: Any
    degree: Any
    count: int


@dataclasses.dataclass(frozen=True)
class Given:
    """What `from_edges` was given. outside: the edges whose traced relation is out of range, which
    become padding; None where relations are concrete."""

    number: Any
    count: int
    outside: Any = None


def read(
    relation: ArrayLike | None, num_relations: Any, num_edges: int, mask: Any
) -> tuple[Given | None, Any]:
    """The relations that were given, checked, and the mask of the edges.

    Raises GraphError if there is not one integer per edge, one is out of range, or their number is
    no integer, or unknown.
    """
    if relation is None:
        if num_relations is not None:
            raise GraphError(
                f"num_relations={validate.shown(num_relations)} was given without relation=, "
                f"expected both: pass the relation of each edge, int[num_edges]"
            )
        return None, mask
    number = _numbers(relation, num_edges)
    count = None if num_relations is None else _count(num_relations)
    if not validate.is_traced(number):
        number = np.asarray(number)
        count = validate.inferred_count(number, _on_host(mask)) if count is None else count
        _check_range(number, _on_host(mask), count)
        return Given(number, count), mask
    if count is None:
        raise GraphError(
            "num_relations is missing and relation is traced, expected a static number: the "
            "largest relation is unknown inside jit, so pass num_relations="
        )
    inside = (number >= 0) & (number < count)
    given = jnp.ones(num_edges, bool) if mask is None else jnp.asarray(mask)
    return Given(number, count, given & ~inside), given & inside


def of_concrete(
    relation: ArrayLike | None, num_relations: Any, dst: Any, num_dst: int
) -> Relations | None:
    """The relations of edges that end at `dst`, NumPy's, as NumPy arrays; None if there are none.

    Raises GraphError as `read`, and where relations are traced.
    """
    given, _ = read(relation, num_relations, len(dst), None)
    if given is None:
        return None
    if validate.is_traced(given.number):
        raise GraphError("relation is traced, expected a concrete array: pass it outside of jit")
    number = np.asarray(given.number).astype(np.int32)
    degree = np.asarray(degrees(number, dst, None, given.count, num_dst))
    return Relations(number, degree, given.count)


def attached(graph: Any, given: Given | None) -> Any:
    """`graph` with these relations."""
    if given is None:
        return graph
    number = given.number
    if hosting.on_host(graph.mask, number):
        number = np.asarray(number)
        if graph.mask is not None:
            number = np.where(np.asarray(graph.mask), number, 0)
        number = hosting.to_device(number.astype(np.int32), graph.dst)
    else:
        number = jnp.asarray(number).astype(np.int32)
        number = number if graph.mask is None else jnp.where(graph.mask, number, 0)
    dropped = graph.dropped
    if given.outside is not None:
        dropped = dropped + jnp.sum(given.outside, dtype=dropped.dtype)
    degree = degrees(number, graph.dst, graph.mask, given.count, graph.num_dst)
    relations = Relations(number, degree, given.count)
    return dataclasses.replace(graph, relations=relations, dropped=dropped)


def degrees(number: Any, dst: Any, mask: Any, count: int, num_dst: int) -> Any:
    """`int32[E]`, as `Relations.degree`."""
    if not hosting.on_host(number, dst, mask):
        return _traced_degrees(number, dst, mask)
    real = slice(None) if mask is None else np.asarray(mask)
    pair = np.asarray(dst, np.int64)[real] * count + np.asarray(number)[real]
    if num_dst * count > MOST_BINS * len(pair):
        pair = np.unique(pair, return_inverse=True)[1]
    degree = np.zeros(number.shape, np.int32)
    degree[real] = np.bincount(pair)[pair] if len(pair) else 0
    return hosting.to_device(degree, number)


def _traced_degrees(number: Any, dst: Any, mask: Any) -> Any:
    edges = number.shape[0]
    if not edges:
        return jnp.zeros(0, np.int32)
    real = jnp.ones(edges, bool) if mask is None else mask
    return degrees_along(jnp.lexsort((number, dst, ~real)), number, dst, real)


def degrees_along(order: Any, number: Any, dst: Any, real: Any) -> Any:
    """`int32[E]`, as `Relations.degree`, of traced edges that `order` sorts by destination, then by
    relation, padding last."""
    edges = number.shape[0]
    if not edges:
        return jnp.zeros(0, np.int32)
    keys = [x[order] for x in (number, dst, ~real)]
    new = functools.reduce(operator.or_, (x[1:] != x[:-1] for x in keys))
    run = jnp.cumsum(jnp.concatenate([jnp.zeros(1, bool), new]), dtype=np.int32)
    length = jax.ops.segment_sum(real[order].astype(np.int32), run, edges, indices_are_sorted=True)
    return jnp.zeros(edges, np.int32).at[order].set(length[run], unique_indices=True)


def reversed_of(relations: Relations | None, src: Any, mask: Any, num_src: int) -> Any:
    """Those of the reversed graph, whose destinations are the sources."""
    if relations is None:
        return None
    degree = degrees(relations.number, src, mask, relations.count, num_src)
    return dataclasses.replace(relations, degree=degree)


def padded(relations: Relations | None, new: int, xp: Any) -> Relations | None:
    """With so many padding edges appended. xp: NumPy, or JAX's."""
    if relations is None:
        return None
    number, degree = (xp.pad(x, (0, new)) for x in (relations.number, relations.degree))
    return Relations(number, degree, relations.count)


def joined(graphs: Sequence[Any]) -> Relations | None:
    """Those of a batch of `graphs`. Raises GraphError where not all have as many relations."""
    every = [g.relations for g in graphs]
    counts = [None if r is None else r.count for r in every]
    if len(set(counts)) > 1:
        shown = ", ".join("none" if n is None else str(n) for n in counts[:5])
        raise GraphError(
            f"batch() got graphs of different numbers of relations ({shown}), expected one: make "
            f"them by from_edges(..., relation=, num_relations=) with one num_relations"
        )
    if every[0] is None:
        return None
    number, degree = (
        hosting.concatenated([getattr(r, name) for r in every]) for name in ("number", "degree")
    )
    made = Relations(number, degree, every[0].count)
    return hosting.to_device(made) if hosting.on_host(made) else made


def refuse(graph: Any, asked: str, advice: str) -> None:
    """Raises GraphError where new edges would have no relation."""
    if graph.relations is not None:
        raise GraphError(
            f"{asked}() on a graph of {graph.relations.count} relations, expected one whose edges "
            f"have none: {advice}"
        )


def _numbers(relation: Any, num_edges: int) -> Any:
    number = reading.read_array("relation", relation)
    if number.shape != (num_edges,):
        raise GraphError(
            f"relation has shape {reading.shown_shape(number)}, expected ({num_edges},), one "
            f"relation per edge: build it from the same edge list as src and dst"
        )
    if not reading.is_integer(number.dtype) and number.size:
        raise GraphError(
            f"relation has dtype {validate.cut(str(number.dtype))}, expected integers: number the "
            "relations from 0, with `names, relation = numpy.unique(relation, return_inverse=True)`"
        )
    return number if number.size else np.zeros(0, np.int32)


def _count(value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if count < 0 or isinstance(value, bool | np.bool_):
        raise GraphError(
            f"num_relations is {validate.shown(value)}, expected an integer, 0 or more: pass the "
            f"number of relations, or leave it out to use the largest one plus one"
        )
    return count


def _on_host(mask: Any) -> Any:
    return None if mask is None or validate.is_traced(mask) else np.asarray(mask)


def _check_range(number: Any, mask: Any, count: int) -> None:
    bad = (number < 0) | (number >= count)
    if mask is not None:
        bad &= mask
    if bad.any():
        at = int(bad.argmax())
        valid = f"a relation from 0 to {count - 1}" if count else "no edges at all"
        raise GraphError(
            f"relation[{at}] is {number[at]}, expected {valid} (num_relations={count}): pass a "
            f"larger num_relations, or subtract 1 if your relations are numbered from 1"
        )
