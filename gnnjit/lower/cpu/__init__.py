"""Aggregations on the CPU as generated machine code (LLVM), called through XLA's FFI."""

from gnnjit.lower.cpu.kernel import (
    available,
    code,
    left_to_pool,
    product,
    run,
    sort,
    why_no_product,
    why_no_sort,
    why_no_start,
    why_not,
)

__all__ = [
    "available",
    "code",
    "left_to_pool",
    "product",
    "run",
    "sort",
    "why_no_product",
    "why_no_sort",
    "why_no_start",
    "why_not",
]
