"""The Triton backend of Pallas: the few operations that the kernels are written in.

Everything that would change with another backend is here. Refs are whole arrays in the device's
memory; tiles are values whose sizes are powers of two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

try:
    from jax.experimental.pallas import triton as backend
except ImportError as error:  # deprecated in 0.11, to be removed
    backend: Any = None
    MISSING = [f"JAX {jax.__version__} has no Triton backend of Pallas: {error}"]
else:
    MISSING: list[str] = []
"""Why this module cannot be used with the installed JAX; empty if it can."""

NAME = "triton"


def load(ref: Any, index: tuple[Any, ...], mask: Any, other: Any = 0) -> jax.Array:
    """The elements of `ref` at the broadcast `index`, `other` where `mask` is False."""
    return backend.load(ref.at[index], mask=mask, other=other)


def store(ref: Any, index: tuple[Any, ...], mask: Any, value: jax.Array) -> None:
    """Write `value` where `mask` is True. No two programs may write the same element."""
    backend.store(ref.at[index], value, mask=mask)


def matmul(a: jax.Array, b: jax.Array, precision: Any = None) -> jax.Array:
    """`[M, K] @ [K, N]` in float32; every size is a power of two and at least 16."""
    return lax.dot(a, b, precision=precision, preferred_element_type=jnp.float32)


def outer(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a.T @ b` of `[lanes, F]` and `[lanes, G]`, in float32."""
    dims = (((0,), (0,)), ((), ()))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def maximum(a: jax.Array, b: jax.Array, *, number: bool = False) -> jax.Array:
    """The larger one, NaN where either is: the backend's own `max` drops NaN. number: `b` is never
    NaN, so one comparison is enough."""
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return jnp.maximum(a, b)
    return jnp.where(a < b, b, a) if number else jnp.where((a > b) | (a != a), a, b)


def minimum(a: jax.Array, b: jax.Array, *, number: bool = False) -> jax.Array:
    """The smaller one, NaN where either is; as `maximum`."""
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return jnp.minimum(a, b)
    return jnp.where(a > b, b, a) if number else jnp.where((a < b) | (a != a), a, b)


def reduce_max(x: jax.Array, axis: int) -> jax.Array:
    """Along one axis, NaN where there is one."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.max(x, axis)
    return _from_key(jnp.max(_to_key(x), axis), x.dtype)


def reduce_min(x: jax.Array, axis: int) -> jax.Array:
    """Along one axis, NaN where there is one."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.min(x, axis)
    return -reduce_max(-x, axis)


def _to_key(x: jax.Array) -> jax.Array:
    """Integers in the order of the floats `x`, NaN last: one reduction tells the largest and
    whether there is a NaN."""
    bits = lax.bitcast_convert_type(x, _integer(x.dtype))
    key = _flipped(bits)
    return jnp.where(x != x, jnp.full_like(key, jnp.iinfo(key.dtype).max), key)


def _from_key(key: jax.Array, dtype: Any) -> jax.Array:
    return lax.bitcast_convert_type(_flipped(key), dtype)


def _flipped(bits: jax.Array) -> jax.Array:
    """Negative floats fall as their bits rise; its own inverse."""
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


def _integer(dtype: Any) -> Any:
    return {2: jnp.int16, 4: jnp.int32, 8: jnp.int64}[jnp.dtype(dtype).itemsize]


def reshape(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`x.reshape(shape)`. New axes of size 1 keep the layout of `x` over the threads, where the
    backend's own reshape may move everything."""
    dims: list[int] = []
    for axis, size in enumerate(shape):
        if len(dims) < x.ndim and x.shape[len(dims)] == size:
            dims.append(axis)
        elif size != 1:
            return x.reshape(shape)
    return lax.broadcast_in_dim(x, shape, dims) if len(dims) == x.ndim else x.reshape(shape)


def program_number() -> jax.Array:
    """Which of the programs of the launch this is, `int32[]`."""
    return pl.program_id(0)


def launch(
    kernel: Callable[..., None],
    programs: int,
    operands: Sequence[jax.Array],
    outputs: Sequence[jax.ShapeDtypeStruct],
    *,
    name: str,
    warps: int,
    stages: int,
    interpret: bool,
    aliases: dict[int, int] | None = None,
) -> list[jax.Array]:
    """Run `kernel(*operand_refs, *output_refs)` once for each of `programs` numbers.

    aliases: number of an operand -> number of the output that takes its memory and contents.
    """
    call = pl.pallas_call(
        functools.partial(kernel),
        out_shape=list(outputs),
        grid=(programs,),
        compiler_params=backend.CompilerParams(num_warps=warps, num_stages=stages),
        input_output_aliases=aliases or {},
        interpret=interpret,
        name=name,
    )
    return list(call(*operands))
