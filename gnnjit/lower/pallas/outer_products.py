"""Sums of outer products over edges: the gradient of a matrix that edges are multiplied with.

    w: f32[edge, F, G] = a (x) b;  sum over all edges of w     ->     a.T @ b over a block of edges

Each outer product would fill a tile of its own; a matrix product sums those of a block at once.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp

from gnnjit.ir.program import Atom, Equation, Lax, Program, Reduce
from gnnjit.lower.pallas.tile import clear, read, working_dtype
from pallas_kernels.traversal import DOT, padded

MAX_SUM = 8192
"""Scalars of a sum of outer products that a program holds; more spill into memory."""


@dataclasses.dataclass(frozen=True)
class OuterProduct:
    """`result[i, j] = left[i] * right[j]`."""

    left: Atom
    right: Atom

    def tiles(self, env: dict[Any, Any]) -> tuple[Any, Any]:
        return _wide(self.left, env), _wide(self.right, env)


def too_large(pair: OuterProduct) -> list[str]:
    """Why no kernel sums a product; empty if one does."""
    sizes = [atom.shape[0] for atom in (pair.left, pair.right)]
    if math.prod(padded(sizes)) <= MAX_SUM:
        return []
    what = " x ".join(map(str, sizes))
    return [f"a sum of outer products of {what} is larger than a program holds"]


def _wide(atom: Atom, env: dict[Any, Any]) -> Any:
    """The tile of a vector, cleared and at least as wide as a matrix product needs."""
    x = clear(read(env, atom), atom.shape)
    missing = DOT - padded(atom.shape)[0]
    if missing <= 0:
        return x
    at = jnp.arange(DOT)[None, :, None] == jnp.arange(x.shape[1])[None, None, :]
    return jnp.sum(jnp.where(at, x[:, None, :], jnp.zeros((), x.dtype)), axis=2)


def find_outer_products(
    body: Program, reductions: tuple[Reduce | None, ...]
) -> dict[int, OuterProduct]:
    """The outputs that are sums of outer products of two vectors."""
    made: dict[Atom, Equation] = {o: e for e in body.equations for o in e.outputs}
    found = {}
    for i, (atom, r) in enumerate(zip(body.outputs, reductions, strict=True)):
        product = _match(atom, made)
        single = working_dtype(atom.dtype) == jnp.float32  # what the matrix unit sums in
        if r is not None and r.kind == "sum" and product is not None and single:
            found[i] = product
    return found


def _match(atom: Atom, made: dict[Atom, Equation]) -> OuterProduct | None:
    eqn = made.get(atom)
    if eqn is None or not isinstance(eqn.op, Lax) or len(atom.shape) != 2:
        return None
    if eqn.op.name == "transpose":
        product = _match(eqn.inputs[0], made)
        return product and OuterProduct(product.right, product.left)
    if eqn.op.name == "mul":
        vectors = {_axis_of(a, made): a for a in eqn.inputs}
        if set(vectors) == {0, 1}:
            return OuterProduct(*(made[vectors[axis]].inputs[0] for axis in (0, 1)))
    if eqn.op.name == "dot_general":
        a, b = eqn.inputs
        if len(a.shape) == len(b.shape) == 1 and not any(eqn.op["dimension_numbers"][1]):
            return OuterProduct(a, b)
    return None


def _axis_of(atom: Atom, made: dict[Atom, Equation]) -> int | None:
    """The axis along which a matrix is a vector written again and again."""
    eqn = made.get(atom)
    if eqn is None or eqn.op.name != "broadcast_in_dim" or len(eqn.inputs[0].shape) != 1:
        return None
    assert isinstance(eqn.op, Lax)
    return eqn.op["broadcast_dimensions"][0]
