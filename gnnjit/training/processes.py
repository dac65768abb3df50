"""What the processes of a job share in training: datasets, checkpoints, and one cost model.

All of it is nothing where there is one process.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gnnjit.cost.current import current, use
from gnnjit.cost.model import CostModel
from gnnjit.data.stored.dataset import StoredDataset
from gnnjit.distributed import connection
from gnnjit.distributed.process_group import broadcast, check_same, is_main, wait
from gnnjit.errors import GnnjitError
from gnnjit.training.checkpoint import Checkpoints, RunCheckpoint
from gnnjit.training.errors import TrainError

_SAME = 2.0
"""Seconds that the others leave process 0 to report an error that all have found."""


def processes() -> int:
    """How many there are.

    Raises:
        TrainError: if `jax.distributed` was started without `gnnjit.distributed.connect`.
    """
    if not jax.distributed.is_initialized():
        return 1
    place = connection.connect()
    if place.processes == 1:
        raise TrainError(
            "jax.distributed was initialized without gnnjit: call gnnjit.distributed.connect() in "
            "its place, so that a process that dies does not leave the others waiting"
        )
    return place.processes


def open_in_all(
    make: Callable[[], StoredDataset], folder: str | os.PathLike[str], *, to_read: bool
) -> StoredDataset:
    """A dataset in a folder, which process 0 makes if need be, open in all processes: only to be
    read, or for what they stream together."""
    if processes() == 1 and not to_read:
        return make()
    if is_main():
        make().store.close()
    wait("the dataset in a folder")
    return StoredDataset.open(folder, shared=to_read, together=not to_read)


def known_to_main(checkpoints: Checkpoints) -> dict[str, Any]:
    """What `Checkpoints.recall` gives in process 0, in all."""
    told = json.dumps(checkpoints.recall()).encode() if is_main() else None
    return json.loads(broadcast(told))


def open_checkpoints(
    root: str | os.PathLike[str], identity: dict[str, Any], resume: bool
) -> Checkpoints:
    """As `Checkpoints.open`, for process 0; the others neither read nor write."""
    if is_main():
        return Checkpoints.open(root, identity, resume)
    return Checkpoints(Path(root), identity)


@contextlib.contextmanager
def one_cost_model() -> Iterator[None]:
    """A context in which process 0's cost model plans the layers of all processes: calibrations
    differ from computer to computer, and different programs wait for each other for ever."""
    if processes() == 1:
        yield
        return
    model = current()
    mine = json.dumps({"weights": model.to_json(), "source": model.source}).encode()
    found = json.loads(broadcast(mine))
    with use(CostModel.from_json(found["weights"], found["source"])):
        yield


def check_program(compiled: Any, what: str) -> None:
    """Raises DistributedError, in all processes, unless the same collectives follow each other in a
    compiled program: it would wait for ever."""
    if processes() == 1:
        return
    moves = _MOVES.findall(compiled.as_text())
    check_same({what: hashlib.sha256(repr(moves).encode()).hexdigest()[:16]})


_MOVES = re.compile(
    r"= (\S+) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
"""Type and name of a collective, in the text of a compiled program."""


class SharedCheckpoint:
    """The checkpoints of one run, which process 0 alone reads and writes."""

    def __init__(self, inner: RunCheckpoint) -> None:
        self._inner = inner
        self.path = inner.path

    def save(self, epoch: int, arrays: Mapping[str, np.ndarray], record: dict[str, Any]) -> None:
        """As `RunCheckpoint.save`; nobody goes on before it is written."""
        if is_main():
            self._inner.save(epoch, arrays, record)
        wait(f"checkpoint of epoch {epoch}")

    def load(self, template: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """As `RunCheckpoint.load`, in all processes."""
        raw = _packed(*self._inner.load(template)) if is_main() else None
        return _unpacked(broadcast(raw), template)


def shared(checkpoint: RunCheckpoint) -> RunCheckpoint | SharedCheckpoint:
    """The checkpoints of a run, as all processes use them."""
    return checkpoint if processes() == 1 else SharedCheckpoint(checkpoint)


def _packed(arrays: Mapping[str, np.ndarray], record: dict[str, Any]) -> bytes:
    """The arrays as bytes, since NumPy's files know no bfloat16."""
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    head = json.dumps({"record": record, "shapes": shapes}).encode()
    out = io.BytesIO()
    out.write(len(head).to_bytes(8, "little") + head)
    for array in arrays.values():
        out.write(np.ascontiguousarray(array).tobytes())
    return out.getvalue()


def _unpacked(
    raw: bytes, template: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    end = 8 + int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:end])
    arrays = {}
    for name, shape in head["shapes"].items():
        dtype = np.dtype(template[name].dtype)
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(raw, dtype, count, end).reshape(shape)
        end += count * dtype.itemsize
    return arrays, head["record"]


@contextlib.contextmanager
def main_first() -> Iterator[None]:
    """All processes find what is wrong with the command; process 0 reports it, and its end ends
    the others. They report what process 0 has not found."""
    try:
        yield
    except GnnjitError:
        if not is_main():
            time.sleep(_SAME)
        raise
