"""The traversals that a plan becomes, forward and in its gradient, and the code chosen for each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax

from gnnjit import _compat
from gnnjit.cost.machine import platform_here
from gnnjit.graph import Graph
from gnnjit.ir.program import Aggregate, Network, Program
from gnnjit.ir.show import Printer, kind, show
from gnnjit.ir.space import Space
from gnnjit.lower import cpu
from gnnjit.lower.application import aggregate_p
from gnnjit.lower.choose import Choice, choose, traversals
from gnnjit.lower.execute import size
from gnnjit.lower.lowering import with_fixed
from gnnjit.lower.vertex_matmul import tall_p
from gnnjit.lower.vertex_networks import own_edges, with_networks


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The code chosen for one traversal. `features`: it takes so many at a time, each time for all
    edges; 0: all of them. `predicted`: seconds of each lowering that the cost model weighed."""

    direction: str
    traversal: str
    kernel: str
    rows: str
    refused: tuple[tuple[str, tuple[str, ...]], ...]
    features: int = 0
    predicted: tuple[tuple[str, float], ...] = ()

    @property
    def reasons(self) -> str:
        """Where it runs, and why not elsewhere."""
        blocks = f", {self.features} features at a time" if self.features else ""
        lines = [f"{self.direction}: {self.kernel}, one row per {self.rows}{blocks}"]
        for other, reasons in self.refused:
            lines.append(f"  not {other}: {'; '.join(reasons)}")
        if self.predicted:
            times = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in self.predicted)
            lines.append(f"  a schema level, predicted: {times}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([self.reasons, *("  " + line for line in self.traversal.splitlines())])


def kernel_of(direction: str, choice: Choice, graph: Graph) -> Kernel:
    request = choice.request
    rows = "destination" if request.rows is Space.DST else "source"
    if direction == VERTICES:
        rows = "vertex, one edge per vertex"
    elif _sizes(request.graph) != _sizes(graph):
        direction, rows = "readouts", "graph, one edge per vertex"
    printer = Printer(request.body, [])
    body = show(request.body, locations=False, objects=[]).splitlines()[len(printer.header()) :]
    reads = [f"{printer.name(v)}: {kind(v)}" for v in request.body.inputs]
    reductions = [r.kind if r else "on the edges" for r in request.reductions]
    lines = [f"reads {', '.join(reads) or 'nothing'}", *body]
    text = "\n".join([*lines, f"reduced by: {', '.join(reductions)}"])
    features = cpu.feature_width_of(request) if choice.kernel == "cpu" else 0
    return Kernel(direction, text, choice.kernel, rows, choice.refused, features, choice.predicted)


def forward_kernels(program: Program, graph: Graph) -> list[Kernel]:
    """The traversals of an optimised program."""
    return [kernel_of(*found, graph) for found in forward_choices(program, graph)]


def backward_kernels(program: Program, gradient: Any, graph: Graph) -> list[Kernel]:
    """The traversals of the gradient of `program`, whose jaxpr is given, beside those forward; and
    those that reduce vertices into their graphs."""
    return [kernel_of(*found, graph) for found in backward_choices(program, gradient, graph)]


VERTICES = "vertices"
"""In place of a direction: a network of vertices, in which each has an edge to itself."""


def forward_choices(program: Program, graph: Graph) -> list[tuple[str, Choice]]:
    """With the direction of each."""
    found: list[tuple[str, Choice]] = []
    for eqn in with_networks(program, graph).equations:
        if isinstance(eqn.op, Aggregate):
            found += [("forward", choice) for choice in _choices(eqn.op, graph)]
        elif isinstance(eqn.op, Network):
            over = jax.eval_shape(functools.partial(own_edges, size(graph, eqn.space)))
            op = Aggregate(eqn.op.body, (None,) * len(eqn.outputs))
            found += [(VERTICES, choice) for choice in _choices(op, over)]
    return found


def backward_choices(program: Program, gradient: Any, graph: Graph) -> list[tuple[str, Choice]]:
    """With the direction of each."""
    seen = {(e.op, True) for e in program.equations if isinstance(e.op, Aggregate)}
    fresh: dict[Any, Graph] = {}
    for eqn in _equations(gradient):
        if eqn.primitive is not aggregate_p:
            continue
        reductions = with_fixed(eqn.params["reductions"])  # a program's own do not say it
        op, over = Aggregate(eqn.params["body"], reductions), _graph_of(eqn)
        alone = eqn.invars[0] is eqn.invars[1]  # sources and destinations of `own_edges`
        own = not alone and (not isinstance(over, Graph) or _sizes(over) == _sizes(graph))
        direction = VERTICES if alone else "backward"
        if (op, own) not in seen:
            fresh.setdefault((op, own, eqn.params["limit"], direction), graph if own else over)
    return [
        (direction, choice)
        for (op, _, limit, direction), over in fresh.items()
        for choice in _choices(op, over, limit)
    ]


def _graph_of(eqn: Any) -> Any:
    """The graph that an aggregate runs over, its arrays as descriptions."""
    treedef, count = eqn.params["graph_def"]
    leaves = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars[:count]]
    return jax.tree.unflatten(treedef, leaves)


def _sizes(graph: Any) -> tuple[int, int, int]:
    return graph.num_src, graph.num_dst, graph.num_edges


def _choices(op: Aggregate, graph: Graph, limit: int | None = None) -> Iterator[Choice]:
    """One for each traversal that an aggregate becomes when it is lowered."""
    platform = platform_here()
    for eqn in traversals(op.body, op.reductions, graph, platform, limit).equations:
        if isinstance(eqn.op, Aggregate):
            yield choose(eqn.op, graph, platform, limit)


def products_of(gradient: Any) -> list[str]:
    """How the gradients of matrices are computed, each kind once."""
    products = [_product(e) for e in _equations(gradient) if e.primitive is tall_p]
    return list(dict.fromkeys(products))


def _product(eqn: Any) -> str:
    (left, right), dtype = eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype
    text = f"a.T @ b over all vertices, {dtype}[{left}, {right}]"
    if jax.default_backend() != "cpu":
        return f"backward: xla, {text}"
    reasons = cpu.why_no_product(left, right, dtype)
    head = f"backward: {'xla' if reasons else 'cpu'}, {text}"
    return "\n".join([head, *(f"  not cpu: {r}" for r in reasons)])


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner jaxprs too."""
    for eqn in jaxpr.eqns:
        yield eqn
        for sub in _compat.subjaxprs(eqn):
            yield from _equations(sub)
