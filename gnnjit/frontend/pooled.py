"""A readout as operations of a program: over the vertices of each graph, or over its edges."""

from __future__ import annotations

import jax
import numpy as np

from gnnjit.ir import build
from gnnjit.ir.program import Atom, Builder, Degree, Literal, Location, Pool, Reduce, Value
from gnnjit.ir.space import Space

_INT = np.dtype(np.int32)


def pool(builder: Builder, kind: str, x: Atom, where: Location | None) -> Value:
    """Append the reduction of `x` into its graphs, or (`count`) the number of its values.

    A graph's edges end at its vertices. So the sum over them is a sum over the vertices of what a
    traversal sums up at each, and no traversal has to know of graphs.
    """
    if x.space is Space.DST:
        if kind == "count":
            return _one(builder, Degree(), [], Value((), _INT, Space.GRAPH), where)
        return _pool(builder, kind, [x], where)
    degree = _one(builder, Degree(), [], Value((), _INT, Space.DST), where)
    if kind == "count":
        return _pool(builder, "sum", [degree], where)
    row = _reduced(builder, kind, x, where)
    if kind == "sum":
        return _pool(builder, kind, [row], where)
    return _pool(builder, kind, [row, degree, _attained(builder, x, row, where)], where)


def _attained(builder: Builder, x: Atom, row: Value, where: Location | None) -> Value:
    """How many edges attain the extreme of their vertex, at least 1: rounding or a NaN may make it
    seem that none does."""
    equal = build.combine(builder, jax.lax.eq, x, row, where)
    count = _reduced(builder, "sum", build.convert(builder, equal, _INT, where), where)
    one = Literal(np.int32(1), _INT)
    return build.elementwise(builder, jax.lax.max, [count, one], where)


def _reduced(builder: Builder, kind: str, x: Atom, where: Location | None) -> Value:
    out = Value(tuple(x.shape), x.dtype, Space.DST)
    return _one(builder, Reduce(kind, Space.DST), [x], out, where)


def _pool(builder: Builder, kind: str, operands: list[Atom], where: Location | None) -> Value:
    x = operands[0]
    return _one(builder, Pool(kind), operands, Value(tuple(x.shape), x.dtype, Space.GRAPH), where)


def _one(
    builder: Builder,
    op: Degree | Pool | Reduce,
    operands: list[Atom],
    out: Value,
    where: Location | None,
) -> Value:
    return builder.emit(op, operands, [out], where)[0]
