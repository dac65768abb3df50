"""The linear case `sum(w[e] * x[u])` on a CPU: one product with a CSR matrix.

JAX's own kernel, over our structure of the rows; the gradient is the same product over the other
structure (its own derivative sorts anew, and is ten times slower).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import sparse

from gnnjit.graph import Graph
from gnnjit.ir.program import Atom, Lax, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.execute import size


@dataclasses.dataclass(frozen=True)
class _Linear:
    """Which operand is gathered, and which one (if any) holds one weight an edge."""

    features: int
    weights: int | None


def why_not(
    body: Program, reductions: Sequence[Reduce | None], rows: Space, platform: str
) -> list[str]:
    """Reasons against this lowering; empty if it applies."""
    if platform != "cpu":
        return [f"the platform is {platform}"]
    if any(r is None or r.kind != "sum" or r.into is not rows for r in reductions):
        return ["an output is not a sum over each row"]
    if any(_match(body, atom, rows) is None for atom in body.outputs):
        return ["an output is not a neighbour's features times one number an edge"]
    if any(o.dtype not in (jnp.float32, jnp.float64) for o in body.outputs):
        return ["the kernel takes float32 and float64"]
    return []


def _match(body: Program, atom: Atom, rows: Space) -> _Linear | None:
    inputs = {v: i for i, v in enumerate(body.inputs)}
    made = {o: e for e in body.equations for o in e.outputs}

    def far(a: Atom) -> int | None:
        return inputs[a] if a in inputs and a.space is rows.flipped else None

    def weight(a: Atom) -> int | None:
        while a in made and made[a].op.name in ("broadcast_in_dim", "reshape"):  # type: ignore[index]
            a = made[a].inputs[0]  # type: ignore[index]
        one = a in inputs and a.space is Space.EDGE and isinstance(a, Value) and a.size == 1
        return inputs[a] if one else None  # type: ignore[index]

    if far(atom) is not None:
        return _Linear(inputs[atom], None)  # type: ignore[index]
    eqn = made.get(atom)  # type: ignore[arg-type]
    if eqn is None or not isinstance(eqn.op, Lax) or eqn.op.name != "mul":
        return None
    for a, b in (eqn.inputs, eqn.inputs[::-1]):
        features, weights = far(a), weight(b)
        if features is not None and weights is not None and a.shape == atom.shape:
            return _Linear(features, weights)
    return None


def run(
    body: Program,
    reductions: Sequence[Reduce | None],
    rows: Space,
    graph: Graph,
    operands: Sequence[Any],
) -> list[Any]:
    """The outputs of one traversal over the rows of `rows`."""
    structure = graph.in_structure if rows is Space.DST else graph.out_structure
    shape = (size(graph, rows), size(graph, rows.flipped))
    slots = jnp.arange(graph.num_edges, dtype=structure.indptr.dtype)
    outs = []
    for atom in body.outputs:
        linear = _match(body, atom, rows)
        assert linear is not None
        x = operands[linear.features]
        data = jnp.where(slots < structure.indptr[-1], jnp.ones((), x.dtype), 0)
        if linear.weights is not None:
            w = operands[linear.weights].reshape(-1).astype(x.dtype)[structure.edge]
            data = jnp.where(data > 0, w, 0)
        with warnings.catch_warnings():  # about the dtype of indices, which JAX chose itself
            warnings.simplefilter("ignore")
            matrix = sparse.BCSR((data, structure.neighbor, structure.indptr), shape=shape)
            outs.append((matrix @ x.reshape(shape[1], -1)).reshape(shape[0], *atom.shape))
    return outs
