"""Selections and folds as operations of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gnnjit.errors import LayerError
from gnnjit.ir.program import (
    Atom,
    Builder,
    Fold,
    Index,
    Lax,
    Location,
    Program,
    Select,
    Store,
    Value,
)
from gnnjit.ir.space import Space

_INT = np.dtype(np.int32)


def into(over: str) -> Space:
    """Where what is reduced over these edges lies."""
    return Space.DST if over == "in" else Space.SRC


def select(
    builder: Builder, params: Mapping[str, Any], ins: Sequence[Atom], where: Location | None
) -> list[Atom]:
    """Append the selection of the edges whose value `ins[0]` has the ranks `ins[1]`."""
    value, ranks = ins
    (number,) = builder.emit(Index(), [], [Value((), _INT, Space.EDGE)], where)
    inputs = tuple(Value(tuple(a.shape), a.dtype, Space.EDGE) for a in (value, number))
    body = Program(inputs, (), inputs, "body")
    space = into(params["over"])
    op = Select(body, space, params["descending"], params["first"])
    out = Value((*ranks.shape, *value.shape), _INT, space)
    return list(builder.emit(op, [ranks, value, number], [out], where))


def fold(
    builder: Builder,
    params: Mapping[str, Any],
    ins: Sequence[Atom],
    body_of: Callable[[Sequence[Value]], Program],
    where: Location | None,
) -> list[Atom]:
    """Append a fold. `body_of` gives its step, of such inputs."""
    states, ordered, space = params["states"], params["ordered"], into(params["over"])
    at = f"{where}: " if where else ""
    order = [_written(builder, a, where) for a in ins[:ordered]]
    start, read = ins[ordered : ordered + states], ins[ordered + states :]
    for a in start:
        if not a.space <= space:
            raise LayerError(
                f"{at}gnnjit.fold: init has a value of {a.space.value}, expected "
                + ("values of this vertex, from v, or shared ones" if space is Space.DST
                   else 'shared values, for over="out"')
            )  # fmt: skip
    state = [Value(tuple(a.shape), a.dtype, space) for a in start]
    values = [Value(tuple(a.shape), a.dtype, a.space) for a in read]
    body = body_of([*state, *values])
    other = next((e for e in body.equations if not isinstance(e.op, Lax)), None)
    if other is not None:
        raise LayerError(
            f"{at}gnnjit.fold: its step reduces over edges, or draws random numbers "
            f"({other.op.name}), expected plain JAX: do so outside of the step, and give it the "
            "result"
        )
    outs = [Value(tuple(a.shape), a.dtype, space) for a in start]
    operands = [*order, *start, *read]
    return list(builder.emit(Fold(body, space, bool(ordered)), operands, outs, where))


def _written(builder: Builder, order: Atom, where: Location | None) -> Atom:
    """The order of the edges, as an array."""
    made = any(order in e.outputs for e in builder.equations)
    if not made or order.space is not Space.EDGE:
        return order
    kept = Value(tuple(order.shape), order.dtype, Space.EDGE)
    return builder.emit(Store(), [order], [kept], where)[0]
