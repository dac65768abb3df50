"""Which operations on whole arrays can be done some rows at a time, and how.

An operation is *row-wise* if each row of its result needs the same row of its operands alone. Then
it runs on any block of rows, with the sizes among its parameters set to the block's. It is a
*reduction* if it adds up (or compares) all rows, so that the results of blocks can be merged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.errors import StreamError
from gnnjit.frontend.whole import Array, Equation

_ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    bitcast_convert_type cbrt ceil clamp clz convert_element_type copy copy_p cos cosh digamma div
    eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag integer_pow is_finite
    le le_to lgamma log log1p logistic lt lt_to max min mul name ne neg nextafter not or
    optimization_barrier polygamma population_count pow real reduce_precision regularized_incomplete_beta
    rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh
    sqrt square stop_gradient sub tan tanh xor
    """.split()
)  # fmt: skip

_MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "reduce_sum": jnp.add,
    "reduce_max": jnp.maximum,
    "reduce_min": jnp.minimum,
    "reduce_prod": jnp.multiply,
    "reduce_and": jnp.logical_and,
    "reduce_or": jnp.logical_or,
}

_RANDOM = ("random_bits", "threefry2x32", "random_gamma", "shuffle")


@dataclasses.dataclass(frozen=True)
class Block:
    """Some rows in a row: `index: int32[n]` are their numbers as the user counts them, `valid:
    bool[n]` tells the real ones from padding at the end (None: all are real)."""

    index: Any
    valid: Any

    @property
    def size(self) -> int:
        return self.index.shape[0]


