"""Graphs and features: right, unusual and wrong ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.experimental import sparse

import gnnjit

from .calls import Nonsense

SRC, DST = np.array([0, 1, 2, 2, 0]), np.array([1, 2, 0, 1, 1])
FULL = gnnjit.Graph.from_edges(SRC, DST, num_nodes=4)
NO_EDGES = gnnjit.Graph.from_edges([], [], num_nodes=4)
ONE = gnnjit.Graph.from_edges([0], [0], num_nodes=1)
NONE = gnnjit.Graph.from_edges([], [], num_nodes=0)
TWO_SETS = gnnjit.Graph.from_edges([0, 1, 1], [0, 2, 0], num_src=2, num_dst=3)
PADDED = FULL.pad(6, 7)
GRAPHS = {"full": FULL, "no edges": NO_EDGES, "one vertex": ONE, "empty": NONE,
          "two sets": TWO_SETS, "padded": PADDED, "full again": FULL, "and again": FULL,
}  # fmt: skip


class Tensor:
    """What a tensor or a data frame of another library looks like."""

    def __init__(self, array: Any, refusal: str = ""):
        self.array, self.refusal = np.asarray(array), refusal
        self.shape, self.dtype = self.array.shape, "other.float32"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.refusal:
            raise TypeError(self.refusal)
        return self.array


class Other:
    pass


def features(rng: np.random.Generator, n: int, width: int = 3) -> dict[str, Any]:
    """Right, unusual and wrong features of `n` elements."""
    x = rng.normal(size=(n, width)).astype(np.float32)
    whole = rng.integers(-3, 4, (n, width))
    right = {
        "jnp": jnp.asarray(x), "numpy": x, "float64": x.astype(np.float64), "int": whole,
        "float16": x.astype(np.float16), "bool": whole > 0, "big-endian": x.astype(">f4"),
        "uint8": np.abs(whole).astype(np.uint8), "bfloat16": jnp.asarray(x, jnp.bfloat16),
        "strided": np.asfortranarray(x), "read-only": x[::-1], "nothing wide": x[:, :0],
        "dict": {"a": x, "b": x[:, :1]}, "scalars": x[:, 0], "matrices": x[:, :, None],
        "list of arrays": [x, x], "other width": np.concatenate([x, x], axis=1),
        "complex": x + 1j * whole, "complex of JAX": jnp.asarray(x + 1j * whole),
        "keys": jax.random.split(jax.random.key(0), n),
    }  # fmt: skip
    wrong = {
        "list": x.tolist(), "long list": np.zeros((n + 1, 3000)).tolist(), "nested": [[[1.0]] * 4],
        "ragged": [[1, 2], [3]], "None": None, "number": 1.5, "integer": 3, "text": "features",
        "bytes": b"abc", "object": x.astype(object), "texts": x.astype(str),
        "scalar": np.float32(2),
        "0-d": jnp.zeros(()), "more rows": np.zeros((n + 2, width), np.float32),
        "transposed": np.zeros((width + 5, n), np.float32), "tensor": Tensor(x), "other": Other(),
        "function": len, "dates": np.zeros((n, 1), "datetime64[s]"), "class": dict,
        "records": np.zeros(n, [("a", "f4")]), "masked": np.ma.masked_invalid(x), "graph": FULL,
        "set": {1, 2}, "range": range(n), "mixed": {"a": x, "b": "text"}, "many": [x[:0]] * 400,
        "generator": (i for i in range(n)), "empty tuple": (),
        "one row more": {"a": x, "b": [x, x[:1]]}, "one key": jax.random.key(0),
        "BCOO": sparse.BCOO.fromdense(x), "BCOO of all": sparse.BCOO.fromdense(np.ones((n, 1))),
        "BCSR": sparse.BCSR.fromdense(x), "CSR": scipy.sparse.csr_matrix(x),
        "COO array": scipy.sparse.coo_array(x), "dict of BCOO": {"a": sparse.BCOO.fromdense(x)},
        "keys of two each": jax.random.split(jax.random.key(0), (n + 1, 2)),
    }  # fmt: skip
    return wrong if rng.random() < 0.2 else right


class Unknown(Exception):
    """Raised by an oracle that does not know what is right."""


class Leaves(list):
    """A list that NumPy's arithmetic does not take for an array."""

    __array_ufunc__ = None


jax.tree_util.register_pytree_node(
    Leaves, lambda x: (list(x), None), lambda _, leaves: Leaves(leaves)
)


def plain(x: Any) -> Any:
    """Features as the oracle reads them: arrays of NumPy, in one leaf or a dict of them."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)) and all(hasattr(a, "shape") for a in x):
        return Leaves([plain(a) for a in x])
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        raise Unknown("what can be done with keys")
    ok = isinstance(x, (np.ndarray, jax.Array)) and not isinstance(x, np.ma.MaskedArray)
    if not ok or np.ndim(x) == 0 or not (x.dtype == jnp.bfloat16 or x.dtype.kind in "biufc"):
        raise Nonsense(f"{type(x).__name__}")
    return in_full(x)


def in_full(x: Any) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype == object:
        raise Nonsense("an array of objects")
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def rows_of(tree: Any, n: int) -> Any:
    if any(len(a) != n for a in jax.tree.leaves(tree)):
        raise Nonsense("rows")
    return tree
