"""The loader: the same batches however they are made, few programs, no thread left."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gnnjit import nn
from gnnjit.errors import GnnjitWarning, SampleError
from gnnjit.graph import Graph
from gnnjit.sample import Batch, Loader, NeighborSampler, Sample, Shapes, Stored
from gnnjit.sample.features import Features
from gnnjit.store import DiskStore, HostStore

N, F = 600, 4
ROOT = Path(__file__).parents[2]


def power_law_graph(seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    src = (N * rng.random(4000) ** 2).astype(int)
    return Graph.from_edges(src, rng.integers(0, N, 4000), N)


GRAPH = power_law_graph()
X = np.random.default_rng(1).standard_normal((N, F)).astype(np.float32)
Y = np.arange(N, dtype=np.int32) % 5
SAMPLER = NeighborSampler(GRAPH, (5, 3))


def loader(**options) -> Loader:
    given = {"batch_size": 64, "shapes": 3, "seed": 7}
    return Loader(SAMPLER, X, Y, **(given | options))


def assert_same(one: Batch, other: Batch) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("gnnjit-loader")]


def test_an_epoch_has_each_seed_once():
    for epoch in range(2):
        batches = list(loader(seed=epoch))
        seeds = [np.asarray(b.vertices)[np.asarray(b.seeds)][np.asarray(b.mask)] for b in batches]
        assert len(batches) == 10
        np.testing.assert_array_equal(np.sort(np.concatenate(seeds)), np.arange(N))


def test_rows_belong_to_their_vertices():
    values = np.arange(4000.0, dtype=np.float32)
    pairs = list(zip(np.asarray(GRAPH.src).tolist(), np.asarray(GRAPH.dst).tolist(), strict=True))
    for batch in loader(edges=values):
        vertices, real = np.asarray(batch.vertices), int(batch.num_real[-1])
        np.testing.assert_array_equal(batch.x[:real], X[vertices[:real]])
        assert (vertices[real:] == N).all()
        assert not np.asarray(batch.x)[real:].any()
        seeds, mask = vertices[np.asarray(batch.seeds)], np.asarray(batch.mask)
        np.testing.assert_array_equal(np.asarray(batch.y)[mask], Y[seeds[mask]])
        for layer, graph in enumerate(batch.graphs):
            data, keep = np.asarray(batch.edges_of(layer)), np.asarray(graph.mask)
            assert len(data) == graph.num_edges
            for e, u, v in zip(
                data[keep],
                vertices[np.asarray(graph.src)[keep]],
                vertices[np.asarray(graph.dst)[keep]],
                strict=True,
            ):
                assert pairs[int(e)] == (u, v)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_the_stream(threads):
    serial = list(loader(threads=0))
    for one, other in zip(serial, loader(threads=threads, prefetch=4), strict=True):
        assert_same(one, other)


def test_a_batch_is_made_alone_to_the_same_bits():
    some = loader()
    first, second = list(some), list(some)
    assert some.epoch == 2
    for epoch, batches in enumerate((first, second)):
        for index, batch in enumerate(batches):
            assert_same(loader(threads=0).batch(epoch, index), batch)
    assert not np.array_equal(first[0].vertices, second[0].vertices)


@pytest.mark.parametrize("stop", [0, 1, 7, 10])
def test_resuming_gives_the_rest_of_the_stream(stop):
    whole = loader()
    expected = [*whole, *whole]
    some = loader()
    stream = iter(some)
    for _ in range(stop):
        next(stream)
    state = json.loads(json.dumps(some.state()))
    again = loader(state=state)
    for one, other in zip([*again, *again], expected[stop:], strict=True):
        assert_same(one, other)


def test_resuming_between_the_parts_of_a_split_batch():
    tight = tuple(int(n * 0.7) for n in loader().shapes[-1])
    options = {"shapes": Shapes((tight,), (1.0,) * 5)}
    expected = list(loader(**options))
    assert len(expected) > 10
    for stop in range(len(expected)):
        some = loader(**options)
        stream = iter(some)
        for _ in range(stop):
            next(stream)
        stream.close()
        rest = list(loader(state=some.state(), **options))
        assert len(rest) == len(expected) - stop
        if rest:
            assert_same(rest[0], expected[stop])


def test_batches_that_fit_no_shape_are_split():
    tight = tuple(int(n * 0.7) for n in loader().shapes[-1])
    some = loader(shapes=Shapes((tight,), (1.0,) * 5))
    seeds = [np.asarray(b.vertices)[np.asarray(b.seeds)][np.asarray(b.mask)].tolist() for b in some]
    assert sorted(itertools.chain(*seeds)) == list(range(N))
    report = some.report()
    assert report.splits == report.batches - 10 > 0
    assert report.programs == 1


def test_batches_that_fit_no_shape_are_drawn_again():
    whole = loader(shapes=1)
    sizes = np.array([SAMPLER.sample(whole._order.batch(0, i), i).sizes for i in range(9)])
    middle = (*sizes.max(axis=0)[:2] + 9, int(np.median(sizes[:, 2])), *sizes.max(axis=0)[3:] + 9)
    some = loader(shapes=Shapes((middle,), (1.0,) * 5), oversize="resample")
    assert len(list(some)) == 10
    assert some.report().resamples > 0
    assert some.report().splits == 0


def test_a_batch_that_never_fits_gets_a_shape_of_its_own():
    some = loader(shapes=Shapes(((8,) * 5,), (1.0,) * 5), oversize="resample")
    with pytest.warns(GnnjitWarning, match="fits no shape, however it is drawn; the largest is"):
        batch = some.batch(0, 0)
    plain = loader(shapes=None).batch(0, 0)
    np.testing.assert_array_equal(batch.x[: len(plain.x)], plain.x)
    assert (plain.shape, batch.shape) == (None, 1)


def two_layers(kind: str):
    rngs = nnx.Rngs(0)
    layers = {
        "SAGE": lambda: nn.SAGE(F, F, rngs=rngs),
        "GAT": lambda: nn.GAT(F, F, rngs=rngs),
    }[kind]
    return [layers(), layers()]


def loss(model, batch: Batch):
    h = batch.x
    for layer, graph in zip(model, batch.graphs, strict=True):
        h = jax.nn.relu(layer(graph, h))
    chosen = jnp.where(batch.mask[:, None], h[batch.seeds], 0)
    return jnp.sum(chosen**2), chosen


@pytest.mark.parametrize("kind", ["SAGE", "GAT"])
def test_nan_in_padding_reaches_nothing(kind):
    model = nnx.List(two_layers(kind))
    gradient = nnx.grad(loss, has_aux=True)
    plain, padded = loader(shapes=None).batch(0, 0), loader(shapes=1).batch(0, 0)
    real = int(padded.num_real[-1])
    assert real < len(padded.x)
    poisoned = dataclasses.replace(padded, x=padded.x.at[real:].set(jnp.nan))
    (expected, h), (got, padded_h) = gradient(model, plain), gradient(model, poisoned)
    np.testing.assert_allclose(padded_h[: len(h)], h, rtol=1e-5, atol=1e-6)
    assert np.isfinite(padded_h).all()
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


class Broken:
    """A sampler that fails at one batch."""

    num_seeds, adjacency = N, SAMPLER.adjacency

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def sample(self, seeds, seed=0):
        self.calls += 1
        if self.calls > self.at:
            raise ZeroDivisionError("in the sampler")
        return SAMPLER.sample(seeds, seed)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_what_a_worker_raises_is_raised_in_order(threads):
    stream = iter(Loader(Broken(4), X, batch_size=64, shapes=None, threads=threads))
    with pytest.raises(ZeroDivisionError, match="in the sampler") as raised:
        list(stream)
    assert "in sample\n" in "".join(traceback.format_exception(raised.value))
    assert not own_threads()


def interrupted(batches) -> None:
    for _ in batches:
        raise KeyboardInterrupt


class Interrupted:
    """A sampler during which the user presses Ctrl-C."""

    num_seeds, adjacency = N, SAMPLER.adjacency

    def sample(self, seeds, seed=0):
        if threading.current_thread() is not threading.main_thread():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return SAMPLER.sample(seeds, seed)


@pytest.fixture
def interruptible():
    """Jobs in the background ignore SIGINT, and so would this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_keyboard_interrupt_ends_the_threads():
    stream = iter(Loader(Interrupted(), X, batch_size=N, shapes=None, threads=1))
    with contextlib.closing(stream), pytest.raises(KeyboardInterrupt):  # type: ignore[type-var]
        next(stream)
    assert not own_threads()


