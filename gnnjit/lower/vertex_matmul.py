"""A matrix applied to every element of a space, with a gradient that is quick on a CPU.

    rows_p:  x [N, F], w [F, G]  ->  x @ w; `turned`: w is [G, F], and the result x @ w.T
    tall_p:  a [N, F], b [N, G]  ->  a.T @ b, the gradient of w

An element may have several rows: x [N, 3, F] is as [3 N, F], and a [N, 3, F] with b [N, 3, G] as
[3 N, F] with [3 N, G]. Each is bilinear and its transposes are the other one or itself, so
derivatives of every order stay among the two. JAX's `dot_general` has the same derivatives, but in
it the tall product could not be told apart and lowered to a kernel. Where the N elements are
sharded over an axis of a mesh, kernels run on the elements of each device, and tall products are
summed over the axis. `precision` is as in `dot_general`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from gnnjit import _compat
from gnnjit._compat import ad, batching
from gnnjit.ir.program import Equation, Lax
from gnnjit.ir.space import Space
from gnnjit.lower import cpu
from gnnjit.lower.primitives import lowers_to, runs_alone
from gnnjit.lower.row_results import RowProduct, RowResult
from gnnjit.passes.extremes_in_full_precision import FULL

rows_p = _compat.Primitive("rows_matmul")
tall_p = _compat.Primitive("tall_matmul")

MOST_HEADS = 16

LEAST = 1 << 22
"""Multiplications below which a kernel of its own is not worth its compilation, though it takes 0.5
to 0.9 of the time of XLA's product."""


Place = tuple[Mesh, str, str | None] | None
"""The mesh, the axis over which elements are sharded, and the one over which features are."""


def apply(eqn: Equation, args: Sequence[Any], place: Place = None) -> jax.Array | None:
    """The equation over a whole space, if it multiplies each element with a shared array."""
    if not isinstance(eqn.op, Lax) or eqn.op.name != "dot_general":
        return None
    shared = [a.space is Space.SHARED for a in eqn.inputs]
    if shared not in ([False, True], [True, False]) or not _is_plain(eqn):
        return None
    at, how = shared.index(True), {"place": place, "precision": eqn.op["precision"]}
    contracted, batched = eqn.op["dimension_numbers"]
    x, w = args[1 - at], args[at]
    if batched[0]:
        return _per_head(eqn, x, w, at, how)
    axes, inner = [1 + k for k in contracted[1 - at]], list(contracted[at])
    out = _tensordot(x, w, axes, inner, how)
    rows = x.ndim - 1 - len(axes)
    return out if at == 1 else jnp.moveaxis(out, range(1, 1 + rows), range(-rows, 0))


def _tensordot(
    x: Any, w: Any, axes: Sequence[int], inner: Sequence[int], how: dict[str, Any]
) -> jax.Array:
    """`jnp.tensordot(x, w, (axes, inner))` where the first axis of `x` is that of the elements."""
    rows = [k for k in range(x.ndim) if k not in axes]
    columns = [k for k in range(w.ndim) if k not in inner]
    turned = bool(columns) and [*columns, *inner] == list(range(w.ndim))
    x, w = x.transpose(*rows, *axes), w if turned else w.transpose(*inner, *columns)
    lead, summed = x.shape[: len(rows)], x.shape[len(rows) :]
    last = w.shape[: len(columns)] if turned else w.shape[len(inner) :]
    size, width = math.prod(summed), math.prod(last)
    matrix = w.reshape((width, size) if turned else (size, width))
    out = rows_p.bind(x.reshape(*lead, size), matrix, turned=turned, **how)
    return out.reshape(*lead, *last)


def _per_head(eqn: Equation, x: Any, matrix: Any, at: int, how: dict[str, Any]) -> jax.Array | None:
    """`x [N, H, F]` with a matrix `[F, C]` for each head, `[N, H, C]`: one product a head. XLA's
    batched product over the middle axis is several times slower on a CPU."""
    contracted, batched = eqn.op["dimension_numbers"]  # type: ignore[index]
    (head,), (axis,) = batched[at], contracted[at]
    plain = (batched[1 - at], contracted[1 - at]) == ((0,), (1,))
    if not plain or matrix.ndim != 3 or x.ndim != 3 or x.shape[1] > MOST_HEADS:
        return None
    w = jnp.transpose(matrix, (head, axis, 3 - head - axis))
    heads = [rows_p.bind(x[:, h], w[h], turned=False, **how) for h in range(x.shape[1])]
    return jnp.stack(heads, axis=1)


