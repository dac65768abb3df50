"""Which operations on whole arrays can be done some rows at a time, and how.

An operation is *row-wise* if each row of its result needs the same row of its operands alone. Then
it runs on any block of rows, with the sizes among its parameters set to the block's. It is a
*reduction* if it adds up (or compares) all rows, so that the results of blocks can be merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit.errors import StreamError
from gnnjit.ir.array_program import Array, ArrayEquation
from gnnjit.ir.elementwise import ELEMENTWISE
from gnnjit.lower.partial_results import highest, lowest
from gnnjit.streaming.program.blockwise_rules import (
    RowBlock,
    Rule,
    bind,
    bound,
    has_rows,
    masked,
    plain,
    resized,
    summed,
)

__all__ = ["RowBlock", "Rule", "bind", "highest", "lowest", "rule_of"]

_MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": jnp.add,
    "reduce_max": jnp.maximum,
    "reduce_min": jnp.minimum,
    "reduce_prod": jnp.multiply,
    "reduce_and": jnp.bitwise_and,
    "reduce_or": jnp.bitwise_or,
    "reduce_xor": jnp.bitwise_xor,
}

_RANDOM = (
    "random_bits",
    "random_gamma",
    "rng_bit_generator",
    "rng_uniform",
    "shuffle",
    "threefry2x32",
)


def rule_of(eqn: ArrayEquation) -> Rule:
    """The rule of an equation with rows among its operands or results.

    Raises:
        StreamError: it is neither row-wise nor a reduction, as far as is known.
    """
    found = _find(eqn)
    if found is None or (found.merge is None) != all(map(has_rows, eqn.outputs)):
        operands = ", ".join(str(x) for x in eqn.inputs if isinstance(x, Array))
        raise StreamError(
            f"{eqn.where}: {eqn.name}({operands}) -> {eqn.outputs[0]} cannot be done some rows at "
            f"a time: {_advice(eqn)}"
        )
    return found


def _advice(eqn: ArrayEquation) -> str:
    if eqn.name in _RANDOM:
        return (
            "jax.random draws all rows at once. Use gnnjit.dropout or gnnjit.random_uniform in a "
            "layer, which draw by vertex"
        )
    return (
        "expected operations on each vertex by itself, sums and maxima over all vertices, and "
        "layers. Do it outside of the streamed function, or as a layer"
    )


def _find(eqn: ArrayEquation) -> Rule | None:
    if eqn.name in ELEMENTWISE:
        return _elementwise(eqn)
    if eqn.name in _MERGES:
        return _reduction(eqn)
    if eqn.name in _AXES:
        return _along_axes(eqn)
    maker = _MAKERS.get(eqn.name)
    return maker(eqn) if maker else None


# ------------------------------------------------------------------ element by element, and axes


def _elementwise(eqn: ArrayEquation) -> Rule | None:
    """Operands have rows, or are the same for all of them: scalars, or of one row."""
    axis, rank = eqn.outputs[0].axis, 1 + len(eqn.outputs[0].shape)
    fits = all(
        x.axis == axis  # type: ignore[union-attr]
        if has_rows(x)
        else not x.shape or (len(x.shape) == rank and x.shape[axis] == 1)
        for x in eqn.inputs
    )
    if eqn.name == "optimization_barrier":  # each operand by itself, whatever it has
        fits = True
    return plain(eqn) if fits else None


def _reduction(eqn: ArrayEquation) -> Rule | None:
    """Over other axes it is row-wise; over the rows, padding does not count."""
    (x,) = eqn.inputs
    if x.axis not in tuple(eqn.params["axes"]):  # type: ignore[union-attr]
        return plain(eqn)
    return summed(eqn, _neutral(eqn.name, x.dtype), _MERGES[eqn.name])


def _neutral(name: str, dtype: Any) -> Any:
    if name == "reduce_and":
        return np.invert(np.zeros((), dtype))
    if name == "reduce_prod":
        return 1
    if name in ("reduce_max", "reduce_min"):
        return lowest(dtype) if name == "reduce_max" else highest(dtype)
    return 0


_AXES: dict[str, Callable[[Any], Sequence[int]]] = {
    "argmax": lambda p: p["axes"],
    "argmin": lambda p: p["axes"],
    "cumsum": lambda p: [p["axis"]],
    "cumprod": lambda p: [p["axis"]],
    "cummax": lambda p: [p["axis"]],
    "cummin": lambda p: [p["axis"]],
    "cumlogsumexp": lambda p: [p["axis"]],
    "sort": lambda p: [p["dimension"]],
    "concatenate": lambda p: [p["dimension"]],
    "fft": lambda p: [],
    "split": lambda p: [p["axis"]],
    "squeeze": lambda p: p["dimensions"],
    "rev": lambda p: p["dimensions"],
    "tile": lambda p: [k for k, n in enumerate(p["reps"]) if n != 1],
    "top_k": lambda p: [p["axis"]],
    "unstack": lambda p: [p["axis"]],
}
"""The axes that an operation works along; it treats all others alike."""


def _along_axes(eqn: ArrayEquation) -> Rule | None:
    axes = set(_AXES[eqn.name](eqn.params))
    if eqn.name == "fft":
        rank = 1 + len(eqn.outputs[0].shape)
        axes = set(range(rank - len(eqn.params["fft_lengths"]), rank))
    fits = all(has_rows(x) and x.axis not in axes for x in eqn.inputs)  # type: ignore[union-attr]
    return plain(eqn) if fits else None


def _stack(eqn: ArrayEquation) -> Rule | None:
    return plain(eqn) if all(map(has_rows, eqn.inputs)) else None


# -------------------------------------------------------------------------------------- shapes


def _broadcast(eqn: ArrayEquation) -> Rule | None:
    x, axis = eqn.inputs[0], eqn.outputs[0].axis
    at = tuple(eqn.params["broadcast_dimensions"])
    if has_rows(x):
        fits = at[x.axis] == axis  # type: ignore[union-attr]
    else:
        fits = axis not in at or x.shape[at.index(axis)] == 1
    return resized(eqn, "shape", axis) if fits else None


def _reshape(eqn: ArrayEquation) -> Rule | None:
    x, out = eqn.inputs[0], eqn.outputs[0]
    if not isinstance(x, Array) or not has_rows(x) or eqn.params.get("dimensions") is not None:
        return None
    same = math.prod(x.shape[: x.axis]) == math.prod(out.shape[: out.axis])
    return resized(eqn, "new_sizes", out.axis) if same else None


def _slice(eqn: ArrayEquation) -> Rule | None:
    p, x = eqn.params, eqn.inputs[0]
    assert isinstance(x, Array)
    whole = p["start_indices"][x.axis] == 0 and (p["strides"] is None or p["strides"][x.axis] == 1)
    return resized(eqn, "limit_indices", x.axis) if whole else None


def _dynamic_slice(eqn: ArrayEquation) -> Rule | None:
    x = eqn.inputs[0]
    fits = has_rows(x) and not any(map(has_rows, eqn.inputs[1:]))
    return resized(eqn, "slice_sizes", x.axis) if fits else None  # type: ignore[union-attr]


def _dynamic_update_slice(eqn: ArrayEquation) -> Rule | None:
    fits = all(map(has_rows, eqn.inputs[:2])) and not any(map(has_rows, eqn.inputs[2:]))
    return plain(eqn) if fits else None


def _pad(eqn: ArrayEquation) -> Rule | None:
    x, value = eqn.inputs
    fits = has_rows(x) and not has_rows(value)
    fits = fits and tuple(eqn.params["padding_config"][x.axis]) == (0, 0, 0)  # type: ignore[union-attr]
    return plain(eqn) if fits else None


def _iota(eqn: ArrayEquation) -> Rule | None:
    (out,) = eqn.outputs
    if eqn.params["dimension"] != out.axis:
        return resized(eqn, "shape", out.axis)

    def run(block: RowBlock, args: Sequence[Any]) -> list[Any]:
        index = block.index.astype(out.dtype).reshape((-1,) + (1,) * len(out.shape))
        return [jnp.broadcast_to(index, (block.size, *out.shape))]

    return Rule(run)


def _empty(eqn: ArrayEquation) -> Rule | None:
    return resized(eqn, "shape", eqn.outputs[0].axis)


# ------------------------------------------------------------------------------------ products


def _dot_general(eqn: ArrayEquation) -> Rule | None:
    """Free rows, rows of both in step, or a sum over the rows of products, such as the gradient
    of a matrix."""
    contract, batch = (list(zip(*pair, strict=True)) for pair in eqn.params["dimension_numbers"])
    axes = [x.axis if isinstance(x, Array) and has_rows(x) else None for x in eqn.inputs]
    if None not in axes:
        if tuple(axes) in contract:
            return summed(eqn, 0, jnp.add)
        return plain(eqn) if tuple(axes) in batch else None
    at = 0 if axes[1] is None else 1
    bound = [pair[at] for pair in (*contract, *batch)]
    return plain(eqn) if axes[at] not in bound else None


def _rows_matmul(eqn: ArrayEquation) -> Rule | None:
    x, w = map(has_rows, eqn.inputs)
    return plain(eqn) if x and not w and _first(eqn) else None


def _tall_matmul(eqn: ArrayEquation) -> Rule | None:
    fits = all(map(has_rows, eqn.inputs)) and _first(eqn)
    return summed(eqn, 0, jnp.add) if fits else None


def _first(eqn: ArrayEquation) -> bool:
    return not any(x.axis for x in (*eqn.inputs, *eqn.outputs) if isinstance(x, Array))


# --------------------------------------------------------------------------------- table look-ups


def _gather(eqn: ArrayEquation) -> Rule | None:
    """A table that all rows look at, columns that are the same for all rows, or other columns for
    each row."""
    x, at = eqn.inputs
    numbers, out = eqn.params["dimension_numbers"], eqn.outputs[0]
    if has_rows(at):
        pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        fits = not has_rows(x) or (x.axis, at.axis) in pairs  # type: ignore[union-attr]
        fits = fits and out.axis not in numbers.offset_dims
        # Another order of the vertices, and padding: nothing is sorted or unique any more.
        return plain(eqn, **_in_any_order()) if fits else None
    assert isinstance(x, Array)
    taken = (
        *numbers.collapsed_slice_dims,
        *numbers.operand_batching_dims,
        *numbers.start_index_map,
    )
    if not has_rows(x) or x.axis in taken or out.axis not in numbers.offset_dims:
        return None
    return resized(eqn, "slice_sizes", x.axis)


def _in_any_order() -> dict[str, bool]:
    return {"indices_are_sorted": False, "unique_indices": False}


_INTO_TABLE = {"add": jnp.add, "max": jnp.maximum, "min": jnp.minimum}


def _scatter(eqn: ArrayEquation) -> Rule | None:
    x, at, new = eqn.inputs
    numbers = eqn.params["dimension_numbers"]
    if not isinstance(x, Array) or not isinstance(new, Array) or not has_rows(new):
        return None
    if has_rows(x) and has_rows(at):
        pairs = zip(
            numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
        )
        fits = (x.axis, at.axis) in pairs and new.axis not in numbers.update_window_dims  # type: ignore[union-attr]
        return plain(eqn, **_in_any_order()) if fits else None
    if has_rows(x):
        taken = (*numbers.inserted_window_dims, *numbers.operand_batching_dims,
                 *numbers.scatter_dims_to_operand_dims)  # fmt: skip
        fits = x.axis not in taken and new.axis in numbers.update_window_dims
        return plain(eqn) if fits else None
    kind = eqn.name.replace("_", "-").removeprefix("scatter").removeprefix("-")
    return _into_table(eqn, kind) if has_rows(at) and kind in _INTO_TABLE else None


def _into_table(eqn: ArrayEquation, kind: str) -> Rule:
    """Rows added into a table (compared with it): the gradient of looking them up there."""
    dtype = eqn.outputs[0].dtype
    neutral = {"add": lambda _: 0, "max": lowest, "min": highest}[kind](dtype)
    merge = _INTO_TABLE[kind]

    def run(block: RowBlock, args: Sequence[Any]) -> list[Any]:
        table, at, new = args
        empty = jnp.full_like(table, neutral)
        args = [empty, at, masked(block, new, neutral)]
        return bound(eqn, block, args, _in_any_order())

    return Rule(run, merge, neutral, lambda total, args: merge(args[0], total))


_MAKERS: dict[str, Callable[[ArrayEquation], Rule | None]] = {
    "broadcast_in_dim": _broadcast,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "empty": _empty,
    "empty2": _empty,
    "gather": _gather,
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "rows_matmul": _rows_matmul,
    "slice": _slice,
    "stack": _stack,
    "tall_matmul": _tall_matmul,
    "transpose": plain,
    **dict.fromkeys(
        ["scatter", *(f"scatter{s}{k}" for k in ("add", "sub", "mul", "max", "min") for s in "-_")],
        _scatter,
    ),
}
