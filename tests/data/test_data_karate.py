import numpy as np
import pytest

from gnnjit.data import karate
from gnnjit.errors import DataError


def _undirected(data):
    src, dst = np.asarray(data.graph.src), np.asarray(data.graph.dst)
    return {(int(u), int(v)) for u, v in zip(src, dst, strict=True) if u < v}


def test_counts():
    data = karate()
    assert (data.num_nodes, data.num_edges, data.num_classes) == (34, 156, 4)
    assert len(_undirected(data)) == 78
    degree = np.bincount(np.asarray(data.graph.dst), minlength=34)
    # The degree sequence of the published graph.
    assert degree.tolist() == [
        16, 9, 10, 6, 3, 4, 4, 4, 5, 2, 3, 1, 2, 5, 2, 2, 2,
        2, 2, 3, 2, 2, 2, 5, 3, 3, 2, 4, 3, 4, 4, 6, 12, 17,
    ]  # fmt: skip
    np.testing.assert_array_equal(data.x, np.eye(34, dtype=np.float32), strict=True)


def _modularity(data):
    inside = sum(data.y[u] == data.y[v] for u, v in _undirected(data)) / 78
    degree = np.bincount(np.asarray(data.graph.dst), minlength=34)
    share = np.bincount(data.y, weights=degree) / 156
    return inside - (share**2).sum()


def test_communities_have_the_known_modularity():
    """Close to this graph's optimum, 0.4198 (Brandes et al. 2008)."""
    data = karate()
    assert np.bincount(data.y).tolist() == [13, 12, 4, 5]
    assert _modularity(data) == pytest.approx(0.4156, abs=5e-5)
    assert np.flatnonzero(data.train_mask).tolist() == [0, 4, 8, 24]
    assert (data.train_mask.sum(), data.val_mask.sum(), data.test_mask.sum()) == (4, 0, 30)


def test_factions():
    data = karate("faction")
    assert np.bincount(data.y).tolist() == [17, 17]
    assert _modularity(data) == pytest.approx(0.3582, abs=5e-5)
    assert np.flatnonzero(data.train_mask).tolist() == [0, 33]
    assert (data.y[0], data.y[33], data.num_classes) == (0, 1, 2)


def test_unknown_labels():
    with pytest.raises(DataError) as error:
        karate("clubs")
    assert str(error.value) == "karate: got labels='clubs', expected 'community' or 'faction'."
