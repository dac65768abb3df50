"""Capacities: sizes and features padded to them, so that nothing is compiled twice."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import hosting, members, relations, validate
from gnnjit.graph.reading import is_number, read_array, shown_shape
from gnnjit.graph.structure import append_padding
from gnnjit.shapes import PyTree


def capacities(
    present: tuple[int, int, int],
    bipartite: bool,
    num_nodes: Any,
    num_edges: Any,
    num_src: Any,
    num_dst: Any,
) -> tuple[int, int, int]:
    """The wanted (sources, destinations, edges); those left out stay as they are `present`.

    Raises GraphError if one is below what the graph has, or names the wrong vertex sets.
    """
    if bipartite and num_nodes is not None:
        raise GraphError(
            "num_nodes was given for a bipartite graph, expected num_src and num_dst: "
            "pad each vertex set by itself"
        )
    if not bipartite and not (num_src is None and num_dst is None):
        raise GraphError(
            "num_src or num_dst was given for a graph of one vertex set, expected num_nodes: "
            "pass num_nodes="
        )
    src, dst = (num_src, num_dst) if bipartite else (num_nodes, num_nodes)
    names = ("num_src", "num_dst") if bipartite else ("num_nodes", "num_nodes")
    return (
        capacity(names[0], src, present[0]),
        capacity(names[1], dst, present[1]),
        capacity("num_edges", num_edges, present[2]),
    )


def capacity(name: str, wanted: Any, present: int) -> int:
    """The wanted size, or the present one. Raises GraphError if it is below that."""
    if wanted is None:
        return present
    wanted = validate.as_count(name, wanted)
    if wanted < present:
        raise GraphError(
            f"{name}={wanted} is below the {present} that the graph has, expected at least "
            f"{present}: nothing is cut off, so pass a larger capacity"
        )
    return wanted


def padded(graph: Any, num_src: int, num_dst: int, num_edges: int, num_graphs: int) -> Any:
    """A `Graph` with vertices, padding edges and graphs appended; the present ones keep their
    numbers."""
    validate.room_for_padding(num_edges, num_src, num_dst)
    dtype = validate.index_dtype(num_edges=num_edges, num_src=num_src, num_dst=num_dst)
    on_host = hosting.on_host(graph)
    place, dropped = graph.src, graph.dropped
    if on_host:
        graph = jax.tree.map(np.asarray, dataclasses.replace(graph, dropped=None))
    xp: Any = np if on_host else jnp
    new = num_edges - graph.num_edges
    mask = xp.ones(graph.num_edges, bool) if graph.mask is None else graph.mask
    whole = graph.whole_degree
    rows = (graph.num_src, graph.num_dst), (num_src, num_dst)
    result = dataclasses.replace(
        graph,
        src=xp.pad(graph.src, (0, new)),
        dst=xp.pad(graph.dst, (0, new)),
        mask=xp.pad(mask, (0, new)),
        in_structure=append_padding(graph.in_structure, num_dst, num_edges),
        out_structure=append_padding(graph.out_structure, num_src, num_edges),
        whole_degree=None if whole is None else xp.pad(whole, (0, num_src - graph.num_src)),
        relations=relations.padded(graph.relations, new, xp),
        members=members.padded(graph.members, graph.bipartite, *rows, num_graphs),
        num_src=num_src,
        num_dst=num_dst,
        num_edges=num_edges,
        fan_in=None,
        pairs=_padded_pairs(graph.pairs, num_src, num_edges),
    )
    if graph.src.dtype != dtype:
        result = jax.tree.map(lambda a: a if a.dtype == np.bool_ else a.astype(dtype), result)
    if not on_host:
        return result
    return dataclasses.replace(hosting.to_device(result, place), dropped=dropped)


def _padded_pairs(pairs: Any, num_nodes: int, num_edges: int) -> Any:
    """`Graph.pairs` of a graph padded to these sizes."""
    if pairs is None:
        return None
    found = padded(pairs, num_nodes, num_nodes, num_edges // 2, 1)
    return dataclasses.replace(found, members=None)


def pad_rows(tree: PyTree, count: int, what: str) -> PyTree:
    """Every array of `tree` with rows of zeros appended, up to `count` rows.

    NumPy arrays stay NumPy. Raises GraphError if an array is a scalar or has more rows.
    """

    def pad(path: Any, leaf: Any) -> Any:
        leaf = read_array(what + jax.tree_util.keystr(path), leaf)
        rows = leaf.shape[0] if leaf.ndim else 0
        if not leaf.ndim or rows > count:
            name = what + validate.cut(jax.tree_util.keystr(path))
            raise GraphError(
                f"{name} has shape {shown_shape(leaf)}, expected at most {count} rows: pad the "
                f"features of the graph that was padded, [rows, ...]"
            )
        if not is_number(leaf.dtype):
            name = what + validate.cut(jax.tree_util.keystr(path))
            raise GraphError(
                f"{name} has dtype {validate.cut(str(leaf.dtype))}, expected numbers: padding is "
                f"rows of zeros"
            )
        widths = [(0, count - rows)] + [(0, 0)] * (leaf.ndim - 1)
        if isinstance(leaf, np.ndarray):
            return np.pad(leaf, widths)
        if hosting.on_host(leaf):
            return hosting.to_device(np.pad(np.asarray(leaf), widths), leaf)
        return jnp.pad(leaf, widths)

    return jax.tree_util.tree_map_with_path(pad, tree)