def test_ending_an_iteration_ends_its_threads():
    some = loader(threads=3)
    stream = iter(some)
    next(stream)
    assert len(own_threads()) == 3
    stream.close()
    assert not own_threads()
    for _ in some:
        break
    assert not own_threads()
    with pytest.raises(KeyboardInterrupt):
        interrupted(some)
    assert not own_threads()
    stream = iter(some)
    next(stream)
    del stream
    gc.collect()
    assert not own_threads()


def test_an_interpreter_ends_in_the_middle_of_an_epoch():
    code = (
        "from tests.sample.test_loader import loader\n"
        "stream = iter(loader(threads=3))\n"
        "print(next(stream).number.tolist())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[0, 0, 0]\n", "")


def test_one_iteration_at_a_time():
    some = loader()
    first = iter(some)
    next(first)
    next(iter(some))
    with pytest.raises(SampleError, match="expected one iteration at a time"):
        next(first)
    assert not own_threads()


@pytest.mark.usefixtures("little_to_collect")
def test_many_batches_compile_few_programs_and_leave_nothing():
    some = Loader(SAMPLER, X, Y, batch_size=17, shapes=4, threads=2, edges=np.arange(4000))
    step = jax.jit(lambda batch: sum(jnp.sum(x) for x in jax.tree.leaves(batch)))
    count = None
    while some.report().batches < 320:
        for batch in some:
            step(batch).block_until_ready()
        del batch
        gc.collect()
        live = len(jax.live_arrays())
        assert count is None or live <= count
        count = live
    report = some.report()
    assert step._cache_size() == report.programs == len(some.shapes) == 4
    assert sum(report.per_shape) == report.batches
    assert report.padding.work < 15


