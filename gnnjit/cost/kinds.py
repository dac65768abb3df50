"""The kinds of operations and their features: the vocabulary of `Work` and `CostModel`.

A feature is a number known before the run, and the time is linear in it (ROC, section 4.1,
equation 6). Everything else in this package is generic over `KINDS`.
"""

from __future__ import annotations

import hashlib
import json

CACHES = (1, 4, 16, 64)
"""Limits in MiB: random reads stay within them, or not. The caches of any machine lie between."""

KINDS: dict[str, tuple[str, ...]] = {
    "call": ("calls",),
    "matmul": ("count", "flops", "passes", "rows", "bytes", "far"),
    "heads": ("count", "flops", "bytes"),
    "tall": ("count", "flops", "entries", "bytes", "far"),
    "elementwise": ("count", "parallel", "bytes", "repeats", "transcendentals"),
    "reduce": ("count", "bytes", "single"),
    "total": ("count", "bytes", "single"),
    "traversal": (
        "count", "edges", "rows", "scalars", "vectors", "wide", "products", "outer", "functions",
        "reads", "row_bytes", "lines", *(f"lines_{c}m" for c in CACHES),
    ),
    "tiles": ("flops", "passes", "functions"),
    "chunks": ("count", "bytes", "scattered", "functions"),
    "memory": ("fresh",),
}  # fmt: skip
"""Operation kind -> the names of its features.

call: compiled programs started.
matmul: products of vertices, or of chunks of edges, with a shared matrix: multiplications and
    additions, passes over the left operand and over its rows for groups of columns, bytes read and
    written, those of them that no cache holds.
heads: products with a matrix for each head, beside the products of few heads: slices read and
    results put together.
tall: products of two tall arrays, entries of the result.
elementwise, reduce, total: loops, sums within elements and over them, bytes read and written;
    parallel: loops that are divided among threads.
traversal: fused kernels, edges, output rows, values of one number, vector instructions and
    functions on edges, cache lines read at random, and how many of them miss caches.
tiles: what a traversal does in tiles of edges, beside what counts as `traversal`:
    multiplications and additions of products, passes over the left operand for groups of columns,
    and functions.
chunks: passes over chunks of edges, beside their products.
memory: bytes asked of the system anew.
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
