"""Checks of what a graph is made from. Every message: what came, what was expected, what to do."""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from gnnjit.errors import GraphError
from gnnjit.shapes import ArrayLike, HostArray, PyTree

INT32_MAX = int(np.iinfo(np.int32).max)


def is_traced(*arrays: Any) -> bool:
    """Whether any leaf of `arrays` is a tracer (its values are not known yet)."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arrays))


def as_indices(name: str, value: ArrayLike) -> Any:
    """`value` as a 1-D integer array: NumPy, or as it came if it is a JAX array.

    Raises GraphError if it is not one-dimensional or not of an integer type.
    """
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.ndim != 1:
        raise GraphError(
            f"{name} has shape {tuple(array.shape)}, expected one vertex per edge, shape "
            f"(num_edges,): split an edge list, as in from_edges(edge_index[0], edge_index[1])"
        )
    if array.size == 0 and not np.issubdtype(array.dtype, np.integer):
        return np.zeros(0, np.int32)
    if not np.issubdtype(array.dtype, np.integer):
        raise GraphError(
            f"{name} has dtype {array.dtype}, expected integers: pass vertex numbers, "
            f"as in {name}.astype('int32')"
        )
    return array


def as_mask(value: ArrayLike, num_edges: int) -> Any:
    """`value` as a boolean array `[num_edges]`. Raises GraphError on another type or shape."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.size == 0 and array.shape == (num_edges,):
        return np.zeros(0, bool)
    if array.dtype != np.bool_:
        raise GraphError(
            f"edge_mask has dtype {array.dtype}, expected bool (True marks a real edge): "
            f"pass edge_mask != 0"
        )
    if array.shape != (num_edges,):
        raise GraphError(
            f"edge_mask has shape {tuple(array.shape)}, expected ({num_edges},), one entry per "
            f"edge: build it from the same edge list as src and dst"
        )
    return array


def same_length(src: Any, dst: Any) -> None:
    """Raises GraphError unless there are as many sources as destinations."""
    if src.shape != dst.shape:
        raise GraphError(
            f"src has {src.shape[0]} entries and dst has {dst.shape[0]}, expected one of each per "
            f"edge: pass two arrays of the same length"
        )


def as_count(name: str, value: Any) -> int:
    """`value` as a Python int >= 0. Raises GraphError on anything else, tracers included."""
    if isinstance(value, Tracer):
        raise GraphError(
            f"{name} is a traced value, expected a static integer: sizes are fixed when a function "
            f"is compiled, so pass a Python int (a capacity)"
        )
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool | np.bool_):
        raise GraphError(
            f"{name} is {value!r} of type {type(value).__name__}, expected an integer: "
            f"pass int({name})"
        )
    if count < 0:
        raise GraphError(
            f"{name} is {count}, expected 0 or more: pass the number of vertices, or leave it out "
            f"to use the largest index plus one"
        )
    return count


def resolve_counts(num_nodes: Any, num_src: Any, num_dst: Any) -> tuple[int | None, int | None]:
    """The given (source, destination) counts, None where they are to be inferred."""
    if num_nodes is not None and not (num_src is None and num_dst is None):
        given = "num_src" if num_src is not None else "num_dst"
        raise GraphError(
            f"num_nodes and {given} were both given, expected num_nodes alone (one vertex set) or "
            f"num_src and num_dst (two vertex sets): drop one of them"
        )
    if num_nodes is not None:
        count = as_count("num_nodes", num_nodes)
        return count, count
    return (
        None if num_src is None else as_count("num_src", num_src),
        None if num_dst is None else as_count("num_dst", num_dst),
    )


def needed_count(name: str, count: int | None) -> int:
    """`count`; raises GraphError if it is missing while the indices are traced."""
    if count is None:
        raise GraphError(
            f"{name} is missing and the edges are traced, expected a static size: their largest "
            f"index is unknown inside jit, so pass {name}="
        )
    return count


