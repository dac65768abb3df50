"""HDGs in parts from a store: the same numbers, whatever the parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.errors import GraphError
from gnnjit.neighborhood import HDG, metapaths, random_walks, select, stream
from gnnjit.neighborhood.some_roots import Room, cut, neighbors_of, of_roots, padded
from gnnjit.store import DiskStore
from neighborhood.naive import instances, movies

total = gnnjit.layer(lambda v, e: gnnjit.sum(e.src) + v)
weighted = gnnjit.layer(lambda v, e: gnnjit.sum(e.data * e.src) + v)


def walks() -> HDG:
    graph = gnnjit.Graph.from_edges(*np.random.default_rng(0).integers(0, 9, (2, 30)), num_nodes=11)
    return random_walks(graph, top_k=3).pad(40)


def ragged() -> HDG:
    """Instances of one to three vertices, of two types; vertices 1 to 4 have none."""
    graph = gnnjit.Graph.from_edges([0], [1], num_nodes=7)
    found = np.array([0, 0, 5, 6, 6]), np.array([[0, 1, 2], [3, -1, -1], [4, 0, -1], [1, 1, -1],
                                                 [2, 3, 4]]), np.array([0, 1, 1, 0, 0])  # fmt: skip
    return select(graph, lambda *_: found, types=["one", "two"])


def test_parts_of_walks_lie_on_disk(tmp_path: Path) -> None:
    hdg, x = walks(), jnp.arange(11.0)
    with DiskStore.create(tmp_path) as store:
        parts = stream(hdg, 4, store=store)
        found = jax.jit(lambda h, x: h(x, weighted))(parts, x)
        np.testing.assert_allclose(found, hdg(x, weighted), rtol=1e-6)
    assert repr(parts).startswith("StreamedHDG(11 roots in 4 parts of at most ")


@pytest.mark.parametrize("parts", [1, 3])
def test_instances_of_any_length(parts: int) -> None:
    hdg, x = ragged(), jnp.arange(7.0)
    found = stream(hdg, parts)(x, total, total, total, jnp.add)
    np.testing.assert_array_equal(found, hdg(x, total, total, total, jnp.add))


def test_padding_is_of_the_last_root_and_no_longer_than_the_rest() -> None:
    hdg = ragged()
    found = neighbors_of(hdg)
    some = [cut(found, roots) for roots in (np.arange(2), np.arange(2, 7))]
    room = Room.for_all(some)
    for part, roots in zip(some, (np.arange(2), np.arange(2, 7)), strict=True):
        small = of_roots(hdg, padded(part, room), roots)
        assert small.num_roots == room.roots
        assert np.asarray(small.root)[: len(roots)].tolist() == roots.tolist()
        assert np.asarray(small.levels[0].in_degree).max() <= 3
        theirs, ours = instances(hdg), instances(small)
        for i, root in enumerate(roots.tolist()):
            for t in range(2):
                assert ours[i, t] == theirs[root, t]
        for i in range(len(roots), room.roots - 1):
            assert not ours[i, 0] + ours[i, 1]


def test_roots_in_any_order() -> None:
    hdg = metapaths(movies(), [["m", "d", "m"], ["m", "a", "m"]])
    roots = np.array([5, 1])
    small = of_roots(hdg, cut(neighbors_of(hdg), roots), roots)
    x: Any = {t: jnp.arange(3.0 * n).reshape(n, 3) for t, n in movies().num_nodes.items()}
    whole = hdg(x, total, total, total, jnp.add)
    np.testing.assert_array_equal(small(x, total, total, total, jnp.add), whole[roots])


def test_errors() -> None:
    hdg = walks()
    with pytest.raises(GraphError, match=r"stream\(\) got Graph.*, expected a concrete HDG"):
        stream(hdg.levels[0], 2)  # type: ignore[arg-type]
    for parts in (0, 12, 1.5, True):
        with pytest.raises(GraphError, match=f"parts is {parts}, expected a whole number from 1 "):
            stream(hdg, parts)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="of 1 levels was called with 3 stages, expected 1, or 2"):
        stream(hdg, 2)(jnp.ones(11), total, total, total)
    with pytest.raises(GraphError, match="x has 3 rows, but the graph has 11 vertices"):
        stream(hdg, 2)(jnp.ones(3), weighted)
