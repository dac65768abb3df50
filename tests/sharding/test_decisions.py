"""What `gnnjit.shard` decides by itself, and rebalancing."""

from __future__ import annotations

import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.cost.link_model import Link, Links
from gnnjit.cost.partition_model import PartitionModel
from gnnjit.errors import GraphError, PlanError
from gnnjit.partition.partition import equal_vertices
from gnnjit.sharding import measure_links, rebalance

from .graphs import edges, mesh, random_edges


@pytest.fixture
def equal_links(monkeypatch: Any) -> None:
    equal = Links(*(Link(1e-5, 1e9),) * 4)
    monkeypatch.setattr(sys.modules["gnnjit.sharding.shard"], "links_of", lambda *_: equal)


@gnnjit.layer
def total(v: Any, e: Any) -> Any:
    return gnnjit.sum(jnp.tanh(e.src))


def far_apart(n: int = 60) -> Any:
    """A path whose vertices are numbered at random."""
    number = np.random.default_rng(0).permutation(n)
    return edges(number[:-1], number[1:], n)


@pytest.mark.usefixtures("equal_links")
def test_neighbours_are_put_together() -> None:
    graph = gnnjit.shard(far_apart().graph(), mesh(4))
    assert graph.report.order == "rcm"
    assert graph.report.cut <= 4
    x = np.arange(60.0, dtype=np.float32)[:, None]
    want = np.asarray(total(far_apart().graph(), x))
    np.testing.assert_allclose(graph.get(total(graph, graph.put(x))), want, rtol=1e-5)


@pytest.mark.usefixtures("equal_links")
def test_report() -> None:
    e = edges([0, 1, 2, 3, 0], [1, 2, 3, 0, 2], 4)
    graph = gnnjit.shard(e.graph(), mesh(2), partition="vertices", order="given", width=1)
    assert str(graph.report) == (
        "4 vertices, 5 edges on 2 shards: partition vertices, order given\n"
        "  vertices a shard  2 to 2, mean 2, imbalance 1.00\n"
        "  edges a shard     2 to 3, mean 2, imbalance 1.20\n"
        "  edges between shards  3 (60.0 %)\n"
        "  rows of other shards that a shard reads  2 on average\n"
        "\n"
        "  exchange of 1 features  rows moved    held by a device    predicted\n"
        "  all_gather                           2                8 B     0.010 ms\n"
        "  halo                                 2               16 B     0.020 ms <- taken\n"
        "  cover                                1               16 B     0.040 ms\n"
        "  ring                                 2               16 B     0.020 ms"
    )


def test_a_cover_is_looked_for_where_it_may_be_taken() -> None:
    graph = gnnjit.shard(far_apart().graph(), mesh(4), exchange="halo", partition="vertices")
    assert [way.name for way in graph.report.ways] == ["all_gather", "halo", "ring"]


def test_a_partition_has_its_own_order() -> None:
    e = far_apart()
    graph = gnnjit.shard(e.graph(), mesh(4), exchange="halo", partition=equal_vertices(60, 4))
    assert graph.report.order == "given"
    assert graph.partition().order.tolist() == list(range(60))


@pytest.mark.usefixtures("equal_links")
def test_reports_are_no_part_of_what_is_compiled() -> None:
    e = random_edges(13, 45)
    one = gnnjit.shard(e.graph(), mesh(2), exchange="halo", partition="vertices", width=64)
    two = gnnjit.shard(e.graph(), mesh(2), exchange="halo", partition="vertices", width=32)
    assert str(one.report) != str(two.report)
    assert jax.tree.structure(one) == jax.tree.structure(two)


@pytest.mark.usefixtures("equal_links")
def test_an_exchange_that_does_not_fit_its_budget() -> None:
    e = random_edges(13, 45)
    with pytest.raises(
        PlanError, match=r"exchange='all_gather' holds 3072 bytes .* memory_budget is 16"
    ):
        gnnjit.shard(e.graph(), mesh(4), exchange="all_gather", memory_budget=16)


def test_rates_are_measured_once_and_kept(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measure_links.links_of.cache_clear()
    first = measure_links.links_of(mesh(2), "shards")
    monkeypatch.setattr(measure_links, "_measured", None)
    measure_links.links_of.cache_clear()
    assert measure_links.links_of(mesh(2), "shards") == first
    (file,) = (tmp_path / "gnnjit" / "links").iterdir()
    file.write_text("[[1, 2], [3")
    measure_links.links_of.cache_clear()
    with pytest.raises(TypeError):  # it is measured again
        measure_links.links_of(mesh(2), "shards")


@pytest.mark.parametrize("exchange", ["halo", "cover", "ring", "all_gather"])
def test_rebalance(exchange: str, monkeypatch: Any) -> None:
    """Shards are said to take as long as they have edges: times would be those of the machine."""
    e = random_edges(40, 300)
    graph = e.graph()
    uneven = np.where(np.arange(40) < 28, 0, 1)
    sharded = gnnjit.shard(graph, mesh(2), partition=uneven, exchange=exchange)
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    rows = sharded.put(x)
    taken = []

    def seconds(fn: Any, *args: Any, repeats: int) -> Any:
        times = measured(fn, *args, repeats=repeats)
        assert (times > 0).all()
        taken.append(times)
        return np.asarray(sharded.report.edges, float)

    measured = rebalance.shard_seconds
    monkeypatch.setattr(rebalance, "shard_seconds", seconds)
    model = PartitionModel()
    found = gnnjit.rebalance(graph, sharded, total, sharded, rows, threshold=1.1, cost=model)
    assert len(taken) == 1
    assert model.points == 2
    counts = np.asarray(found.report.edges)
    assert counts.max() / counts.mean() < 1.3 < max(sharded.report.edges) / counts.mean()
    assert found.exchange_name == exchange
    moved = found.put(sharded.get(rows))
    np.testing.assert_allclose(found.get(total(found, moved)), total(graph, x), rtol=1e-5)
    same = gnnjit.rebalance(graph, sharded, total, sharded, rows, threshold=2.0)
    assert same is sharded


def test_arguments_without_a_sharded_graph() -> None:
    message = "the arguments hold 0 sharded graphs, expected one: pass what gnnjit.shard(...) gave"
    with pytest.raises(GraphError, match=re.escape(message)):
        rebalance.shard_seconds(total, random_edges(4, 4).graph(), np.ones((4, 1), np.float32))
