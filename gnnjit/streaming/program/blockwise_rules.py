"""How an operation on whole arrays runs on a block of rows.

Rows stand first in a block, wherever they stand in the user's array (`Array.axis`): an operation
runs on them moved there and back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from gnnjit.frontend.trace_arrays import Array, Equation


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """Some rows in a row: `index: int32[n]` are their numbers as the user counts them, `valid:
    bool[n]` tells the real ones from padding at the end (None: all are real)."""

    index: Any
    valid: Any

    @property
    def size(self) -> int:
        return self.index.shape[0]


RunRows = Callable[[RowBlock, Sequence[Any]], list[Any]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """How an operation runs on a block of rows.

    run: from the operands' rows to the result's rows, or to what a reduction has from them.
    merge: of a reduction: two results in one; `neutral` is what it has from no rows.
    finish: of a reduction, from what was merged and the operands (those with rows: None) to the
        result; None where that is it.
    """

    run: RunRows
    merge: Callable[[Any, Any], Any] | None = None
    neutral: Any = 0
    finish: Callable[[Any, Sequence[Any]], Any] | None = None


def has_rows(x: Any) -> bool:
    return x.rows is not None


def bind(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> list[Any]:
    """Apply a primitive."""
    out = primitive.bind(*args, **primitive.get_bind_params(dict(params)))
    return list(out) if primitive.multiple_results else [out]


def bound(
    eqn: Equation, block: RowBlock, args: Sequence[Any], changes: dict[str, Any]
) -> list[Any]:
    """The primitive on rows that stand first in a block."""
    params = {**eqn.params}
    for key, value in changes.items():
        params[key] = value(block.size) if callable(value) else value
    args = [
        jnp.moveaxis(x, 0, a.axis) if isinstance(a, Array) and a.axis else x
        for x, a in zip(args, eqn.inputs, strict=True)
    ]
    outs = bind(eqn.primitive, params, args)
    return [
        jnp.moveaxis(x, a.axis, 0) if a.axis else x for x, a in zip(outs, eqn.outputs, strict=True)
    ]


def plain(eqn: Equation, **changes: Any) -> Rule:
    """The primitive as it is, or with other parameters."""
    return Rule(lambda block, args: bound(eqn, block, args, changes))


def resized(eqn: Equation, key: str, axis: int) -> Rule:
    """The primitive with the block's size at `axis` of a parameter."""
    sizes = tuple(eqn.params[key])
    return plain(eqn, **{key: lambda n: (*sizes[:axis], n, *sizes[axis + 1 :])})


def summed(eqn: Equation, neutral: Any, merge: Callable[[Any, Any], Any], **changes: Any) -> Rule:
    """A reduction whose operands are `neutral` on padding."""

    def run(block: RowBlock, args: Sequence[Any]) -> list[Any]:
        args = [
            masked(block, x, neutral) if has_rows(a) else x
            for x, a in zip(args, eqn.inputs, strict=True)
        ]
        return bound(eqn, block, args, changes)

    return Rule(run, merge, neutral)


def masked(block: RowBlock, x: Any, neutral: Any) -> Any:
    if block.valid is None:
        return x
    valid = block.valid.reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.where(valid, x, jnp.asarray(neutral, x.dtype))
