"""A loader's batches for pipelines of grain, which is needed only for `iter_dataset`."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

from gnnjit.errors import SampleError
from gnnjit.graph.validate import as_count
from gnnjit.sample.batch import Batch
from gnnjit.sample.loader import Loader
from gnnjit.system.optional import optional


class BatchSource:
    """The batches of some epochs by number, in NumPy: a random-access source of grain, for
    `grain.MapDataset.source` and `grain.DataLoader`, with any number of grain's threads.

    Item `i` is batch `i % len(loader)` of epoch `i // len(loader)`. The loader shuffles, so grain
    need not. Every item is one batch: one that fits no shape is drawn again, never split.

    Args:
        loader: whose batches; its position does not matter, and is not changed.
        epochs: how many.

    Raises:
        SampleError: `epochs` is below 1.
    """

    def __init__(self, loader: Loader, epochs: int = 1) -> None:
        if as_count("BatchSource: epochs", epochs) < 1:
            raise SampleError(f"BatchSource: epochs is {epochs}, expected at least 1")
        self._loader, self._epochs = loader, epochs

    def __len__(self) -> int:
        return self._epochs * len(self._loader)

    def __getitem__(self, index: SupportsIndex) -> Batch:
        number = operator.index(index)
        if not 0 <= number < len(self):
            raise IndexError(
                f"BatchSource: item {number}, expected a number from 0 to {len(self) - 1}"
            )
        epoch, number = divmod(number, len(self._loader))
        return self._loader.on_host(epoch, number)

    def __repr__(self) -> str:
        return f"BatchSource({len(self._loader)} batches, epochs={self._epochs})"


def iter_dataset(loader: Loader, epochs: int | None = None) -> Any:
    """A `grain.IterDataset` of the loader's batches, made by the loader's own threads, from where
    it stands; its iterators have `get_state` and `set_state`, for grain's checkpoints. One of them
    may be used at a time.

    Args:
        loader: whose batches.
        epochs: after how many epochs, counted from the loader's first, it ends; never if left out.

    Raises:
        ImportError: grain is not installed.
    """
    grain = optional("grain", "iter_dataset()", "pip install grain, or iterate over the Loader")

    class LoaderIterator(grain.DatasetIterator):
        def __init__(self) -> None:
            super().__init__()
            self._rest = iter(())

        def __next__(self) -> Batch:
            while True:
                for batch in self._rest:
                    return batch
                if epochs is not None and loader.epoch >= epochs:
                    raise StopIteration
                self._rest = iter(loader)

        def get_state(self) -> dict[str, Any]:
            return loader.state()

        def set_state(self, state: dict[str, Any]) -> None:
            self.close()
            loader.set_state(state)

        def close(self) -> None:
            getattr(self._rest, "close", lambda: None)()
            self._rest = iter(())

    class LoaderDataset(grain.IterDataset):
        def __iter__(self) -> LoaderIterator:
            return LoaderIterator()

    return LoaderDataset()
