"""The linear case `sum(w[e] * s[v] * x[u])` on a CPU: one product with a CSR matrix.

JAX's own kernel, over our structure of the rows; the gradient is the same product over the other
structure (its own derivative sorts anew, and is ten times slower).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from gnnjit.ir.program import Atom, Lax, Program, Value
from gnnjit.ir.space import Space
from gnnjit.lower.execute import size
from gnnjit.lower.lowering import LoweringRequest


@dataclasses.dataclass(frozen=True)
class _Linear:
    """Which operand is gathered, and which ones hold a number for each edge or row."""

    features: int
    weights: tuple[int, ...] = ()


def why_not(request: LoweringRequest) -> list[str]:
    """Reasons against this lowering; none means that it runs."""
    body, reductions, rows = request.body, request.reductions, request.rows
    if any(r is None or r.kind != "sum" or r.into is not rows for r in reductions):
        return ["an output is not a sum over each row"]
    if any(_match(body, atom, rows) is None for atom in body.outputs):
        return ["an output is not a neighbour's features times numbers of the edge and the row"]
    if any(o.dtype not in (jnp.float32, jnp.float64) for o in body.outputs):
        return ["the kernel takes float32 and float64"]
    return []


def _match(body: Program, atom: Atom, rows: Space) -> _Linear | None:
    inputs = {v: i for i, v in enumerate(body.inputs)}
    made = {o: e for e in body.equations for o in e.outputs}

    def weights(a: Atom) -> tuple[int, ...] | None:
        eqn = made.get(a)  # type: ignore[arg-type]
        if eqn is not None and eqn.op.name in ("broadcast_in_dim", "reshape"):
            return weights(eqn.inputs[0])
        if eqn is not None and eqn.op.name == "mul":
            below = [weights(x) for x in eqn.inputs]
            return None if None in below else (*below[0], *below[1])  # type: ignore[misc]
        one = a in inputs and a.space in (Space.EDGE, rows) and isinstance(a, Value) and a.size == 1
        return (inputs[a],) if one else None  # type: ignore[index]

    def linear(a: Atom) -> _Linear | None:
        if a in inputs and a.space is rows.flipped:
            return _Linear(inputs[a])  # type: ignore[index]
        eqn = made.get(a)  # type: ignore[arg-type]
        if eqn is None or not isinstance(eqn.op, Lax) or eqn.op.name != "mul":
            return None
        for x, w in (eqn.inputs, eqn.inputs[::-1]):
            inner, factors = linear(x), weights(w)
            if inner is not None and factors is not None and x.shape == atom.shape:
                return _Linear(inner.features, (*inner.weights, *factors))
        return None

    return linear(atom)


def run(request: LoweringRequest, operands: Sequence[Any]) -> list[Any]:
    from jax.experimental import sparse  # for those who run this lowering

    body, rows, graph, structure = request.body, request.rows, request.graph, request.structure
    shape = (size(graph, rows), size(graph, rows.flipped))
    slots = jnp.arange(graph.num_edges, dtype=structure.indptr.dtype)
    row_of_slot = request.row_of_edge[structure.edge]
    outs = []
    for atom in body.outputs:
        linear = _match(body, atom, rows)
        assert linear is not None
        x = operands[linear.features]
        data = jnp.where(slots < structure.indptr[-1], jnp.ones((), x.dtype), 0)
        for i in linear.weights:
            by_row = body.inputs[i].space is rows
            w = operands[i].reshape(-1).astype(x.dtype)
            data = jnp.where(data != 0, data * w[row_of_slot if by_row else structure.edge], 0)
        with warnings.catch_warnings():  # about the dtype of indices, which JAX chose itself
            warnings.simplefilter("ignore")
            matrix = sparse.BCSR((data, structure.neighbor, structure.indptr), shape=shape)
            outs.append((matrix @ x.reshape(shape[1], -1)).reshape(shape[0], *atom.shape))
    return outs
