"""What the arguments of a layer's call are, before their sizes are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from gnnjit.errors import LayerError, shortened
from gnnjit.graph import Graph
from gnnjit.graph.reading import is_number


def checked(tree: Any, what: str, where: str) -> Any:
    """Features as they are traced: `tree` with NumPy's arrays in the byte order of this machine.

    Raises:
        LayerError: a leaf is no array of numbers (text, objects, a data frame, a tensor of another
            library, a nested list); the message says what it is and how to convert it.
    """
    if isinstance(tree, (list, tuple)) and tree and _is_of_scalars(tree):
        raise LayerError(
            f"{where}: {what} is a {type(tree).__name__} of {len(tree)} Python values, which JAX "
            f"takes for a pytree of scalars; expected arrays: pass jnp.asarray({what})"
        )
    found, treedef = jax.tree.flatten_with_path(tree, is_leaf=_is_foreign)
    leaves = [
        _leaf(x, shortened(what + jax.tree_util.keystr(path), 150), where) for path, x in found
    ]
    return jax.tree.unflatten(treedef, leaves)


def _is_of_scalars(tree: Any) -> bool:
    """Whether lists end in numbers or text, looking at the first of each alone."""
    while isinstance(tree, (list, tuple)) and tree and not hasattr(tree, "_fields"):
        tree = tree[0]
    return isinstance(tree, (bool, int, float, complex, str, np.generic))


def _is_foreign(x: Any) -> bool:
    return isinstance(x, Graph) or is_sparse(x)


def is_sparse(x: Any) -> bool:
    """JAX's sparse arrays are pytrees, of numbers that mean nothing one by one."""
    return hasattr(x, "todense")


def _leaf(x: Any, what: str, where: str) -> Any:
    if isinstance(x, Graph):
        raise LayerError(
            f"{where}: {what} is a Graph, expected features: a layer is called as layer(graph, x)"
        )
    if is_sparse(x):
        return x  # refused by name where rows are counted
    if isinstance(x, np.ma.MaskedArray):
        raise LayerError(
            f"{where}: {what} is a masked array, of which JAX has no kind: pass its .filled(0), "
            "and its mask as a feature"
        )
    if isinstance(x, (np.ndarray, np.generic)):
        return numbers(x, f"{where}: {what}")
    if isinstance(x, (bool, int, float, complex)) or is_array(x):
        return x
    kind = f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins.")
    convertible = hasattr(x, "__array__") and not isinstance(x, Mapping)
    advice = (
        f"convert it first, as in jnp.asarray(np.asarray({what}))"
        if convertible
        else "pass arrays, or pytrees (dicts, tuples, dataclasses known to JAX) of arrays"
    )
    raise LayerError(f"{where}: {what} is a {kind}, expected an array of numbers: {advice}")


def is_array(x: Any) -> bool:
    """JAX's arrays, tracers, references and descriptions of arrays."""
    if isinstance(x, (jax.Array, jax.ShapeDtypeStruct)):
        return True
    shaped = hasattr(x, "shape") and hasattr(x, "dtype")
    return shaped and type(x).__module__.partition(".")[0] in ("jax", "jaxlib", "flax")


def numbers(x: Any, what: str) -> Any:
    """An array of NumPy in the byte order of this machine, if it holds numbers."""
    if is_number(x.dtype):
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    of_text = "give each text a number, as in np.unique(..., return_inverse=True)[1]"
    advice = {
        "O": "make numbers of it, as in x.astype('float32')",
        "U": of_text,
        "S": of_text,
        "M": "subtract a date and divide by a unit, as in (t - t[0]) / np.timedelta64(1, 's')",
        "m": "divide it by a unit, as in t / np.timedelta64(1, 's')",
        "V": "pass its fields as a dict of arrays",
    }.get(x.dtype.kind, "pass numbers")
    dtype = shortened(str(x.dtype), 60)
    raise LayerError(f"{what} has dtype {dtype}, expected numbers: {advice}")
