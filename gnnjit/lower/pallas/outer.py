"""Sums of outer products over edges: the gradient of a matrix that edges are multiplied with.

    w: f32[edge, F, G] = a (x) b;  sum over all edges of w     ->     a.T @ b over a block of edges

Each outer product would fill a tile of its own; a matrix product sums those of a block at once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from gnnjit.ir.program import Atom, Equation, Lax, Program, Reduce, Value
from gnnjit.lower.pallas.tile import clear, read, working_dtype
from gnnjit.pallas_kernels.traversal import DOT, padded


@dataclasses.dataclass(frozen=True)
class OuterProduct:
    """`result[i, j] = left[i] * right[j]`."""

    left: Atom
    right: Atom

    def tiles(self, env: dict[Any, Any]) -> tuple[Any, Any]:
        return _wide(self.left, env), _wide(self.right, env)


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
    made = {o: e for e in body.equations for o in e.outputs}
    read_again = {a for e in body.equations for a in e.inputs}
    found = {}
    for i, (atom, r) in enumerate(zip(body.outputs, reductions, strict=True)):
        product = None
        if isinstance(atom, Value) and atom not in read_again:
            product = _match(made.get(atom))
        single = working_dtype(atom.dtype) == jnp.float32  # what the matrix unit sums in
        if r is not None and r.kind == "sum" and product is not None and single:
            found[i] = product
    return found


def _match(eqn: Equation | None) -> OuterProduct | None:
    if eqn is None or not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
        return None
    contracted, batch = eqn.op["dimension_numbers"]
    a, b = eqn.inputs
    if any(contracted) or any(batch) or len(a.shape) != 1 or len(b.shape) != 1:
        return None
    return OuterProduct(a, b)
