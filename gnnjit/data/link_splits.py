"""Links in a split: by chance or by time, without leaks, with links that are not there."""

from __future__ import annotations

import numpy as np

from gnnjit.data.edges import first_of_run
from gnnjit.data.links import LinkDataset
from gnnjit.data.reading.edge_list import EdgeList
from gnnjit.errors import DataError
from gnnjit.shapes import HostArray

SHARE = 0.1
"""Of the pairs, at most, that a split takes where its size is not told."""
MOST = 1000
"""Links that a split takes, at most, where its size is not told."""
_TRIES = 100


def split_links(
    edges: EdgeList,
    *,
    val: int | float | None = None,
    test: int | float | None = None,
    by_time: bool = False,
    seed: int = 0,
) -> LinkDataset:
    """The edges of a graph as links to predict.

    No link of validation or test is known in training: both directions of a pair, and all its
    duplicates, are one link and in one part. Self loops are left out.

    Args:
      edges: what `read_edges` gives.
      val, test: how many links, or what share of them; by default a tenth, and at most 1,000.
      by_time: take the latest links for the test, those before them for validation (by the first
        time of each pair), instead of any by chance.
      seed: of the draw.

    Returns:
      A dataset with one relation, each part in the order of the edges, or of their times. Where
      sources and destinations are numbered apart (`num_sources`), they are users and items.

    Raises:
      DataError: the edges have no time, or too few links are left to train on.
    """
    if by_time and edges.time is None:
        raise DataError(f"{edges.name}: by_time=True, and the edges have no time: pass time=.")
    if seed < 0:
        raise DataError(f"{edges.name}: split_links got seed={seed}, expected at least 0.")
    first = _first_of_pairs(edges, by_time)
    sizes = [_size(edges.name, what, n, len(first)) for what, n in (("val", val), ("test", test))]
    if sum(sizes) >= len(first):
        raise DataError(
            f"{edges.name}: val and test take {sum(sizes)} of {len(first)} links, expected some to "
            "train on. Take fewer."
        )
    order = np.arange(len(first))
    if not by_time:
        order = np.random.Generator(np.random.PCG64(seed)).permutation(len(first))
    known = len(first) - sum(sizes)
    parts = np.split(order, [known, known + sizes[0]])

    def links(part: HostArray) -> HostArray:
        chosen = first[np.sort(part)]
        src, dst = np.asarray(edges.src)[chosen], np.asarray(edges.dst)[chosen]
        return np.stack([src, np.zeros_like(src), dst], axis=1).astype(np.int32)

    train_links, val_links, test_links = map(links, parts)
    return LinkDataset(
        edges.name,
        edges.num_nodes,
        train_links,
        val_links,
        test_links,
        num_users=edges.num_sources,
    )


def _first_of_pairs(edges: EdgeList, by_time: bool) -> HostArray:
    """The number of the first edge of each pair {a, b}, in the order of edges or of times."""
    src, dst = (np.asarray(end, np.int64) for end in (edges.src, edges.dst))
    order = np.arange(len(src))
    if by_time:
        order = np.argsort(np.asarray(edges.time), kind="stable")
    order = order[src[order] != dst[order]]
    low, high = np.minimum(src, dst)[order], np.maximum(src, dst)[order]
    _, first = np.unique(low * edges.num_nodes + high, return_index=True)
    return order[np.sort(first)]


def _size(name: str, what: str, given: int | float | None, links: int) -> int:
    if given is None:
        return min(MOST, int(SHARE * links))
    share = isinstance(given, float) and 0 <= given < 1
    if not share and (given < 0 or given != int(given)):
        raise DataError(
            f"{name}: {what} is {given}, expected how many links, or a share of them below 1."
        )
    return int(given * links) if share else int(given)


def negative_links(
    links: LinkDataset, part: str = "test", *, count: int = 1, seed: int = 0
) -> HostArray:
    """Links that are in no part, for the links of one: int32 [L, count, 3].

    Each has the source and relation of its link, and another destination, which is drawn by chance
    among those that are not linked to the source in any part, in either direction.

    Raises:
      DataError: the part is unknown, or a source is linked to nearly all vertices.
    """
    if part not in ("train", "val", "test"):
        raise DataError(f"{links.name}: part is {part!r}, expected train, val or test.")
    n, first = links.num_nodes, links.num_users or 0
    pairs = np.concatenate([links.train, links.val, links.test]).astype(np.int64)
    known = np.concatenate([pairs[:, 0] * n + pairs[:, 2], pairs[:, 2] * n + pairs[:, 0]])
    known.sort()
    known = known[first_of_run(known)]
    rng = np.random.Generator(np.random.PCG64(seed))
    found = np.repeat(getattr(links, part)[:, None], count, axis=1)
    flat = found.reshape(-1, 3)
    left = np.arange(len(flat))
    for _ in range(_TRIES):
        if not len(left):
            return found
        flat[left, 2] = rng.integers(first, n, len(left))
        key = flat[left, 0].astype(np.int64) * n + flat[left, 2]
        at = np.minimum(np.searchsorted(known, key), len(known) - 1)
        left = left[(known[at] == key) | (flat[left, 0] == flat[left, 2])]
    raise DataError(
        f"{links.name}: found no vertex that {flat[left[0], 0]} is not linked to in {_TRIES} "
        "draws, expected a graph of fewer links."
    )