def in_range(name: str, index: HostArray, mask: HostArray | None, count: int, size: str) -> None:
    """Raises GraphError on the first unmasked entry of `index` that is not in [0, count)."""
    if index.size == 0 or (index.min() >= 0 and index.max() < count):
        return
    bad = (index < 0) | (index >= count)
    if mask is not None:
        bad &= mask
    if not bad.any():
        return
    at = int(bad.argmax())
    valid = f"a vertex from 0 to {count - 1}" if count else "no edges at all"
    if index[at] < 0:
        raise GraphError(
            f"{name}[{at}] is {index[at]}, expected {valid} ({size}={count}): negative indices do "
            f"not count from the end; mark padding with edge_mask="
        )
    raise GraphError(
        f"{name}[{at}] is {index[at]}, expected {valid} ({size}={count}): pass a larger {size}, "
        f"or subtract 1 if your vertices are numbered from 1"
    )


def not_negative(name: str, index: HostArray) -> None:
    """Raises GraphError on the first negative entry of `index`."""
    if index.size and index.min() < 0:
        at = int((index < 0).argmax())
        raise GraphError(
            f"{name}[{at}] is {index[at]}, expected a vertex number, 0 or more: negative indices "
            f"do not count from the end; leave padding out"
        )


def index_dtype(**counts: int) -> np.dtype:
    """int32 where every count fits, else int64.

    Raises GraphError if it must be int64 while JAX has 64-bit types off.
    """
    largest = max(counts, key=lambda name: counts[name])
    if counts[largest] <= INT32_MAX:
        return np.dtype(np.int32)
    if not jax.config.read("jax_enable_x64"):
        raise GraphError(
            f"{largest} is {counts[largest]}, expected at most {INT32_MAX} for 32-bit indices: "
            f"enable 64-bit ones with jax.config.update('jax_enable_x64', True)"
        )
    return np.dtype(np.int64)


def room_for_padding(num_edges: int, num_src: int, num_dst: int) -> None:
    """Raises GraphError if there are edge slots, but no vertex that padding could point at."""
    if num_edges and not (num_src and num_dst):
        which = "num_src" if not num_src else "num_dst"
        raise GraphError(
            f"{which} is 0 with room for {num_edges} edges, expected at least one vertex for "
            f"padding to point at: pass {which}=1 or more, or no edges"
        )


def check_leading(what: str, tree: PyTree, count: int, kind: str, hint: str) -> None:
    """Raises GraphError unless every array in `tree` has `count` rows.

    The message lists every leaf that does not fit. `kind` names what there are `count` of.
    """
    refuse_sparse(what, tree)
    wrong = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        shape = np.shape(leaf)
        if shape[:1] != (count,):
            name = what + jax.tree_util.keystr(path)
            wrong.append(f"{name} has {_rows(shape)}")
    if wrong:
        raise GraphError(f"{'; '.join(wrong)}, but the graph has {count} {kind}: {hint}")


def refuse_sparse(what: str, tree: PyTree) -> None:
    """Raises GraphError on a sparse array in `tree`, of JAX, SciPy or another library.

    JAX's are pytrees of their entries and indices, which must not be taken for rows.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_sparse)[0]:
        if not _is_sparse(leaf):
            continue
        kind = type(leaf)
        package = kind.__module__.split(".")[0]
        matrix, dense = ("x", "x.todense()") if package == "jax" else (
            "jax.experimental.sparse.BCOO.from_scipy_sparse(x)", "x.toarray()"
        )  # fmt: skip
        raise GraphError(
            f"{what}{jax.tree_util.keystr(path)} is a sparse array ({package}'s {kind.__name__} of "
            f"shape {tuple(leaf.shape)}), expected a dense one: a layer computes with the "
            f"row of one element. Multiply before the layer, h = {matrix} @ w, and pass h; or pass "
            f"{dense}"
        )


def _is_sparse(x: Any) -> bool:
    return hasattr(x, "todense")


def _rows(shape: tuple[int, ...]) -> str:
    if not shape:
        return "no rows (it is a scalar)"
    return f"{shape[0]} row{'' if shape[0] == 1 else 's'}"
