"""Mosaic GPU kernels: lowered for CUDA on any host, and interpreted where JAX can do that."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reads import with_edges_as_read

import gnnjit
from gnnjit.graph.row_tasks import build_tasks
from gnnjit.ir.space import Space
from gnnjit.lower import choose
from gnnjit.lower.pallas import mosaic as lowering
from gnnjit.lower.xla import segment
from pallas_kernels import mosaic

F32 = np.dtype(np.float32)
CALL = "@mosaic_gpu_v2"

pytestmark = pytest.mark.skipif(
    bool(mosaic.missing()), reason="; ".join(mosaic.missing()) or "there"
)
interpreted = pytest.mark.skipif(
    not mosaic.can_interpret(), reason="this JAX cannot interpret Mosaic GPU kernels"
)


@gnnjit.layer
def weighted(v, e):
    return gnnjit.sum(e.data * e.src)


@gnnjit.layer
def gated(v, e):
    return gnnjit.sum(jax.nn.sigmoid(e.src + v) * e.src)


@gnnjit.layer
def largest(v, e):
    return gnnjit.max(e.data * e.src)


@gnnjit.layer
def smallest(v, e):
    return gnnjit.min(e.src - v)


@gnnjit.layer
def two_sums(v, e):
    return gnnjit.sum(e.data * e.src) * gnnjit.sum(jnp.tanh(e.src - v))


@gnnjit.layer
def scores(v, e):
    """Vectors are reduced to scalars."""
    score = jnp.tanh(jnp.sum(e.src * v))
    return gnnjit.sum(score * e.data * e.src) + gnnjit.max(e.data * score)


LAYERS = {
    "weighted": weighted,
    "gated": gated,
    "largest": largest,
    "smallest": smallest,
    "two_sums": two_sums,
    "scores": scores,
}


def loss(layer: Any) -> Any:
    layer = with_edges_as_read(layer, layer)

    def f(graph: Any, x: Any, w: Any) -> Any:
        out = layer(graph, x, edges=w)
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    return jax.value_and_grad(f, (1, 2), has_aux=True)


def edge_list(kind: str) -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 6, 20), rng.integers(0, 6, 20)  # of 8: two are isolated
    if kind == "hub":
        dst[:12], src[::4] = 2, 2
    if kind == "no edges":
        src, dst = src[:0], dst[:0]
    return src.astype(np.int32), dst.astype(np.int32), 8


def make_graph(kind: str, piece: int | None = None) -> gnnjit.Graph:
    """`piece`: with tasks, rows of more edges are hubs."""
    src, dst, n = edge_list(kind)
    mask = np.arange(len(src)) % 3 > 0 if kind == "padding" else None
    graph = gnnjit.Graph.from_edges(src, dst, num_nodes=n, edge_mask=mask)
    if piece is None:
        return graph

    def add(structure: Any) -> Any:
        tasks = build_tasks(np.asarray(structure.indptr), short=1, piece=piece)
        return dataclasses.replace(structure, tasks=tasks)

    return dataclasses.replace(
        graph,
        in_structure=add(graph.in_structure),
        out_structure=add(graph.out_structure),
    )


@pytest.fixture
def chosen(monkeypatch: Any) -> list[choose.Choice]:
    """The choices made while the test runs."""
    found: list[choose.Choice] = []
    old = choose.choose

    def spy(*args: Any) -> choose.Choice:
        found.append(old(*args))
        return found[-1]

    monkeypatch.setattr(choose, "choose", spy)
    return found


def lower_for_cuda(f: Any, *args: Any) -> str:
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def arguments(width: int, dtype: Any = F32, graph: Any = None) -> tuple[Any, Any, Any]:
    graph = make_graph("hub") if graph is None else graph
    x = jax.ShapeDtypeStruct((graph.num_dst, width), dtype)
    return graph, x, jax.ShapeDtypeStruct((graph.num_edges,), dtype)


# ---------------------------------------------------------------------------------- lowering


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [128, 256, 512])
@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_backward_lower_for_cuda(name, width, dtype, chosen):
    with choose.prefer("mosaic"):
        text = lower_for_cuda(loss(LAYERS[name]), *arguments(width, dtype))
    assert {c.kernel for c in chosen} == {"mosaic"}
    assert text.count(CALL) == len(chosen) >= 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", sorted(set(mosaic.WIDTHS) - {128, 256, 512}))
def test_wider_vectors_lower(width, dtype, chosen):
    with choose.prefer("mosaic"):
        assert CALL in lower_for_cuda(loss(two_sums), *arguments(width, dtype))
    assert {c.kernel for c in chosen} == {"mosaic"}


@pytest.mark.parametrize("piece", [3, 1024], ids=["hub in pieces", "whole rows"])
def test_pieces_of_hubs_are_merged_by_a_second_launch(piece):
    args = arguments(128, graph=make_graph("hub", piece))
    with choose.prefer("mosaic"):
        text = lower_for_cuda(lambda g, x, w: two_sums(g, x, edges=w), *args)
    assert text.count(CALL) == (2 if piece == 3 else 1)


def test_indices_of_64_bits_lower(chosen):
    with jax.enable_x64(True):
        graph = make_graph("hub", 3)
        graph = jax.tree.map(lambda x: x.astype(jnp.int64), graph)
        with choose.prefer("mosaic"):
            text = lower_for_cuda(loss(weighted), *arguments(128, graph=graph))
    assert {c.kernel for c in chosen} == {"mosaic"}
    assert CALL in text


keep = jax.lax.stop_gradient  # the gradient of the largest entry has vectors of 1

UNARY = {
    "abs": jnp.abs, "neg": jnp.negative, "sign": jnp.sign, "exp": jnp.exp, "exp2": jnp.exp2,
    "log": lambda x: jnp.log(x * x + 1), "log2": lambda x: jnp.log2(x * x + 1),
    "logistic": jax.nn.sigmoid, "sin": jnp.sin, "cos": jnp.cos, "tanh": jnp.tanh,
    "sqrt": lambda x: jnp.sqrt(x * x + 1), "rsqrt": lambda x: jax.lax.rsqrt(x * x + 1),
    "square": jnp.square, "round": jnp.round, "clip": lambda x: jnp.clip(x, -0.5, 0.5),
    "clamp": lambda x: jax.lax.clamp(-0.5, x, 0.5),
    "is_finite": lambda x: jnp.where(jnp.isfinite(x), x, 0.0),
    "integer_pow": lambda x: x**3 + (x * x + 1) ** -2 + (x * x + 1) ** -1,
    "not": lambda x: jnp.where(~(x > 0.5) | (x < -1) & (x != -2), x, 2.0),
    "xor": lambda x: jnp.where((x > 0.5) ^ (x <= -1), x, 2.0),
    "masks": lambda x: (x > 0).astype(x.dtype) * x.astype(jnp.bool_).astype(x.dtype),
    "relu": jax.nn.relu, "leaky_relu": jax.nn.leaky_relu, "silu": jax.nn.silu,
    "gelu": jax.nn.gelu, "two": lambda x: jnp.maximum(x, 0.1) / jnp.minimum(x, -0.1),
    "reductions": lambda x: x * jnp.sum(x) + keep(jnp.max(x) - jnp.min(x)) if x.ndim else x,
}  # fmt: skip


def one_operation(name: str) -> Any:
    """On the vector and on the scalar of each edge."""

    @gnnjit.layer
    def layer(v, e):
        return gnnjit.sum(UNARY[name](e.src + v) + UNARY[name](e.data))

    return layer


@pytest.mark.parametrize("name", UNARY)
def test_operations_on_vectors_and_scalars_lower(name, chosen):
    with choose.prefer("mosaic"):
        assert CALL in lower_for_cuda(loss(one_operation(name)), *arguments(128))
    assert {c.kernel for c in chosen} == {"mosaic"}


# ------------------------------------------------------------------------------ interpretation


def compare(fn: Any, graph: Any, chosen: list[choose.Choice], dtype: Any = F32) -> None:
    """Each traversal of `fn`, interpreted, against `segment`."""
    x = jax.ShapeDtypeStruct((graph.num_dst, 128), dtype)
    w = jax.ShapeDtypeStruct((graph.num_edges,), dtype)
    with choose.prefer("mosaic"):
        lower_for_cuda(fn, graph, x, w)
    assert {c.kernel for c in chosen} == {"mosaic"}
    sizes = {Space.SRC: (graph.num_src,), Space.DST: (graph.num_dst,), Space.SHARED: ()}
    rng = np.random.default_rng(1)
    for c in chosen:
        inputs = c.request.body.inputs
        shapes = [(*sizes.get(v.space, (graph.num_edges,)), *v.shape) for v in inputs]
        given = [
            jnp.asarray(rng.normal(size=s), v.dtype) for s, v in zip(shapes, inputs, strict=True)
        ]
        request = dataclasses.replace(c.request, graph=graph, platform="cpu")
        have, want = lowering.run(request, given), segment.run(request, given)
        for a, b, r in zip(have, want, request.reductions, strict=True):
            b = b if r is not None else jnp.where(_real(graph, b.ndim), b, 0)
            close(a, b, dtype)


def _real(graph: Any, rank: int) -> Any:
    mask = jnp.ones(graph.num_edges, bool) if graph.mask is None else graph.mask
    return mask.reshape(-1, *(1,) * (rank - 1))


def close(have: Any, want: Any, dtype: Any) -> None:
    assert have.dtype == want.dtype
    a, b = np.asarray(have, np.float32), np.asarray(want, np.float32)
    assert a.shape == b.shape
    tolerance = 1e-4 if dtype == F32 else 0.03
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max(initial=1))


@interpreted
@pytest.mark.parametrize("name", LAYERS)
def test_numbers_are_those_of_segment(name, chosen):
    compare(loss(LAYERS[name]), make_graph("isolated"), chosen)


@interpreted
@pytest.mark.parametrize("name", ["two_sums", "largest"])
@pytest.mark.parametrize("kind", ["hub", "padding"])
@pytest.mark.parametrize("piece", [3, 1024], ids=["hub in pieces", "whole rows"])
def test_graphs(name, kind, piece, chosen):
    compare(loss(LAYERS[name]), make_graph(kind, piece), chosen)


@interpreted
@pytest.mark.parametrize("name", ["weighted", "largest"])
def test_half_precision(name, chosen):
    compare(loss(LAYERS[name]), make_graph("hub", 3), chosen, jnp.bfloat16)


@interpreted
def test_no_edges(chosen):
    compare(loss(two_sums), make_graph("no edges"), chosen)


@interpreted
@pytest.mark.parametrize("name", UNARY)
def test_operations_give_the_same_numbers(name, chosen):
    layer = one_operation(name)
    compare(lambda g, x, w: layer(g, x, edges=w), make_graph("isolated"), chosen)
