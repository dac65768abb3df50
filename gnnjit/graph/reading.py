"""Arrays that come from elsewhere: lists, NumPy, PyTorch, pandas, whatever reads as an array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph.validate import RENUMBER, cut, is_traced, shown
from gnnjit.shapes import ArrayLike, HostArray


def read_array(name: str, value: ArrayLike) -> Any:
    """`value` as it came if it is an array of JAX, else in NumPy, in this machine's byte order.

    Raises GraphError if NumPy cannot read it, or entries are masked.
    """
    if isinstance(value, jax.Array):
        return value
    if isinstance(value, list | tuple) and is_traced(value):
        return jnp.asarray(value)
    if np.ma.is_masked(value):
        raise GraphError(
            f"{name} is a masked array with masked entries, expected a number in each: fill them, "
            f"or leave these edges out with edge_mask="
        )
    try:
        array = np.asarray(value)
    except Exception as error:  # of another library, of any kind
        reason = cut((str(error).strip() or type(error).__name__).splitlines()[0])
        raise GraphError(
            f"{name} is a {cut(type(value).__qualname__)} that NumPy cannot read ({reason}), "
            f"expected an array: pass one in the memory of the host, without ragged rows"
        ) from error
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def read_on_host(name: str, value: ArrayLike) -> HostArray:
    """`value` in NumPy. Raises GraphError if it is traced, or NumPy cannot read it."""
    array = read_array(name, value)
    if is_traced(array) or not isinstance(array.dtype, np.dtype):
        got = "traced" if is_traced(array) else f"of type {cut(str(array.dtype))}"
        raise GraphError(f"{name} is {got}, expected numbers that are known: pass a NumPy array")
    return np.asarray(array)


def as_indices(name: str, value: ArrayLike) -> Any:
    """`value` as a 1-D integer array: NumPy, or as it came if it is a JAX array.

    Raises GraphError if it is not one-dimensional or not of an integer type.
    """
    array = read_array(name, value)
    if array.ndim == 0 and getattr(array.dtype, "kind", "") in tuple("OUS"):
        raise GraphError(
            f"{name} is a {cut(type(value).__qualname__)}, expected an array of vertex numbers: "
            f"pass one vertex per edge"
        )
    if array.ndim != 1:
        raise GraphError(
            f"{name} has shape {shown_shape(array)}, expected one vertex per edge, shape "
            f"(num_edges,): split an edge list, as in from_edges(edge_index[0], edge_index[1])"
        )
    if is_integer(array.dtype):
        return array
    if array.size == 0:
        return np.zeros(0, np.int32)
    raise GraphError(_not_numbers(name, array))


def is_integer(dtype: Any) -> bool:
    """Whether a type holds integers; spans of time, which are integers to NumPy, do not."""
    return jnp.issubdtype(dtype, np.integer) and not jnp.issubdtype(dtype, np.timedelta64)


def is_number(dtype: Any) -> bool:
    """Whether a type holds numbers or booleans."""
    spans = jnp.issubdtype(dtype, np.timedelta64)
    return jnp.issubdtype(dtype, np.bool_) or (jnp.issubdtype(dtype, np.number) and not spans)


def shown_shape(array: Any) -> str:
    return cut(str(tuple(array.shape)))


def _not_numbers(name: str, array: Any) -> str:
    """The message about one-dimensional `array`, which holds no integers."""
    dtype = cut(str(array.dtype))
    if array.dtype == np.bool_:
        return (
            f"{name} has dtype bool, expected integers: pass vertex numbers, and what marks "
            f"padding as edge_mask="
        )
    kind = array.dtype.kind if isinstance(array.dtype, np.dtype) else ""
    if kind == "f" and not is_traced(array):
        odd = _first_odd(np.asarray(array))
        if odd is not None:
            at, entry = odd
            return (
                f"{name}[{at}] is {entry}, expected vertex numbers: leave edges without an "
                f"endpoint out, then {RENUMBER}"
            )
    if kind in tuple("USOMm"):
        first = shown(array[0].item() if hasattr(array[0], "item") else array[0])
        return f"{name} has dtype {dtype} ({name}[0] is {first}), expected integers: {RENUMBER}"
    return (
        f"{name} has dtype {dtype}, expected integers: pass vertex numbers, as in "
        f"{name}.astype('int32')"
    )


def _first_odd(array: HostArray) -> tuple[int, Any] | None:
    """The first entry that is no vertex number even as an integer."""
    wide = array.astype(np.float64)
    odd = ~((wide == np.floor(wide)) & (np.abs(wide) < 2.0**31))
    return (int(odd.argmax()), array[odd.argmax()]) if odd.any() else None


def as_mask(value: ArrayLike, num_edges: int) -> Any:
    """`value` as a boolean array `[num_edges]`. Raises GraphError on another type or shape."""
    array = read_array("edge_mask", value)
    if array.size == 0 and array.shape == (num_edges,):
        return np.zeros(0, bool)
    if array.dtype != np.bool_:
        raise GraphError(
            f"edge_mask has dtype {cut(str(array.dtype))}, expected bool (True marks a real "
            f"edge): pass edge_mask != 0"
        )
    if array.shape != (num_edges,):
        raise GraphError(
            f"edge_mask has shape {shown_shape(array)}, expected ({num_edges},), one entry per "
            f"edge: build it from the same edge list as src and dst"
        )
    return array


def endpoints(src: ArrayLike, dst: ArrayLike | None) -> tuple[Any, Any]:
    """`(src, dst)`, where `dst` is left out of an edge list `[2, E]`; both checked.

    Raises GraphError if they are no two arrays of integers of one length.
    """
    if dst is None:
        src, dst = _halves(src)
    elif isinstance(dst, int | float | np.number) and _rank(src) == 2:
        raise GraphError(
            f"dst is {shown(dst)} beside an edge list of shape {cut(str(np.shape(src)))}, "
            f"expected the number of vertices by its name: pass from_edges(edge_index, "
            f"num_nodes=...)"
        )
    return as_indices("src", src), as_indices("dst", dst)


def _rank(value: Any) -> int:
    try:
        return np.ndim(value)
    except Exception:  # whatever it is, it is no edge list
        return 0


def _halves(value: Any) -> tuple[Any, Any]:
    """Sources and destinations of an edge list `[2, E]`, or of a pair of arrays."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return value[0], value[1]
    array = read_array("edge_index", value)
    if array.ndim == 2 and array.shape[0] == 2:
        return array[0], array[1]
    hint = "pass two arrays, from_edges(src, dst), or an edge list with two rows"
    if array.ndim == 2 and array.shape[1] == 2:
        hint = "pass edge_index.T, one row of sources and one of destinations"
    raise GraphError(
        f"from_edges() got one array of shape {shown_shape(array)} and no dst, expected shape "
        f"(2, num_edges): {hint}"
    )