def _is_plain(eqn: Equation) -> bool:
    """Whether a product is of two arrays of one dtype, in the default or in full precision."""
    assert isinstance(eqn.op, Lax)
    params, dtype = dict(eqn.op.params), eqn.outputs[0].dtype
    usual = params.get("precision") in (None, FULL) and params.get("out_sharding") is None
    contracted, batched = params["dimension_numbers"]
    sums = len(contracted[0]) == 1 if batched[0] else len(contracted[0]) > 0
    real = dtype in (jnp.float32, jnp.float64)
    alike = all(a.dtype == dtype for a in eqn.inputs)
    return usual and sums and len(batched[0]) <= 1 and real and alike


def _dot_rows(x: Any, w: Any, *, turned: bool, precision: Any) -> jax.Array:
    return lax.dot_general(x, w, (((x.ndim - 1,), (int(turned),)), ((), ())), precision)


def _dot_tall(a: Any, b: Any, *, precision: Any) -> jax.Array:
    summed = range(a.ndim - 1)
    return lax.dot_general(a, b, ((summed, summed), ((), ())), precision)


def _flat(x: Any) -> Any:
    """The rows of all elements, `[rows, F]`."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _tall(a: Any, b: Any, *, place: Place, precision: Any, platform: str) -> jax.Array:
    if place is None:
        off = platform != "cpu" or cpu.why_no_product(a.shape[-1], b.shape[-1], a.dtype)
        return _dot_tall(a, b, precision=precision) if off else cpu.product(_flat(a), _flat(b))
    mesh, axis, features = place
    if features is not None:  # XLA knows how its own product is cut both ways
        return _dot_tall(a, b, precision=precision)

    def on_each(a: Any, b: Any) -> jax.Array:
        mine = _tall(a, b, place=None, precision=precision, platform=platform)
        return lax.psum(mine, axis)

    rows = PartitionSpec(axis)
    specs = {"in_specs": (rows, rows), "out_specs": PartitionSpec()}
    return jax.shard_map(on_each, mesh=mesh, check_vma=False, **specs)(a, b)


def _rows(
    x: Any, w: Any, *, turned: bool, place: Place, precision: Any, platform: str
) -> jax.Array:
    columns = w.shape[0 if turned else 1]
    large = x.size * columns >= LEAST and place is None
    if large and platform == "cpu" and not cpu.why_no_row_sums(x.dtype):
        every = _flat(x)
        result = RowResult(columns, (RowProduct(0, 1, x.shape[-1], turned),))
        return cpu.row_sums([every, w], len(every), [result])[0].reshape(*x.shape[:-1], columns)
    return _dot_rows(x, w, turned=turned, precision=precision)


@rows_p.def_abstract_eval
def _rows_shape(x: Any, w: Any, *, turned: bool, **how: Any) -> Any:
    return _compat.result_aval((x, w), (*x.shape[:-1], w.shape[0 if turned else 1]), x.dtype)


@tall_p.def_abstract_eval
def _tall_shape(a: Any, b: Any, **how: Any) -> Any:
    return _compat.result_aval((a, b), (a.shape[-1], b.shape[-1]), a.dtype)


ad.defbilinear(
    rows_p,
    lambda ct, x, w, *, turned, **how: rows_p.bind(ct, w, turned=not turned, **how),
    lambda ct, x, w, *, turned, **how: tall_p.bind(*((ct, x) if turned else (x, ct)), **how),
)
ad.defbilinear(
    tall_p,
    lambda ct, a, b, **how: rows_p.bind(b, ct, turned=True, **how),
    lambda ct, a, b, **how: rows_p.bind(a, ct, turned=False, **how),
)


def _register(primitive: Any, dot: Callable[..., jax.Array]) -> None:
    def batch(
        args: Sequence[Any], dims: Sequence[Any], *, place: Place, **how: Any
    ) -> tuple[Any, int]:
        return jax.vmap(functools.partial(dot, **how), in_axes=tuple(dims))(*args), 0

    batching.primitive_batchers[primitive] = batch
    runs_alone(primitive)


_register(rows_p, _dot_rows)
_register(tall_p, _dot_tall)
lowers_to(rows_p, _rows, [None, "cpu"], multiple_results=False)
lowers_to(tall_p, _tall, [None, "cpu"], multiple_results=False)
