"""Graphs without features and labels, whose links are predicted: SNAP's, and meshes."""

from __future__ import annotations

import os
from typing import NamedTuple

from gnnjit.data.files import Fetch, fetch_url, locate
from gnnjit.data.link_splits import split_links
from gnnjit.data.links import LinkDataset
from gnnjit.data.reading.read import read_edges
from gnnjit.data.upstream import NETWORKS
from gnnjit.errors import DataError


class _Network(NamedTuple):
    folder: str
    source: str


_SNAP = "Leskovec & Krevl, snap.stanford.edu/data"
_WALSHAW = "Walshaw's graph partitioning archive"
_KNOWN = {
    "epinions": _Network("snap-soc-Epinions1", f"Richardson et al. 2003; {_SNAP}"),
    "notredame": _Network("snap-web-NotreDame", f"Albert et al. 1999; {_SNAP}"),
    "ego-twitter": _Network("snap-ego-twitter", f"McAuley & Leskovec 2012; {_SNAP}"),
    "airfoil1": _Network("meshes", _WALSHAW),
    "4elt": _Network("meshes", _WALSHAW),
    "wing": _Network("meshes", _WALSHAW),
}


def network(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    val_links: int | None = None,
    test_links: int | None = None,
    seed: int = 0,
    fetch: Fetch = fetch_url,
) -> LinkDataset:
    """A graph of which nothing is known but its edges: its links are predicted.

    The sources have no split: `split_links` draws one. `read_edges` reads the graph alone.

    Args:
      name: "epinions", "notredame" or "ego-twitter" (SNAP); "airfoil1", "4elt" or "wing" (meshes of
        finite elements).
      data_dir: holds the file, or a folder with it; see `gnnjit.data.files`.
      val_links, test_links: links in each; by default a tenth, and at most 1,000.
      seed: of the split.
      fetch: downloads a URL; for tests.

    Returns:
      Epinions: 75,879 vertices, 508,837 directed edges; Notre Dame: 325,729, 1,497,134; Twitter:
      81,306, 1,342,310 undirected ones; airfoil1: 4,253, 12,289; 4elt: 15,606, 45,878; wing:
      62,032, 121,544.

    Raises:
      DataError: if the name is unknown, or the file is missing or damaged.
    """
    if name not in _KNOWN:
        raise DataError(f"network: got {name!r}, expected one of {', '.join(_KNOWN)}.")
    known, file = _KNOWN[name], NETWORKS[name]
    path = locate(name, known.folder, (file,), data_dir, fetch)[file.name]
    found = split_links(read_edges(path), val=val_links, test=test_links, seed=seed)
    return LinkDataset(
        name, found.num_nodes, found.train, found.val, found.test, source=known.source
    )
