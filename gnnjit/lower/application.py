"""One application of `aggregate`, in parts: what its rules take apart and bind again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from gnnjit import _compat
from gnnjit.frontend.capture import capture
from gnnjit.ir.kept import kept_values, with_products_kept
from gnnjit.ir.program import Atom, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.execute import size
from gnnjit.lower.lowering import Reductions
from gnnjit.sharding.sharded_graph import AnyGraph

aggregate_p = _compat.Primitive("aggregate")
aggregate_p.multiple_results = True


@dataclasses.dataclass(frozen=True)
class Application:
    """The parts of one application of the primitive."""

    leaves: list[Any]
    operands: list[Any]
    graph_def: Any
    body: Program
    reductions: Reductions
    limit: int | None

    @staticmethod
    def of(args: Sequence[Any], *, graph_def: Any, **params: Any) -> Application:
        n = graph_def[1]
        return Application(list(args[:n]), list(args[n:]), graph_def, **params)

    @property
    def graph(self) -> AnyGraph:
        return jax.tree.unflatten(self.graph_def[0], self.leaves)

    def rebind(self) -> list[Any]:
        """The same application again."""
        return self.bind(self.body, self.reductions, self.operands)

    def kept(self) -> tuple[list[Any], dict[Value, Any]]:
        """The outputs, and the values that stand in `kept`, for the derivative to read."""
        values, count = kept_values(self.body), len(self.body.outputs)
        if not values:
            return self.rebind(), {}
        body = dataclasses.replace(self.body, outputs=(*self.body.outputs, *values))
        every = self.bind(body, (*self.reductions, *[None] * len(values)), self.operands)
        return every[:count], dict(zip(values, every[count:], strict=True))

    def bind(self, body: Program, reductions: Reductions, operands: Sequence[Any]) -> list[Any]:
        """Another application on this graph, with this limit."""
        return aggregate_p.bind(
            *self.leaves,
            *operands,
            body=body,
            reductions=reductions,
            graph_def=self.graph_def,
            limit=self.limit,
        )

    def capture(
        self,
        fn: Any,
        inputs: Sequence[Value],
        reductions: Reductions,
        operands: Sequence[Any],
        *,
        keep: bool = False,
    ) -> list[Any]:
        """Bind the aggregate whose per-edge function is `fn`, with the operands that it reads:
        an operand nobody reads would be held for the backward all the same. `keep`: its derivative
        reads its large products."""
        found = capture(fn, inputs)
        every = [*operands, *found.constants]
        body, slots = found.program.select(range(len(found.program.outputs)))
        if keep:
            body = with_products_kept(body)
        return self.bind(body, reductions, [every[i] for i in slots])


def home(reduction: Reduce | None) -> Space:
    """The space that an output of an aggregate lives in."""
    return Space.EDGE if reduction is None else reduction.into


def out_shape(graph: AnyGraph, atom: Atom, reduction: Reduce | None) -> tuple[int, ...]:
    space = home(reduction)
    return tuple(atom.shape) if space is Space.SHARED else (size(graph, space), *atom.shape)


def fresh(values: Sequence[Atom]) -> list[Value]:
    return [Value(tuple(v.shape), v.dtype, v.space, getattr(v, "name", "")) for v in values]


def as_sum(reduction: Reduce | None) -> Reduce | None:
    return None if reduction is None else Reduce("sum", reduction.into)
