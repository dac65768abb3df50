"""The kinds of operations and their features: the vocabulary of `Work` and `CostModel`.

A feature is a number known before the run, and the time is linear in it (ROC, section 4.1,
equation 6). Everything else in this package is generic over `KINDS`.
"""

from __future__ import annotations

import hashlib
import json

CACHES = (1, 4, 16, 64)
"""MiB of memory that random reads stay within, or not: whichever caches there are lie between."""

KINDS: dict[str, tuple[str, ...]] = {
    "call": ("calls",),
    "matmul": ("count", "flops", "padded", "bytes"),
    "batched_matmul": ("count", "flops", "padded", "bytes"),
    "tall": ("count", "flops", "bytes"),
    "elementwise": ("count", "bytes", "repeats", "transcendentals"),
    "reduce": ("count", "bytes", "single"),
    "total": ("count", "bytes", "single"),
    "traversal": (
        "count", "edges", "rows", "vectors", "wide", "products", "outer", "functions", "reads",
        "row_bytes", "lines", *(f"lines_{c}m" for c in CACHES),
    ),
    "chunks": ("count", "edges", "flops", "bytes", "scattered", "functions"),
    "memory": ("fresh",),
}  # fmt: skip
"""Operation kind -> the names of its features.

launch: compiled programs started. matmul: products, their multiplications and additions, bytes
read and written. tall: the same of products of two tall arrays. elementwise: loops, bytes read and
written. traversal: fused kernels, output rows, edges, scalar operations and transcendental
functions on edges, bytes gathered that are in a cache or are not, bytes written. segment: segment
reductions, edges, bytes read and written. memory: bytes of buffers allocated anew.
"""

NAMES: tuple[tuple[str, str], ...] = tuple((k, f) for k, names in KINDS.items() for f in names)
"""(kind, feature), in the order of the flat vectors."""

INDEX: dict[tuple[str, str], int] = {name: i for i, name in enumerate(NAMES)}


def _spans() -> dict[str, slice]:
    spans, start = {}, 0
    for kind, names in KINDS.items():
        spans[kind] = slice(start, start + len(names))
        start += len(names)
    return spans


SPAN: dict[str, slice] = _spans()
"""Kind -> its part of the flat vectors."""

SCHEMA: str = hashlib.sha256(json.dumps(NAMES).encode()).hexdigest()[:16]
"""Changes with the kinds, their features and the order of both."""
