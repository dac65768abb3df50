"""What is counted, in numbers that can be checked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit.cost import work as work_module
from gnnjit.cost.kinds import KINDS
from gnnjit.cost.machine import machine_of
from gnnjit.cost.model import Work
from gnnjit.cost.operations import TABLE
from gnnjit.cost.sketch import GraphSizes, sketch
from gnnjit.cost.work import _column_groups, work_of
from gnnjit.passes.pipeline import Choices
from gnnjit.planner.programs import weighed

from .traversals import arrays_of, traced_call

N, E = 6, 20
WIDE = machine_of("cpu").vector
"""Columns that a product of a tile takes at a time: four vectors of float32."""
RNG = np.random.default_rng(0)
GRAPH = gnnjit.Graph.from_edges(*RNG.integers(0, N, (2, E)), num_nodes=N)


def work(
    layer: Callable[..., Any], shapes: list[tuple[int, ...]], vertices: int = N, edges: int = E,
    *, trained: bool = False,
) -> Work:  # fmt: skip
    """The work of inference on arrays of `shapes`, on a graph of so many vertices and edges; with
    all gradients if `trained`."""
    call = traced_call(lambda *a: layer(GRAPH, *a), *(jnp.zeros(s, jnp.float32) for s in shapes))
    program = weighed(call.program, call.padded, Choices(), online=False)
    sizes = GraphSizes(vertices, vertices, edges)
    slots = arrays_of(call)[1]
    wanted = (True,) * (1 + max(slots)) if trained else None
    return work_of(sketch(program, slots, sizes, wanted), machine_of("cpu"))


def features(found: Work, kind: str) -> dict[str, float]:
    return dict(zip(KINDS[kind], found[kind].tolist(), strict=True))


@gnnjit.layer
def linear(v: Any, e: Any, w: Any) -> Any:
    return gnnjit.sum(e.src @ w)


@gnnjit.layer
def per_head(v: Any, e: Any, w: Any) -> Any:
    return jnp.einsum("hf,hfc->hc", gnnjit.sum(e.src), w)


@gnnjit.layer
def network(v: Any, e: Any, w: Any, u: Any) -> Any:
    return gnnjit.sum(jax.nn.relu(e.src @ w + v @ w) @ u)


@pytest.mark.parametrize(
    ("columns", "groups"), [(1, 1), (8, 1), (13, 3), (16, 1), (28, 3), (32, 1), (40, 2), (75, 5)]
)
def test_column_groups(columns: int, groups: int) -> None:
    assert _column_groups(columns) == groups


def test_a_product() -> None:
    found = features(work(linear, [(N, 24), (24, 40)]), "matmul")
    assert found == {
        "count": 1, "flops": 2 * N * 24 * 40, "passes": N * 24 * 2, "rows": N * 2,
        "bytes": 4 * (N * 24 + 24 * 40 + N * 40), "far": 0,
    }  # fmt: skip


def test_what_no_cache_holds() -> None:
    many = 1 << 20
    found = features(work(linear, [(N, 24), (24, 40)], vertices=many), "matmul")
    assert found["bytes"] == 4 * (many * 64 + 24 * 40)
    assert found["far"] == pytest.approx(found["bytes"] - (16 << 20))


def test_a_product_for_each_head() -> None:
    found = work(per_head, [(N, 4, 24), (4, 24, 40)])
    assert features(found, "matmul")["flops"] == 4 * 2 * N * 24 * 40
    assert features(found, "matmul")["count"] == 4
    assert features(found, "heads")["count"] == 4
    assert features(found, "heads")["flops"] == 0


def test_several_rows_of_a_vertex_are_rows_of_one_product() -> None:
    found = work(linear, [(N, 3, 24), (24, 40)])
    assert "heads" not in found
    assert features(found, "matmul") == {
        "count": 1, "flops": 2 * 3 * N * 24 * 40, "passes": 3 * N * 24 * 2, "rows": 3 * N * 2,
        "bytes": 4 * (3 * N * 24 + 24 * 40 + 3 * N * 40), "far": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fn", "shapes", "rows", "heads"),
    [(linear, [(N, 24), (24, 40)], 1, 0), (linear, [(N, 3, 24), (24, 40)], 3, 0),
     (per_head, [(N, 4, 24), (4, 24, 40)], 1, 3 * 4)],
    ids=["one row", "rows", "heads"],
)  # fmt: skip
def test_the_gradient_of_a_matrix(fn: Any, shapes: Any, rows: int, heads: int) -> None:
    found = work(fn, shapes, trained=True)
    tall = features(found, "tall")
    assert tall["flops"] == rows * 2 * N * math.prod(shapes[1])
    assert tall["entries"] == math.prod(shapes[1])
    assert (features(found, "heads")["count"] if "heads" in found else 0) == heads


def test_many_heads_are_one_product() -> None:
    found = work(per_head, [(N, 20, 3), (20, 3, 2)])
    assert "matmul" not in found
    assert features(found, "heads")["count"] == 1
    assert features(found, "heads")["flops"] == 2 * N * 20 * 3 * 2


def test_products_on_tiles_of_edges() -> None:
    found = work(network, [(N, 8), (8, 128), (128, 96)])
    assert "chunks" not in found
    assert features(found, "traversal")["products"] == 0
    assert features(found, "matmul")["flops"] == 2 * N * 8 * 128  # `v` and `e.src` are one array
    tiles = features(found, "tiles")
    assert tiles["flops"] == 2 * E * 128 * 96
    assert tiles["passes"] == E * 128 * -(-96 // WIDE)
    assert tiles["functions"] == features(found, "traversal")["functions"] == 0


def test_products_that_are_summed_over_the_edges_of_tiles() -> None:
    layer = gnnjit.layer(lambda v, e, w: gnnjit.sum(jnp.tanh(jnp.tanh(e.src + v) @ w)))
    found = work(layer, [(N, 128), (128, 96)], trained=True)
    tiles = features(found, "tiles")
    # Forward; then for each end of the edges again, and with the cotangent; once summed.
    assert tiles["flops"] == (1 + 2 * 2 + 1) * 2 * E * 128 * 96
    assert tiles["passes"] == E * (3 * 128 * -(-96 // WIDE) + 2 * 96 * -(-128 // WIDE))
    assert tiles["functions"] == features(found, "traversal")["functions"] > 0


def test_columns_are_grouped_as_in_kernels() -> None:
    pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")
    from gnnjit.lower.cpu import tile_products

    assert work_module.WIDE == tile_products.WIDE


def test_no_tiles_without_large_products() -> None:
    assert "tiles" not in work(network, [(N, 8), (8, 4), (4, 3)], trained=True)


def test_a_function_that_kernels_lack_goes_in_chunks() -> None:
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(jax.scipy.special.i0e(e.src + v)))
    assert features(work(layer, [(N, 8)]), "chunks")["functions"] == 2 * E * 8
    assert "traversal" not in work(layer, [(N, 8)])


def test_what_kernels_lack() -> None:
    pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")
    from gnnjit.lower.cpu import kernel

    emitted = {*kernel.RULES, *kernel.READS, *kernel.SUMS}
    assert {n for n, cost in TABLE.items() if not cost.in_kernels} == set(TABLE) - emitted


def test_numbers_on_edges() -> None:
    @gnnjit.layer
    def attention(v: Any, e: Any) -> Any:
        return gnnjit.sum(jax.nn.sigmoid(e.src[0] + v[0]) * e.src)

    found = features(work(attention, [(N, 16)]), "traversal")
    assert found["scalars"] == 2 * E  # the sum, its sigmoid; not the products with it
    assert found["functions"] == E


@gnnjit.layer
def polynomial(v: Any, e: Any) -> Any:
    h = v
    for _ in range(60):
        h = h + h * h
    return gnnjit.sum(e.src) + h


def test_what_is_read_again_and_again_in_a_loop_counts_once():
    """Walked along every path from the result to `v`, that would not end."""
    short = gnnjit.layer(lambda v, e: gnnjit.sum(e.src) + v * v)
    long, few = (features(work(f, [(N, 8)]), "elementwise") for f in (polynomial, short))
    assert long["count"] == few["count"]
    assert long["bytes"] == few["bytes"]


def test_an_edge_adds_to_the_row_of_a_table_that_it_picked():
    """The gradient of a table costs as much with many rows as with few."""
    graph = gnnjit.Graph.from_edges(
        GRAPH.src, GRAPH.dst, N, relation=np.zeros(E, int), num_relations=2
    )

    @gnnjit.layer
    def picked(v: Any, e: Any, w: Any) -> Any:
        return gnnjit.sum(e.src @ w[e.relation])

    def with_graph(_: Any, *arrays: Any) -> Any:
        return picked(graph, *arrays)

    few, many = (work(with_graph, [(N, 32), (n, 32, 32)], trained=True) for n in (2, 200))
    assert features(few, "tiles")["flops"] == 3 * 2 * E * 32 * 32
    for kind in ("tiles", "traversal"):
        assert features(few, kind) == features(many, kind)
