"""Batches by number, and in pipelines of grain where that is installed."""

from __future__ import annotations

import json
import re
import sys

import jax
import numpy as np
import pytest

from gnnjit.errors import SampleError
from gnnjit.sample import BatchSource, Shapes, iter_dataset

from .test_loader import assert_same, loader, own_threads


def test_items_are_the_batches_of_the_epochs():
    some = loader()
    source = BatchSource(some, epochs=2)
    expected = [*loader(), *(again for again in loader(state={**some.state(), "epoch": 1}))]
    assert len(source) == len(expected) == 20
    for index in (13, 0, 19):
        item = source[np.int64(index)]
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(item))
        assert_same(jax.device_put(item), expected[index])
    assert some.state()["index"] == 0


def test_every_item_is_one_batch():
    edges = tuple(int(n * 0.98) for n in loader().shapes[-1][4:])
    shapes = Shapes((loader().shapes[-1][:4] + edges,), (1.0,) * 5)
    source = BatchSource(loader(shapes=shapes))
    assert [source[i].number.tolist() for i in range(10)] == [[0, i, 0] for i in range(10)]


def test_bad_input(monkeypatch):
    with pytest.raises(SampleError, match="BatchSource: epochs is 0, expected at least 1"):
        BatchSource(loader(), epochs=0)
    with pytest.raises(IndexError, match="item 10, expected a number from 0 to 9"):
        BatchSource(loader())[10]
    monkeypatch.setitem(sys.modules, "grain", None)
    message = "iter_dataset() needs grain: pip install grain, or iterate over the Loader"
    with pytest.raises(ImportError, match=re.escape(message)):
        iter_dataset(loader())


def test_grain_reads_the_source():
    grain = pytest.importorskip("grain", reason="grain is not installed")
    source = BatchSource(loader(), epochs=2)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=3)
    stream = grain.MapDataset.source(source).to_iter_dataset(options)
    for batch, expected in zip(stream, [source[i] for i in range(20)], strict=True):
        assert_same(batch, expected)


def test_iterators_of_grain_resume():
    pytest.importorskip("grain", reason="grain is not installed")
    expected = list(iter_dataset(loader(), epochs=2))
    assert len(expected) == 20
    stream = iter(iter_dataset(loader(), epochs=2).map(lambda batch: batch))
    for _ in range(13):
        next(stream)
    state = json.loads(json.dumps(stream.get_state()))
    stream.close()
    again = iter(iter_dataset(loader(), epochs=2).map(lambda batch: batch))
    again.set_state(state)
    for batch, other in zip(again, expected[13:], strict=True):
        assert_same(batch, other)
    assert not own_threads()
