"""Products with tall arrays by generated CPU kernels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from gnnjit.lower.cpu.kernel import HAVE_LLVM, default_config, made, unavailable
from gnnjit.lower.row_results import RowProduct, RowResult, TallResult

if HAVE_LLVM:
    from gnnjit.lower.cpu import compile as compiler
    from gnnjit.lower.cpu import row_products, tall_matmul
    from gnnjit.lower.cpu.spec import CodeConfig

MAX_PRODUCT = 1 << 17
"""Entries of a product of two tall arrays at most: each task has a copy of them. (512 x 256 takes
0.8 of XLA's time, 512 x 512 as long.)"""

MANY = 1 << 12
"""Rows from which on a kernel turns matrices itself. It takes as long as XLA there, up to 6 % of
the time of the product, and XLA takes 6 ms to compile a loop for it."""


def why_no_product(left: int, right: int, dtype: Any) -> list[str]:
    """Reasons why `product` cannot be used, or should not; none means that it can."""
    if found := why_no_row_sums(dtype):
        return found
    if not 0 < left * right <= MAX_PRODUCT:
        return [f"{left} x {right} entries: XLA's own product is as good"]
    return []


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a.T @ b`, for `a: [N, F]` and `b: [N, G]` with few features."""
    (left, right), dtype = (a.shape[1], b.shape[1]), np.dtype(a.dtype)
    if right < left:  # rows of vectors, the fuller the better
        return product(b, a).T
    name = _product_target(left, right, dtype, default_config())
    (out,) = jax.ffi.ffi_call(name, [jax.ShapeDtypeStruct((left, right), dtype)])(a, b)
    return out


def why_no_row_sums(dtype: Any) -> list[str]:
    """Reasons why `row_sums` cannot be used; none means that it can."""
    if unavailable():
        return unavailable()
    if dtype not in (np.float32, np.float64):
        return [f"no CPU kernel code for a product of {dtype}"]
    return []


def row_sums(
    operands: Sequence[jax.Array],
    num_rows: int,
    results: Sequence[RowResult],
    talls: Sequence[TallResult] = (),
) -> list[jax.Array]:
    """The results, `[num_rows, columns]` each, and after them the tall ones, of one pass over rows.
    Their parts are among the operands, of which the first has the dtype of all results."""
    dtype = np.dtype(operands[0].dtype)
    if num_rows < MANY:
        operands, results = _turned(operands, results)
    sums = row_products.RowSums(len(operands), dtype, tuple(results), tuple(talls))
    shapes = [(num_rows, r.columns) for r in results] + [t.shape for t in talls]
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return list(jax.ffi.ffi_call(_rows_target(sums, default_config()), structs)(*operands))


def _turned(
    operands: Sequence[jax.Array], results: Sequence[RowResult]
) -> tuple[list[jax.Array], list[RowResult]]:
    """The same with matrices as products read them."""
    operands, places = list(operands), {}
    for k in {p.w: None for r in results for p in r.products if p.turned}:
        places[k] = len(operands)
        operands.append(operands[k].T)

    def of(product: RowProduct) -> RowProduct:
        if not product.turned:
            return product
        return dataclasses.replace(product, w=places[product.w], turned=False)

    new = [dataclasses.replace(r, products=tuple(map(of, r.products))) for r in results]
    return operands, new


@functools.cache
def _rows_target(sums: row_products.RowSums, config: CodeConfig) -> str:
    def emit() -> str:
        kind = functools.partial(row_products.RowProducts, sums)
        return compiler.emit(sums.spec(config), kind=kind)

    return made("rows", [dataclasses.astuple(sums), dataclasses.astuple(config)], emit)


@functools.cache
def _product_target(left: int, right: int, dtype: np.dtype, config: CodeConfig) -> str:
    def emit() -> str:
        spec = tall_matmul.spec_of(left, right, dtype, config)
        return compiler.emit(spec, kind=tall_matmul.TallProduct)

    parts = [left, right, dtype.name, dataclasses.astuple(config)]
    return made("product", parts, emit)
