"""The lowering to generated machine code for CPUs (LLVM), called through XLA's FFI.

`kernel` answers for all (can it run, run it), a `Spec` says what one kernel computes, `traversal`
and `ffi_handler` emit its code, rules emit single primitives, `support` what all kernels call,
`compile` makes machine code of it.
`lower.choose` runs traversals; products (`vertex_matmul`) and sorts (`sort_edges`) come by name.
"""

from gnnjit.lower.cpu.kernel import (
    available,
    code,
    feature_width_of,
    left_to_pool,
    run,
    sort,
    why_no_network,
    why_no_sort,
    why_no_start,
    why_not,
)
from gnnjit.lower.cpu.products import product, row_sums, why_no_product, why_no_row_sums

__all__ = [
    "available",
    "code",
    "feature_width_of",
    "left_to_pool",
    "product",
    "row_sums",
    "run",
    "sort",
    "why_no_network",
    "why_no_product",
    "why_no_row_sums",
    "why_no_sort",
    "why_no_start",
    "why_not",
]
