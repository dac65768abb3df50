"""Zachary's karate club, small enough to live in the code."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gnnjit.data.edges import symmetric_edges
from gnnjit.data.splits import masks_from_indices
from gnnjit.data.types import Dataset
from gnnjit.errors import DataError
from gnnjit.graph import Graph

# Neighbours of larger id, vertex by vertex, counted from 0: 78 undirected edges.
_LARGER_NEIGHBOURS = {
    0: (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31),
    1: (2, 3, 7, 13, 17, 19, 21, 30),
    2: (3, 7, 8, 9, 13, 27, 28, 32),
    3: (7, 12, 13),
    4: (6, 10),
    5: (6, 10, 16),
    6: (16,),
    8: (30, 32, 33),
    9: (33,),
    13: (33,),
    14: (32, 33),
    15: (32, 33),
    18: (32, 33),
    19: (33,),
    20: (32, 33),
    22: (32, 33),
    23: (25, 27, 29, 32, 33),
    24: (25, 27, 31),
    25: (31,),
    26: (29, 33),
    27: (33,),
    28: (31, 33),
    29: (32, 33),
    30: (32, 33),
    31: (32, 33),
    32: (33,),
}
# Who followed the instructor (vertex 0) when the club split; the others went with vertex 33.
_INSTRUCTOR = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21)
# Communities found by modularity (0.4156), as PyG numbers those of Kipf & Welling's example.
_COMMUNITY = "1111333101311100310101002200200200"


def karate(labels: Literal["community", "faction"] = "community") -> Dataset:
    """Zachary's karate club: 34 members, 78 friendships (156 directed edges).

    Zachary, "An information flow model for conflict and fission in small groups" (1977). The
    features are the 34 unit vectors. There is no validation set; what is not train is test.

    Args:
      labels: "community": the four modularity communities of Kipf & Welling (2017), appendix A,
        the first vertex of each for training. "faction": which of two clubs a member joined
        after the split, with the two leaders (vertices 0 and 33) for training.
    """
    if labels not in ("community", "faction"):
        raise DataError(f"karate: got labels={labels!r}, expected 'community' or 'faction'.")
    n = 34
    a = np.repeat(list(_LARGER_NEIGHBOURS), [len(b) for b in _LARGER_NEIGHBOURS.values()])
    b = np.concatenate(list(_LARGER_NEIGHBOURS.values()))
    if labels == "community":
        y = np.array([int(c) for c in _COMMUNITY], np.int32)
        train = np.unique(y, return_index=True)[1]
    else:
        y = np.ones(n, np.int32)
        y[list(_INSTRUCTOR)] = 0
        train = np.array([0, n - 1])
    none = np.array([], np.int64)
    masks = masks_from_indices(n, train, none, np.setdiff1d(np.arange(n), train))
    return Dataset(
        name="karate",
        graph=Graph.from_edges(*symmetric_edges(a, b, n), n),
        x=np.eye(n, dtype=np.float32),
        y=y,
        train_mask=masks.train,
        val_mask=masks.val,
        test_mask=masks.test,
        num_classes=int(y.max()) + 1,
        source="Zachary 1977, J. Anthropological Research 33(4)",
    )
