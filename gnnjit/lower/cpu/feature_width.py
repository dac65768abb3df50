"""How many features a traversal takes at a time: the paper's Q_f, as measured.

Graph sampling-based GCN (Theorem 2) has max(p, 8 n f / S_cache) blocks for p processors, 8 bytes a
feature and a cache of S_cache bytes. Here p threads need not have a block each, as tasks of one
block are shared; and more blocks than needed cost time, since each reads the edges again, and a
block of one cache line has one sum that each addition waits for. So a block is as wide as fits, and
features are only cut where that has been faster.

Two cores of an AMD EPYC, 1 MiB each and 32 MiB for both, sums of neighbours in float32 (minima, in
turn): whole 1.37 ms, 1.06 in blocks of 64 for 3,000 vertices of degree 30 with 512 features; 2.77
and 2.64 (of 32) for 8,000 of degree 15; 11.0 and 7.1 for 16,000; 62 and 20 for 30,000 of degree 30;
199 and 96 for 100,000 of degree 20 with 256 features. No gain: 100,000 vertices with 64 features,
whose blocks would take half of the cache that held all of them; degree 5.
"""

from __future__ import annotations

from gnnjit.ir.space import Space
from gnnjit.lower.cpu.spec import PER_EDGE, Spec, is_wide
from gnnjit.system.cpu_caches import Caches

DEGREE = 8
"""Edges for each source from which the copy of a block pays."""

HIGH_DEGREE = 16
"""Edges for each source from which it pays where the last cache holds all features easily."""

NEAR_LINES, FAR_LINES = (4, 2), (2, 1)
"""Cache lines of a source in a block that stays next to a core, and in one that does not: widths
that are tried. One line means one sum, whose additions wait for each other."""

CHEAP = frozenset(
    "add sub mul neg max min abs sign select_n convert_element_type broadcast_in_dim reshape "
    "squeeze expand_dims copy stop_gradient eq ne lt le gt ge and or not".split()
)
"""What may be computed on an edge for every block again."""

MAX_AGAIN = 4
"""Vectors of it at most."""


def width(spec: Spec, sources: int, edges: int, caches: Caches | None) -> int:
    """Features of a block; 0: all at once. `spec`: without a width."""
    if caches is None or not sources or not can_block(spec):
        return 0
    assert spec.features is not None
    full, _ = spec.features
    of_one = sources * sum(v.size // full * v.dtype.itemsize for _, v in spec.copyable)
    for pays, wanted in ((_pays_near, NEAR_LINES), (_pays_far, FAR_LINES)):
        for features in (lines * spec.unit for lines in wanted):
            blocks = -(-full // features)
            # Where threads outnumber blocks, several copy the same one.
            degree = edges / sources * min(1.0, blocks / spec.config.threads)
            size = of_one * features
            if blocks > 1 and pays(of_one * full, size, degree, spec.config.threads, caches):
                return features
    return 0


def can_block(spec: Spec) -> bool:
    """Whether all edges can be traversed for some features at a time, and little twice."""
    if not spec.copyable or spec.starts or spec.features is None or None in spec.reductions:
        return False
    full, _ = spec.features
    if any(v.space is Space.EDGE and is_wide(v, full) for _, v in spec.inputs(PER_EDGE)):
        return False
    again = [e for e in spec.equations(PER_EDGE) if not is_wide(e.outputs[0], full)]
    vectors = sum(-(-o.size // spec.lanes) for e in again for o in e.outputs)
    return vectors <= MAX_AGAIN and all(e.op.name in CHEAP for e in again)


def _pays_near(whole: int, block: int, degree: float, threads: int, caches: Caches) -> bool:
    """Whether blocks pay that stay in a cache of each core; `whole`: bytes of all of them."""
    large = whole >= caches.last / 4
    if block > caches.near or not (large or whole >= 4 * caches.near):
        return False
    return degree >= (DEGREE if large else HIGH_DEGREE)


def _pays_far(whole: int, block: int, degree: float, threads: int, caches: Caches) -> bool:
    """Whether blocks pay that stay in the last cache, beside those of other threads."""
    together = block * min(threads, caches.sharing)
    fits = together <= min(caches.last, whole / 4)
    return fits and whole >= caches.last / 2 and degree >= DEGREE
