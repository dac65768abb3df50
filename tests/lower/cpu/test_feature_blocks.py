"""Traversals in blocks of features against those of all features at once: the same bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnjit

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from gnnjit.ir.program import Reduce
from gnnjit.lower.cpu import feature_width, kernel
from gnnjit.lower.cpu.spec import INT32, Spec
from gnnjit.system.cpu_caches import Caches

from .test_kernel import DST, EDGE, F32, GRAPHS, MAX, SHARED, SRC, SUM, compute, data, graph, trace

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

DTYPES = [np.float32, np.float64, jnp.float16, jnp.bfloat16, np.int32, np.uint8]


def spec_of(body, reductions=(SUM,), rows=DST, **config) -> Spec:
    return Spec(body, reductions, rows, INT32, kernel.default_config(**config))


def same_in_blocks(body, reductions, case, args=None, rows=DST, lines=1, **config) -> None:
    """Whether a traversal in blocks of so many cache lines gives the same bits."""
    args = data(case, body) if args is None else args
    features = lines * spec_of(body, reductions, rows).unit
    whole = compute(body, reductions, case, args, rows, **{**config, "threads": 1})
    blocks = compute(body, reductions, case, args, rows, width=features, **config)
    for a, b in zip(whole, blocks, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def total(dtype=F32, features=48):
    return trace(lambda x: x, (SRC, (features,), dtype))


def mixed(features=70):
    """Rows' and shared values beside gathered ones, weights of edges, scalars of rows."""

    def fn(x, y, z, w, a, b):
        m = jnp.maximum(x * w + y, z) * a + b
        return m, w + a, m

    row, source = (DST, (features,), F32), (SRC, (features,), F32)
    narrow = (EDGE, (), F32), (SRC, (), F32), (SHARED, (features,), F32)
    return trace(fn, source, row, source, *narrow)


@pytest.mark.parametrize("rows", [DST, SRC])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("piece", [16, 100, 8192])
def test_on_graphs(name, rows, piece):
    reductions = tuple(Reduce(kind, rows) for kind in ("sum", "sum", "max"))
    same_in_blocks(mixed(), reductions, GRAPHS[name], rows=rows, piece=piece)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, kind):
    """The last block overlaps the one before."""
    with jax.enable_x64(True):
        unit = spec_of(total(dtype, 200)).unit
        case = graph(edges=500, padding=7)
        same_in_blocks(total(dtype, 2 * unit + 3), (Reduce(kind, DST),), case)


@pytest.mark.parametrize("shape", [(2, 48), (3, 2, 40), (1, 33)])
def test_heads(shape):
    def fn(x, s):
        return s[..., None] * x, x

    body = trace(fn, (SRC, shape, F32), (SRC, shape[:-1], F32))
    same_in_blocks(body, (SUM, MAX), GRAPHS["hub"])


def test_dtypes_side_by_side():
    def fn(x, y):
        return x.astype(F32) + y, y

    body = trace(fn, (SRC, (80,), jnp.bfloat16), (SRC, (80,), F32))
    assert spec_of(body, (SUM, SUM)).unit == 32
    same_in_blocks(body, (SUM, SUM), GRAPHS["hub"])


def test_64_bit_indices():
    with jax.enable_x64(True):
        same_in_blocks(total(), (SUM,), graph(padding=5), index=np.int64)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 400), st.integers(0, 30), st.booleans(), st.integers(17, 100),
    st.integers(1, 3), st.integers(0, 99),
)  # fmt: skip
def test_on_random_graphs(edges, padding, hub, features, lines, seed):
    case = graph(edges=edges, padding=padding, hub=hub, seed=seed)
    if 16 * lines < features:
        same_in_blocks(mixed(features), (SUM, SUM, MAX), case, lines=lines)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("lines", [1, 2])
def test_bits_do_not_depend_on_threads(threads, lines):
    case = graph(edges=60_000, num_src=500, num_dst=900)
    for _ in range(3):
        same_in_blocks(mixed(), (SUM, SUM, MAX), case, lines=lines, piece=512, threads=threads)


# -- the width ------------------------------------------------------------------------------

CACHES = Caches(1 << 20, 32 << 20, 2)