def test_features_from_files_and_stores(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = loader().batch(0, 3).x
    with DiskStore.create(tmp_path / "store") as disk, HostStore() as memory:
        for store in (disk, memory):
            store.add("x", N, (F,), np.float32)
            store.write("x", 0, X)
            store.seal("x")
        features = {
            "narrow": jnp.asarray(X, jnp.bfloat16),
            "mapped": mapped,
            "jax": jnp.asarray(X),
            "disk": Stored(disk, "x"),
            "memory": Stored(memory, "x"),
            "columns": np.asfortranarray(X),
            "half": X.astype(np.float16),
            "flag": X[:, 0] > 0,
        }
        batch = Loader(SAMPLER, features, Y, batch_size=64, shapes=3, seed=7).batch(0, 3)
    for name in ("mapped", "jax", "disk", "memory", "columns"):
        np.testing.assert_array_equal(batch.x[name], expected)
    np.testing.assert_array_equal(batch.x["narrow"], expected.astype(jnp.bfloat16))
    np.testing.assert_array_equal(batch.x["half"], expected.astype(np.float16))
    np.testing.assert_array_equal(batch.x["flag"], expected[:, 0] > 0)


def test_features_on_the_device_are_read_there(monkeypatch):
    expected = loader().batch(0, 2).x
    monkeypatch.setattr("gnnjit.sample.features._on_accelerator", lambda array: True)
    features = {"device": jnp.asarray(X), "host": X}
    some = Loader(SAMPLER, features, jnp.asarray(Y), batch_size=64, shapes=3, seed=7)
    batch = some.batch(0, 2)
    for rows in batch.x.values():
        np.testing.assert_array_equal(rows, expected)
    assert len(list(some)) == 10
    assert some.report().programs <= 3


def test_buffers_are_used_again_once_nothing_refers_to_them():
    features = Features("x", X, N)
    (first,) = features.room(20)
    view, address = first[3:5].reshape(-1), first.ctypes.data
    assert address % 64 == 0
    del first
    (other,) = features.room(20)
    assert other.ctypes.data != address
    del view
    assert features.room(10)[0].ctypes.data == address


@pytest.mark.parametrize("threads", [0, 2])
def test_hot_rows_change_no_batch(threads):
    features = {"x": X, "label": Y}
    plain = Loader(SAMPLER, features, batch_size=64, shapes=None, threads=threads)
    some = Loader(SAMPLER, features, batch_size=64, shapes=3, threads=threads, hot_rows=100)
    for one, other in zip(plain, some, strict=True):
        rows = len(one.vertices)
        for name in features:
            np.testing.assert_array_equal(other.x[name][:rows], one.x[name])
            assert not np.asarray(other.x[name])[rows:].any()
    report = some.report()
    assert 100 / 6 < report.hits < 100
    assert report.programs <= 3
    assert len(some.shapes[0]) == len(report.padding.dimensions) == 6


class Parts:
    """A sampler of subgraphs, whose seeds are parts of 50 vertices."""

    adjacency = SAMPLER.adjacency

    def __init__(self, seeded: bool) -> None:
        self.num_seeds = 12 if seeded else None

    def sample(self, seeds, seed=0):
        if self.num_seeds is None:
            seeds = np.array([seed % 12, (seed + 1) % 12])
        vertices = np.concatenate([np.arange(50 * s, 50 * s + 50 + s % 3) % N for s in seeds])
        vertices = np.unique(vertices)
        count = len(vertices)
        ring = np.arange(count, dtype=np.int32)
        return Sample(
            vertices=vertices,
            vertex_counts=(count,),
            indptr=np.arange(count + 1, dtype=np.int32),
            neighbor=np.roll(ring, 1),
            slots=np.arange(len(ring)),
            edge_of_slot=ring,
            edge_counts=(count,),
            degree=np.ones(count, np.int32),
            weight=1 / (1 + vertices).astype(np.float32),
            edge_weight=np.ones(count, np.float32),
        )


@pytest.mark.parametrize("seeded", [True, False])
def test_subgraphs_have_labels_for_their_vertices(seeded):
    some = Loader(
        Parts(seeded), X, Y, batch_size=2, steps=None if seeded else 6, shapes=2,
        labelled=np.arange(N) % 2 == 0,
    )  # fmt: skip
    batches = list(some)
    assert len(batches) == 6
    for batch in batches:
        (graph,), real = batch.graphs, int(batch.num_real[0])
        vertices = np.asarray(batch.vertices)
        assert batch.seeds is None
        assert len(batch.y) == len(batch.mask) == len(batch.weight) == graph.num_nodes
        np.testing.assert_array_equal(batch.y[:real], Y[vertices[:real]])
        np.testing.assert_array_equal(batch.mask, (vertices < N) & (vertices % 2 == 0))
        np.testing.assert_allclose(batch.weight[:real], 1 / (1 + vertices[:real]))
        assert not np.asarray(batch.weight)[real:].any()
        assert int(np.sum(batch.edge_weight)) == real
    if seeded:
        seen = np.concatenate([np.asarray(b.vertices)[: int(b.num_real[0])] for b in batches])
        assert set(seen) == set(range(N))
    assert_same(some.batch(0, 3), batches[3])


def test_subgraphs_that_fit_no_shape_are_drawn_again():
    some = Loader(Parts(False), X, steps=40, shapes=Shapes(((101, 101),), (1.0, 1.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in some:
            assert int(batch.num_real[0]) <= 101
    assert some.report().batches == 40
    assert some.report().resamples > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "Loader: batch_size is 0, expected at least 1 seed"),
        ({"seeds": [N]}, f"Loader: seeds[0] is {N}, expected a seed from 0 to {N - 1}"),
        ({"seeds": []}, "Loader: 0 seeds make no batch of 64, expected at least one"),
        ({"seeds": [1], "drop_last": True}, "1 seeds make no batch of 64 with drop_last"),
        ({"seeds": [0.5]}, "Loader: seeds is float64 of shape (1,), expected seed numbers"),
        ({"steps": 3}, "Loader: got steps=3 with seeds, expected neither"),
        ({"shapes": 0}, "Loader: shapes is 0, expected at least 1, Shapes, or None"),
        ({"oversize": "cut"}, "Loader: oversize is 'cut', expected 'split' or 'resample'"),
        ({"edges": np.zeros(3)}, "Loader: edges has shape (3,), expected (4000, ...)"),
        ({"times": np.zeros(3)}, f"Loader: times has shape (3,), expected ({N},)"),
        ({"seed": -1}, "Loader: seed is -1, expected a whole number from 0"),
        ({"labelled": [1]}, "Loader: got labelled with samples that have seeds, expected seeds"),
        ({"hot_rows": [-1]}, f"Loader: hot_rows[0] is -1, expected a row from 0 to {N - 1}"),
        ({"state": {}}, "Loader: state is {}, expected what state() returned"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(SampleError, match=re.escape(message)):
        loader(**options)


def test_bad_features_states_and_numbers():
    with pytest.raises(SampleError, match=re.escape("Loader: x['a'] has shape (3, 2), expected")):
        Loader(SAMPLER, {"a": np.zeros((3, 2))})
    with pytest.raises(SampleError, match="got hot_rows without features on the host"):
        Loader(SAMPLER, hot_rows=3)
    with pytest.raises(SampleError, match="got steps=None with a Parts, whose samples need no"):
        Loader(Parts(False), X)
    with pytest.raises(SampleError, match="got seeds with a Parts, whose samples need no seeds"):
        Loader(Parts(False), X, seeds=[1], steps=3)
    with pytest.raises(SampleError, match="Loader: state has seed 7, expected 8"):
        loader(seed=8, shapes=None, state=loader(shapes=None).state())
    with pytest.raises(SampleError, match="Loader: state has order"):
        loader(batch_size=32, state=loader().state())
    with pytest.raises(SampleError, match="Loader: index is 10, expected a batch from 0 to 9"):
        loader().batch(0, 10)
    with pytest.raises(SampleError, match=r"fit no shape and was split in \d+, expected one"):
        loader(shapes=Shapes(((40, 150, 300, 150, 300),), (1.0,) * 5)).batch(0, 0)


def test_seeds_of_different_times_see_different_neighbours():
    edge_times = np.random.default_rng(2).integers(0, 100, 4000)
    sampler = NeighborSampler(GRAPH, (5, 3), edge_times=edge_times)
    times = np.arange(N) % 100
    some = Loader(sampler, X, Y, batch_size=64, shapes=3, times=times, edges=edge_times)
    for batch in some:
        seeds = np.asarray(batch.vertices)[np.asarray(batch.seeds)][np.asarray(batch.mask)]
        latest, graph = times[seeds].max(), batch.graphs[0]
        assert np.asarray(batch.edges_of(0))[np.asarray(graph.mask)].max() <= latest
        last = batch.graphs[1]
        real = np.asarray(last.mask)
        when = np.asarray(batch.edges_of(1))[real]
        assert (when <= times[seeds[np.asarray(last.dst)[real]]]).all()
