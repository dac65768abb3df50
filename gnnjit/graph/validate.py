"""Checks of what a graph is made from. Every message: what came, what was expected, what to do."""

from __future__ import annotations

import operator
import reprlib
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from gnnjit.errors import GraphError
from gnnjit.shapes import HostArray, PyTree

INT32_MAX = int(np.iinfo(np.int32).max)

MOST_INFERRED = 1 << 27
"""Vertices that the largest index stands for, unless there are edges for as many."""

MOST_LISTED = 5
"""Arrays in a message."""

LONGEST = 80
"""Characters of a value in a message."""

RENUMBER = (
    "number the vertices from 0, with `ids, number = numpy.unique(numpy.concatenate([src, dst]), "
    "return_inverse=True)` and `src, dst = numpy.split(number, 2)`"
)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = LONGEST


def is_traced(*arrays: Any) -> bool:
    """Whether any leaf of `arrays` is a tracer (its values are not known yet)."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arrays))


def shown(value: Any) -> str:
    """`value` in a message: short, whatever it is."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{cut(type(value).__name__)} of shape {cut(str(shape))}"
    try:
        return cut(_short.repr(value))
    except ValueError:  # Python writes no number of more than 4,300 digits
        return f"a number of {value.bit_length()} bits"


def cut(text: str) -> str:
    """`text` with its end left out where it is long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def space_name(space: Any) -> str:
    """The name of a space, or of a member of an enumeration of them; "" of anything else."""
    name = getattr(space, "value", space)
    return name if isinstance(name, str) else ""


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
            f"{name} is {shown(value)} of type {cut(type(value).__name__)}, expected an integer: "
            f"pass int({name})"
        )
    if count < 0:
        raise GraphError(
            f"{name} is {shown(count)}, expected 0 or more: pass the number of vertices, or leave "
            f"it out to use the largest index plus one"
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


def plausible_count(name: str, index: HostArray, mask: HostArray | None) -> None:
    """Raises GraphError if the largest index of `index` stands for far more vertices than edges
    have: memory is taken for each vertex up to it."""
    real = index if mask is None else index[mask]
    if not real.size or int(real.max()) < max(MOST_INFERRED, 64 * real.size):
        return
    at = int(np.argmax(index if mask is None else np.where(mask, index, 0)))
    raise GraphError(
        f"{name}[{at}] is {index[at]}, of {len(index)} edges, which would be a graph of "
        f"{int(index[at]) + 1} vertices: {RENUMBER}"
    )


def inferred_count(index: HostArray, mask: HostArray | None) -> int:
    """The largest real index plus one; 0 without real edges."""
    real = index if mask is None else index[mask]
    return max(int(real.max()) + 1, 0) if real.size else 0


def index_dtype(**counts: int) -> np.dtype:
    """int32 where every count fits, else int64.

    Raises GraphError if it must be int64 while JAX has 64-bit types off.
    """
    largest = max(counts, key=lambda name: counts[name])
    if counts[largest] <= INT32_MAX:
        return np.dtype(np.int32)
    if counts[largest] > np.iinfo(np.int64).max:
        raise GraphError(
            f"{largest} is {shown(counts[largest])}, expected a number of 63 bits: {RENUMBER}"
        )
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

    The message lists the first leaves that do not fit. `kind` names what there are `count` of.
    """
    refuse_sparse(what, tree)
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    wrong = [(path, np.shape(leaf)) for path, leaf in leaves if np.shape(leaf)[:1] != (count,)]
    if not wrong:
        return
    if (
        isinstance(tree, list | tuple)
        and len(leaves) > MOST_LISTED
        and not any(shape for _, shape in wrong)
    ):
        raise GraphError(
            f"{what} is a {type(tree).__name__} of numbers, expected arrays with one row for each "
            f"of {count} {kind}: pass numpy.asarray({what})"
        )
    listed = [
        f"{what}{cut(jax.tree_util.keystr(path))} has {_rows(shape)}"
        for path, shape in wrong[:MOST_LISTED]
    ]
    if len(wrong) > MOST_LISTED:
        listed.append(f"{len(wrong) - MOST_LISTED} more do not fit either")
    raise GraphError(f"{'; '.join(listed)}, but the graph has {count} {kind}: {hint}")


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