Run = Callable[[Block, Sequence[Any]], list[Any]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """How an operation runs on a block of rows.

    run: from the operands' rows to the result's rows, or to what a reduction has from them.
    merge: of a reduction: two results in one; `neutral` is what it has from no rows.
    finish: of a reduction, from what was merged and the operands (those with rows: None) to the
        result; None where that is it.
    """

    run: Run
    merge: Callable[[Any, Any], Any] | None = None
    neutral: Any = 0
    finish: Callable[[Any, Sequence[Any]], Any] | None = None


def rule_of(eqn: Equation) -> Rule:
    """The rule of an equation with rows among its operands or results.

    Raises:
        StreamError: it is neither row-wise nor a reduction, as far as is known.
    """
    found = _find(eqn)
    if found is None:
        operands = ", ".join(str(x) for x in eqn.inputs if isinstance(x, Array))
        raise StreamError(
            f"{eqn.where}: {eqn.name}({operands}) -> {eqn.outputs[0]} cannot be done some rows at "
            f"a time: {_advice(eqn)}"
        )
    return found


def _advice(eqn: Equation) -> str:
    if eqn.name in _RANDOM:
        return (
            "jax.random draws all rows at once. Use gnnjit.dropout or gnnjit.random_uniform in a "
            "layer, which draw by vertex"
        )
    return (
        "expected operations on each vertex by itself, sums and maxima over all vertices, and "
        "layers. Do it outside of the streamed function, or as a layer"
    )


def _has_rows(x: Any) -> bool:
    return x.rows is not None


def _plain(eqn: Equation, **changes: Any) -> Run:
    """The primitive as it is, or with other parameters."""

    def run(block: Block, args: Sequence[Any]) -> list[Any]:
        params = {**eqn.params}
        for key, value in changes.items():
            params[key] = value(block.size) if callable(value) else value
        return bind(eqn.primitive, params, args)

    return run


def bind(primitive: Any, params: dict[str, Any], args: Sequence[Any]) -> list[Any]:
    """Apply a primitive."""
    out = primitive.bind(*args, **primitive.get_bind_params(dict(params)))
    return list(out) if primitive.multiple_results else [out]


def _find(eqn: Equation) -> Rule | None:
    if eqn.name in _ELEMENTWISE:
        return _elementwise(eqn)
    if eqn.name in _MERGES:
        return _reduction(eqn)
    if eqn.name in _AXES:
        return _along_axes(eqn)
    maker = _MAKERS.get(eqn.name)
    run = maker(eqn) if maker else None
    return run if isinstance(run, Rule) or run is None else Rule(run)


def _elementwise(eqn: Equation) -> Rule | None:
    """Operands have rows, or are the same for all of them: scalars, or of one row."""
    rank = 1 + len(eqn.outputs[0].shape)
    fits = all(
        _has_rows(x) or not x.shape or (len(x.shape) == rank and x.shape[0] == 1)
        for x in eqn.inputs
    )
    return Rule(_plain(eqn)) if fits and all(map(_has_rows, eqn.outputs)) else None


def _reduction(eqn: Equation) -> Rule | None:
    """Over other axes it is row-wise; over the rows, padding does not count."""
    axes = tuple(eqn.params["axes"])
    if 0 not in axes:
        return Rule(_plain(eqn))
    neutral = _neutral(eqn.name, eqn.inputs[0].dtype)

    def run(block: Block, args: Sequence[Any]) -> list[Any]:
        (x,) = args
        return bind(eqn.primitive, dict(eqn.params), [_masked(block, x, neutral)])

    return Rule(run, _MERGES[eqn.name], neutral)


def _neutral(name: str, dtype: Any) -> Any:
    if name in ("reduce_and", "reduce_or"):
        return name == "reduce_and"
    if name in ("reduce_sum", "reduce_prod"):
        return 0 if name == "reduce_sum" else 1
    return lowest(dtype) if name == "reduce_max" else highest(dtype)


def lowest(dtype: Any) -> Any:
    """Below every number of a dtype, or equal to one."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf
    return False if dtype == jnp.bool_ else jnp.iinfo(dtype).min


def highest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf
    return True if dtype == jnp.bool_ else jnp.iinfo(dtype).max


def _masked(block: Block, x: Any, neutral: Any) -> Any:
    if block.valid is None:
        return x
    valid = block.valid.reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.where(valid, x, jnp.asarray(neutral, x.dtype))


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
    "stack": lambda p: [p["axis"]],
    "split": lambda p: [p["axis"]],
    "squeeze": lambda p: p["dimensions"],
    "rev": lambda p: p["dimensions"],
}


def _along_axes(eqn: Equation) -> Rule | None:
    return None if 0 in tuple(_AXES[eqn.name](eqn.params)) else Rule(_plain(eqn))


def _broadcast(eqn: Equation) -> Run | None:
    x = eqn.inputs[0]
    at = tuple(eqn.params["broadcast_dimensions"])
    if _has_rows(x):
        fits = at[0] == 0
    else:
        fits = 0 not in at or x.shape[at.index(0)] == 1
    shape = tuple(eqn.params["shape"])
    return _plain(eqn, shape=lambda n: (n, *shape[1:])) if fits else None


def _reshape(eqn: Equation) -> Run | None:
    sizes = tuple(eqn.params["new_sizes"])
    fits = _has_rows(eqn.inputs[0]) and eqn.params.get("dimensions") is None
    return _plain(eqn, new_sizes=lambda n: (n, *sizes[1:])) if fits else None


def _transpose(eqn: Equation) -> Run | None:
    return _plain(eqn) if eqn.params["permutation"][0] == 0 else None


def _slice(eqn: Equation) -> Run | None:
    p = eqn.params
    strides, limits = p["strides"], tuple(p["limit_indices"])
    whole = p["start_indices"][0] == 0 and (strides is None or strides[0] == 1)
    if not whole or not _has_rows(eqn.outputs[0]):
        return None
    return _plain(eqn, limit_indices=lambda n: (n, *limits[1:]))


def _dynamic_slice(eqn: Equation) -> Run | None:
    sizes = tuple(eqn.params["slice_sizes"])
    fits = _has_rows(eqn.outputs[0]) and not any(map(_has_rows, eqn.inputs[1:]))
    return _plain(eqn, slice_sizes=lambda n: (n, *sizes[1:])) if fits else None


def _dynamic_update_slice(eqn: Equation) -> Run | None:
    fits = all(map(_has_rows, eqn.inputs[:2])) and not any(map(_has_rows, eqn.inputs[2:]))
    return _plain(eqn) if fits else None


def _pad(eqn: Equation) -> Run | None:
    fits = tuple(eqn.params["padding_config"][0]) == (0, 0, 0) and not _has_rows(eqn.inputs[1])
    return _plain(eqn) if fits else None


def _iota(eqn: Equation) -> Run | None:
    shape, dtype = tuple(eqn.params["shape"]), eqn.params["dtype"]
    if eqn.params["dimension"] != 0:
        return _plain(eqn, shape=lambda n: (n, *shape[1:]))

    def run(block: Block, args: Sequence[Any]) -> list[Any]:
        index = block.index.astype(dtype).reshape((-1,) + (1,) * (len(shape) - 1))
        return [jnp.broadcast_to(index, (block.size, *shape[1:]))]

    return run


def _top_k(eqn: Equation) -> Run | None:
    axis = eqn.params.get("axis", -1)
    return _plain(eqn) if eqn.inputs[0].shape and axis != 0 else None


def _dot_general(eqn: Equation) -> Rule | None:
    (contract, batch) = eqn.params["dimension_numbers"]
    lhs, rhs = map(_has_rows, eqn.inputs)
    out = _has_rows(eqn.outputs[0])
    if lhs and rhs and not out:
        pairs = list(zip(*contract, strict=True))
        return _contraction(eqn) if (0, 0) in pairs else None
    if lhs and rhs:
        fits = bool(batch[0]) and batch[0][0] == 0 and batch[1][0] == 0
    elif lhs:
        fits = not batch[0] and 0 not in contract[0]
    else:
        free = len(eqn.inputs[0].shape) - len(contract[0]) - len(batch[0])
        fits = not batch[1] and 0 not in contract[1] and free == 0
    return Rule(_plain(eqn)) if fits and out else None


def _contraction(eqn: Equation) -> Rule:
    """A sum over the rows of products, such as the gradient of a matrix."""

    def run(block: Block, args: Sequence[Any]) -> list[Any]:
        return bind(eqn.primitive, dict(eqn.params), [_masked(block, x, 0) for x in args])

    return Rule(run, jnp.add)


def _rows_matmul(eqn: Equation) -> Run | None:
    x, w = map(_has_rows, eqn.inputs)
    return _plain(eqn) if x and not w else None


def _tall_matmul(eqn: Equation) -> Rule | None:
    return _contraction(eqn) if all(map(_has_rows, eqn.inputs)) else None


def _gather(eqn: Equation) -> Run | None:
    x, at = map(_has_rows, eqn.inputs)
    numbers = eqn.params["dimension_numbers"]
    out = _has_rows(eqn.outputs[0])
    if x and at:
        pairs = zip(
            numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
        )
        return _plain(eqn) if out and (0, 0) in pairs and 0 not in numbers.offset_dims else None
    if at:
        return _plain(eqn) if out and 0 not in numbers.offset_dims else None
    sizes = tuple(eqn.params["slice_sizes"])
    taken = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims, *numbers.start_index_map)
    if not out or 0 in taken or numbers.offset_dims[0] != 0:
        return None
    return _plain(eqn, slice_sizes=lambda n: (n, *sizes[1:]))


def _scatter(eqn: Equation) -> Rule | None:
    x, at, new = map(_has_rows, eqn.inputs)
    numbers = eqn.params["dimension_numbers"]
    out = _has_rows(eqn.outputs[0])
    if x and new and at and out:
        pairs = zip(
            numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
        )
        fits = (0, 0) in pairs and 0 not in numbers.update_window_dims
        return Rule(_plain(eqn)) if fits else None
    if x and new and out:
        taken = (*numbers.inserted_window_dims, *numbers.operand_batching_dims,
                 *numbers.scatter_dims_to_operand_dims)  # fmt: skip
        fits = 0 not in taken and numbers.update_window_dims[0] == 0
        return Rule(_plain(eqn)) if fits else None
    if eqn.name == "scatter-add" and at and new and not x and not out:
        return _lookup_gradient(eqn)
    return None


def _lookup_gradient(eqn: Equation) -> Rule:
    """Rows added into a table: the gradient of looking them up there."""

    def run(block: Block, args: Sequence[Any]) -> list[Any]:
        table, at, new = args
        nothing = jnp.zeros_like(table)
        return bind(eqn.primitive, dict(eqn.params), [nothing, at, _masked(block, new, 0)])

    return Rule(run, jnp.add, finish=lambda total, args: args[0] + total)


_MAKERS: dict[str, Callable[[Equation], Any]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
    "iota": _iota,
    "top_k": _top_k,
    "dot_general": _dot_general,
    "rows_matmul": _rows_matmul,
    "tall_matmul": _tall_matmul,
    "gather": _gather,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "scatter_add": _scatter,
}
