"""Small layers as programs, and a small graph to run them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gnnjit
from gnnjit.frontend.capture import capture
from gnnjit.frontend.vocabulary import layer_scope
from gnnjit.ir.interpret import Incidence
from gnnjit.ir.program import Aggregate, Equation, Program, Reduce, Value
from gnnjit.ir.space import Space

F32 = np.dtype(np.float32)


def value(name: str, space: Space, *shape: int, dtype: Any = F32) -> Value:
    return Value(shape, np.dtype(dtype), space, name)


def trace(fn: Callable[..., Any], inputs: Sequence[Value], edge_values: bool = False) -> Program:
    """The program of `fn(*inputs)`; inputs are arrays of one element."""

    def flat(*args: Any) -> Any:
        with layer_scope():
            return jax.tree.leaves(fn(*args))

    return capture(flat, inputs, name=fn.__name__, edge_values=edge_values).program


def gat() -> Program:
    def gat(x_src: Any, x: Any, w: Any, a_src: Any, a_dst: Any) -> Any:
        h = x_src @ w
        score = h @ a_src + (x @ w) @ a_dst
        weight = jnp.exp(score - gnnjit.max(score))
        return gnnjit.sum(weight * h) / gnnjit.sum(weight)

    params = [value("p['w']", Space.SHARED, 4, 3), value("p['a'][0]", Space.SHARED, 3),
              value("p['a'][1]", Space.SHARED, 3)]  # fmt: skip
    return trace(gat, [value("e.src", Space.SRC, 4), value("v", Space.DST, 4), *params])


def gcn() -> Program:
    def gcn(x: Any, coefficient: Any, w: Any, b: Any) -> Any:
        return jnp.maximum(gnnjit.sum(coefficient * x) @ w + b, 0)

    return trace(gcn, [value("e.src", Space.SRC, 4), value("e.data", Space.EDGE),
                       value("w", Space.SHARED, 4, 3), value("b", Space.SHARED, 3)])  # fmt: skip


def sage() -> Program:
    def sage(x_src: Any, x: Any, w: Any) -> Any:
        count = jnp.maximum(gnnjit.degree(), 1).astype(jnp.float32)
        return jnp.concatenate([x, gnnjit.sum(x_src) / count]) @ w

    return trace(sage, [value("x", Space.SRC, 2), value("x", Space.DST, 2),
                        value("w", Space.SHARED, 4, 3)])  # fmt: skip


def several() -> Program:
    """One traversal with outputs per destination, per source, for the whole graph and per edge."""
    inputs = [value("x", Space.SRC, 2), value("g", Space.DST, 2)]
    body = trace(lambda x, g: [m := x * g, -m, m], inputs)
    into = [Reduce("sum", Space.DST), Reduce("max", Space.SRC), Reduce("sum", Space.SHARED), None]
    spaces = [Space.DST, Space.SRC, Space.SHARED, Space.EDGE]
    atoms = (*body.outputs, body.outputs[0])
    body = Program(body.inputs, body.equations, atoms, "body")
    operands = (value("x", Space.SRC, 2), value("g", Space.DST, 2))
    outs = tuple(value("", s, 2) for s in spaces)
    eqn = Equation(Aggregate(body, tuple(into)), operands, outs)
    return Program(operands, (eqn,), outs, "several")


def graphs() -> Program:
    """Values of graphs, read by vertices and edges and reduced from both."""

    def graphs(x_src: Any, x: Any, u: Any) -> Any:
        edge = x_src * u
        of_graph = gnnjit.readout.max(edge) + gnnjit.readout.mean(x) + jnp.tanh(u)
        return gnnjit.readout.softmax(x) * of_graph, gnnjit.sum(edge) + u, of_graph

    inputs = [value("e.src", Space.SRC, 2), value("v", Space.DST, 2), value("u", Space.GRAPH, 2)]
    return trace(graphs, inputs, edge_values=True)


def outgoing() -> Program:
    """Sent and received values, and weights over outgoing edges."""

    def outgoing(x_src: Any, x: Any) -> Any:
        edge = x_src * x
        weight = gnnjit.softmax(edge, over="out")
        return gnnjit.sum(edge, over="out") * gnnjit.degree(over="out"), gnnjit.sum(weight)

    inputs = [value("e.src", Space.SRC, 2), value("v", Space.DST, 2)]
    return trace(outgoing, inputs, edge_values=True)


def sent() -> Program:
    def sent(x_src: Any, x: Any) -> Any:
        return gnnjit.sum(x_src * x, over="out") * gnnjit.degree(over="out")

    inputs = [value("e.src", Space.SRC), value("v", Space.DST)]
    return trace(sent, inputs, edge_values=True)


def ordered() -> Program:
    """Ranks, and states that edges change."""

    def ordered(x_src: Any, x: Any, w: Any) -> Any:
        edge = x_src * x
        state = gnnjit.fold(lambda s, z: s @ w + z, x, edge, order=edge[0])
        count = gnnjit.fold(lambda s, z: (s[1], s[0] + 1), (jnp.int32(0), jnp.int32(1)), edge)
        return state, count, gnnjit.argmin(x_src - x), gnnjit.top_k(edge, 2)

    inputs = [
        value("e.src", Space.SRC, 2),
        value("v", Space.DST, 2),
        value("w", Space.SHARED, 2, 2),
    ]
    return trace(ordered, inputs, edge_values=True)


LAYERS = {
    "gat": gat, "gcn": gcn, "sage": sage, "several": several, "graphs": graphs,
    "outgoing": outgoing, "sent": sent, "ordered": ordered,
}  # fmt: skip

# 4 sources, 5 destinations: source 3 and destinations 2 and 4 are isolated, 0 -> 0 comes twice.
GRAPH = Incidence(jnp.array([0, 0, 1, 2, 1]), jnp.array([0, 0, 1, 3, 3]), 4, 5)


def operands(program: Program, graph: Incidence, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    lead = [() if v.space is Space.SHARED else (graph.size(v.space),) for v in program.inputs]
    return [jnp.asarray(rng.integers(-3, 4, (*n, *v.shape)), v.dtype)
            for n, v in zip(lead, program.inputs, strict=True)]  # fmt: skip