@pytest.mark.parametrize(
    ("sources", "degree", "features", "wanted"),
    [
        (3_000, 30, 512, 64),  # four lines stay next to a core
        (8_000, 15, 512, 32),  # two do
        (8_000, 5, 512, 0),  # a copy would cost as much as it saves
        (8_000, 15, 64, 0),  # all features are in the last cache, and few edges
        (1_000, 30, 512, 0),  # almost in the nearest cache
        (30_000, 15, 512, 32),  # in the last cache
        (100_000, 20, 128, 16),
        (100_000, 20, 64, 0),  # a block for each thread would take as much of it
        (3_000_000, 20, 512, 0),  # not even one cache line
        (30_000, 15, 16, 0),  # one cache line
        (0, 15, 512, 0),
    ],
)  # fmt: skip
def test_width(sources, degree, features, wanted):
    spec = spec_of(total(features=features), threads=2)
    assert feature_width.width(spec, sources, degree * sources, CACHES) == wanted


def test_width_by_dtype_threads_and_caches():
    def width(dtype=F32, caches=CACHES, **config):
        spec = spec_of(total(dtype, 512), **config)
        return feature_width.width(spec, 30_000, 450_000, caches)

    with jax.enable_x64(True):
        assert width(np.float64, threads=2) == 16
    assert width(jnp.bfloat16, threads=2) == 64
    assert width(threads=2) == 32
    assert width(threads=8) == 32  # two threads share a last cache
    assert width(threads=32, caches=Caches(1 << 20, 32 << 20, 32)) == 0
    assert width(threads=2, caches=None) == 0


def mixes(x):
    return x * x.sum()


def exp_again(x, w):
    return jnp.exp(w) * x


def scaled(x, w):
    return jnp.abs(w - 1) * x


WIDE, WEIGHT = (SRC, (512,), F32), (EDGE, (), F32)


@pytest.mark.parametrize(
    ("body", "reductions", "allowed"),
    [
        (trace(scaled, WIDE, WEIGHT), (SUM,), True),
        (trace(exp_again, WIDE, WEIGHT), (SUM,), False),
        (trace(mixes, WIDE), (SUM,), False),
        (trace(lambda x: x, WIDE), (None,), False),
        (trace(lambda x: x, WIDE), (Reduce("sum", SHARED),), False),
        (trace(lambda x, y: x * y, WIDE, (EDGE, (512,), F32)), (SUM,), False),
        (trace(lambda x: x, (DST, (512,), F32)), (SUM,), False),
    ],
)  # fmt: skip
def test_what_is_cut(body, reductions, allowed):
    spec = spec_of(body, reductions, threads=2)
    assert bool(feature_width.width(spec, 30_000, 900_000, CACHES)) == allowed


# -- through a layer ------------------------------------------------------------------------


@gnnjit.layer
def neighbours(v, e, w):
    return gnnjit.sum(w * e.src) + gnnjit.mean(e.src)


def test_a_layer_and_its_gradient(monkeypatch):
    """The same bits as without; `explain` says so."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 300, (2, 6_000))
    g = gnnjit.Graph.from_edges(src, dst, num_nodes=300)
    x, c = (jnp.asarray(rng.standard_normal((300, 512)), F32) for _ in range(2))

    def found(caches):
        monkeypatch.setattr(kernel, "caches", lambda: caches)
        step = jax.jit(jax.value_and_grad(lambda x: jnp.vdot(neighbours(g, x, 2.0), c)))
        text = step.lower(x).as_text()
        return jax.tree.leaves(step(x)), text, str(neighbours.explain(g, x, 2.0))

    whole, code, explained = found(None)
    assert "features at a time" not in explained
    blocks, blocked_code, explained = found(Caches(1 << 15, 1 << 17, 1))
    for rows in ("destination", "source"):
        assert f"one row per {rows}, 32 features at a time" in explained
    assert code != blocked_code
    for a, b in zip(whole, blocks, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_what_is_asked_about_is_what_runs(monkeypatch):
    """One kernel is written for a traversal, that of the width which runs."""
    monkeypatch.setattr(kernel, "caches", lambda: Caches(1 << 16, 1 << 17, 1))
    emit, widths = kernel._emit, []
    monkeypatch.setattr(
        kernel, "_emit", lambda spec: widths.append(spec.config.width) or emit(spec)
    )
    rng = np.random.default_rng(0)
    graph = gnnjit.Graph.from_edges(*rng.integers(0, 200, (2, 9000)), num_nodes=200)
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(jnp.minimum(e.src, 0.375 * v)))
    jax.jit(layer).lower(graph, jnp.ones((200, 512)))
    assert len(widths) == 1
    assert 0 < widths[0] < 512
