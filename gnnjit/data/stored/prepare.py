"""A dataset by its name in a folder, for processes whose memory is less than it takes to make it.

`prepare` opens what the folder holds. Where it holds nothing yet, another process makes it: run as
`python -m gnnjit.data.stored.prepare`, with the request as JSON. That tells its progress as lines
of JSON on the standard output, `{"stage": ..., "done": ..., "total": ...}`, and last what went
wrong, if anything did, `{"error": class, "message": ...}`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from gnnjit import errors
from gnnjit.config import path_of
from gnnjit.data import DATASETS, Dataset, open_dataset, row_normalize
from gnnjit.data.communities import draw
from gnnjit.data.registry import checked_options
from gnnjit.data.stored.dataset import ARRAYS, DATASET, StoredDataset, describe
from gnnjit.data.stored.write import (
    PARTS,
    Source,
    Watch,
    contents_of,
    order_made_from,
    silent,
    store_dataset,
    write,
)
from gnnjit.errors import DataError, GnnjitError, StoreError
from gnnjit.partition.locality import order_vertices
from gnnjit.store.disk import MANIFEST, DiskStore

SEED = 0


@dataclass(frozen=True)
class Request:
    """What is to be in a folder. All of it can be written as JSON.

    Attributes:
        name: in lower case, of `DATASETS`.
        folder: absolute.
        data_dir: where the dataset's files are.
        options: all that the dataset takes, also those that were not given.
        order: of the vertices, by name.
        normalize_features: divide each vertex's features by their sum.
    """

    name: str
    folder: str
    data_dir: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    order: str = "auto"
    normalize_features: bool = False

    @property
    def made_from(self) -> dict[str, Any]:
        """Everything but the places, as `StoredDataset` keeps it."""
        return {
            "name": self.name,
            "options": dict(self.options),
            "normalize_features": self.normalize_features,
            **order_made_from(self.order, PARTS, SEED),
        }


def prepare(
    name: str,
    folder: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    order: str = "auto",
    normalize_features: bool = False,
    watch: Watch | None = None,
) -> StoredDataset:
    """Open the dataset in `folder`, or make it there first.

    Another process makes it, which may need more memory than training. If it is stopped, the next
    call begins anew; other files in the folder stay.

    Args:
        name: of a dataset of one graph, as for `open_dataset`.
        folder: where it is, or is to be; made if need be.
        data_dir, options: as for `open_dataset`; values that JSON can hold.
        order: of the vertices: "metis" (needs `pymetis`), "rcm" (reverse Cuthill-McKee), "given",
            or "auto", which is "metis" where `pymetis` is installed and else "rcm".
        normalize_features: divide each vertex's features by their sum.
        watch: is called with a stage ("graph", "order", "edges", "features", "sorting",
            "sealing"), how much of it is done, and of how much. An error that it raises ends the
            other process too.

    Raises:
        DataError: the name or an option is unknown, or the dataset's files are missing or damaged.
        GraphError: the order is unknown, or needs a package that is not there.
        StoreError: the folder holds another dataset, or files that are damaged; the disk is full;
            another process has the folder open; the process that made the dataset was killed.
    """
    request = _request(name, folder, data_dir, options or {}, order, normalize_features)
    if not _holds(request):
        _make_elsewhere(request, watch or silent)
    return StoredDataset.open(folder)


def keep(dataset: Dataset, folder: str | os.PathLike[str]) -> StoredDataset:
    """Open the dataset in `folder`, or write it there first, from one that is in memory.

    Raises:
        StoreError: as `prepare`.
    """
    folder = Path(folder).absolute()
    _refuse_file(folder)
    found = describe(folder)
    if found is None or not found["complete"]:
        with _store(folder) as store:
            _drop_arrays(store)
            store_dataset(dataset, store)
    stored = StoredDataset.open(folder)
    if stored.contents != contents_of(dataset):
        stored.store.close()
        raise StoreError(
            f"{folder}: the folder holds another dataset, {stored!r}: choose another folder, or "
            "delete this one"
        )
    return stored


def _request(
    name: str,
    folder: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
    order: str,
    normalize_features: bool,
) -> Request:
    """Checked as far as that takes no time."""
    name = name.lower()
    options = checked_options(name, options)
    entry = DATASETS[name]
    if entry.task != "vertex":
        raise DataError(
            f"{name} has labels on graphs, links or types, expected a dataset of one graph whose "
            "vertices have classes, such as communities: train on it without a store"
        )
    order_vertices((), (), 0, method=order, parts=PARTS)  # raises GraphError for the method
    parameters = inspect.signature(entry.load).parameters
    every = {key: parameters[key].default for key in entry.options()} | dict(options)
    try:
        every = json.loads(json.dumps(every))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{name}: an option has a value that JSON cannot hold ({error}): pass numbers, text, "
            "or True and False"
        ) from error
    files = None if data_dir is None else str(Path(data_dir).absolute())
    return Request(name, str(Path(folder).absolute()), files, every, order, normalize_features)


def _holds(request: Request) -> bool:
    """Whether the folder holds what is asked for; False where there is nothing, or nothing that
    is complete. Raises StoreError where it holds another dataset."""
    folder = Path(request.folder)
    _refuse_file(folder)
    found = describe(folder)
    if found is None or not found["complete"]:
        return False
    if found["made_from"] == request.made_from:
        return True
    there, asked = _flat(found["made_from"]), _flat(request.made_from)
    differ = [key for key in {**there, **asked} if there.get(key) != asked.get(key)]
    raise StoreError(
        f"{request.folder}: the folder holds {found.get('name')} with {_these(there, differ)}, and "
        f"{request.name} with {_these(asked, differ)} was asked for: ask for what it holds, choose "
        "another folder, or delete this one"
    )


def _refuse_file(folder: Path) -> None:
    if not path_of(folder, "the folder", StoreError).is_dir() and folder.exists():
        raise StoreError(f"{folder}: this is a file, expected a folder: choose another one")


def _flat(made_from: Mapping[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in made_from.items() if key != "options"}
    return {**made_from.get("options", {}), **rest}


def _these(values: Mapping[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{key}={values[key]!r}" for key in names if key in values) or "fewer options"


def _make_elsewhere(request: Request, watch: Watch) -> None:
    """Make the dataset in another process. Raises what that raises."""
    command = [sys.executable, "-m", "gnnjit.data.stored.prepare", json.dumps(asdict(request))]
    # What it prints beside its lines is of interest only where it fails.
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # closed where this process ends, which ends the other
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        ) as child:
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    _relay(json.loads(line), watch)
                child.wait()
            except BaseException:
                child.kill()
                child.wait()
                raise
        if child.returncode:
            printed.seek(0)
            raise _ended(request, child.returncode, printed)


def _relay(said: Mapping[str, Any], watch: Watch) -> None:
    if "error" in said:
        raise getattr(errors, said["error"])(said["message"])
    watch(said["stage"], said["done"], said["total"])


def _ended(request: Request, code: int, printed: IO[str]) -> StoreError:
    """The error of a process that could not tell what went wrong."""
    begin = f"{request.folder}: the process that prepared {request.name} "
    if code < 0:
        return StoreError(
            f"{begin}was killed ({signal.Signals(-code).name}), as the system does where memory is "
            "short: make room, and call again, which begins anew"
        )
    last = [line.strip() for line in printed if line.strip()][-1:]
    return StoreError(f"{begin}ended with {code}: {''.join(last) or 'it printed nothing'}")


def make(request: Request, watch: Watch) -> None:
    """Make the dataset in this process. Raises as `prepare` does."""
    started = time.perf_counter()
    with _store(Path(request.folder)) as store:
        if _holds(request):  # another process was quicker
            return
        _drop_arrays(store)
        watch("graph", 0, 1)
        source = _source(request)
        watch("graph", 1, 1)
        if request.normalize_features:
            source = replace(source, rows=_normalized(request.name, source.rows))
        stored = write(
            source,
            store,
            request.made_from,
            order=request.order,
            parts=PARTS,
            seed=SEED,
            watch=watch,
        )
        seconds = time.perf_counter() - started
        replace(stored, prepared_seconds=seconds, prepared_peak_bytes=peak_memory()).save()


def _store(folder: Path) -> DiskStore:
    """A store that has no arrays but those of a preparation that was stopped."""
    if not (folder / MANIFEST).exists():
        return DiskStore.create(folder)
    with contextlib.ExitStack() as undo:
        store = undo.enter_context(DiskStore.open(folder))
        if store.names() and describe(folder) is None:
            raise StoreError(
                f"{folder}: the folder holds a vertex store without a {DATASET}, with the arrays "
                f"{', '.join(store.names())}: choose another folder"
            )
        undo.pop_all()
        return store


def _drop_arrays(store: DiskStore) -> None:
    for name in sorted(set(ARRAYS) & set(store.names())):
        store.drop(name)


def _source(request: Request) -> Source:
    options = dict(request.options)
    try:
        if request.name == "communities":
            return _communities(options)
        dataset = open_dataset(request.name, request.data_dir, **options)
    except TypeError as error:
        raise DataError(
            f"{request.name}: an option has a value of the wrong type ({error})"
        ) from error
    assert isinstance(dataset, Dataset)
    return Source.of(dataset)


def _communities(options: dict[str, Any]) -> Source:
    """As `communities` gives it, without holding the features."""
    drawn = draw(**options)
    return Source(
        name="communities",
        num_features=drawn.centroids.shape[1],
        num_classes=drawn.centroids.shape[0],
        src=drawn.src,
        dst=drawn.dst,
        y=drawn.y,
        masks=drawn.masks,
        rows=drawn.rows(),
    )


def _normalized(
    name: str, blocks: Iterable[tuple[int, np.ndarray]]
) -> Iterator[tuple[int, np.ndarray]]:
    for first, rows in blocks:
        if (rows < 0).any():
            raise DataError(
                f"{name} has negative features, whose sum may be zero: pass "
                "normalize_features=False"
            )
        yield first, row_normalize(rows)


def peak_memory() -> int:
    """The most bytes of memory that this process has held.

    On Linux, what `getrusage` tells of a fresh process may be its parent's.
    """
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        found = re.search(r"VmHWM:\s*(\d+) kB", status)
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _end_with(parent: IO[str]) -> None:
    """End this process with the one that started it, so that the store is free."""
    parent.read()
    os._exit(1)


def main(text: str) -> int:
    """Make what a request asks for, and tell of it; the exit code."""
    threading.Thread(target=_end_with, args=(sys.stdin,), daemon=True).start()
    # Libraries of others print too: that goes where errors go.
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(**what: Any) -> None:
        channel.write(json.dumps(what) + "\n")
        channel.flush()

    try:
        make(
            Request(**json.loads(text)),
            lambda stage, done, total: tell(stage=stage, done=done, total=total),
        )
    except GnnjitError as error:
        tell(error=type(error).__name__, message=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
