"""A vertex store in a folder: one `.npy` file an array, and a manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from gnnjit.errors import StoreError
from gnnjit.store.array_info import DTYPES, NAME, ArrayInfo
from gnnjit.store.files import (
    ArrayFile,
    cached,
    expect,
    failures,
    mapped,
    maps,
    open_complete,
    read_at,
    reserve,
    sync_folder,
    write_at,
)
from gnnjit.store.store import VertexStore
from gnnjit.system.cache import Manifest, write_atomically

MANIFEST = "manifest.json"
_MANIFEST = Manifest("manifest", "vertex store", 1, "create a new one", "create the store anew")
LOCK = ".gnnjit-store.lock"


class DiskStore(VertexStore):
    """Arrays in the files of a folder, made by `DiskStore.create` or `DiskStore.open`.

    Rows are read and written at their positions (preadv, pwritev), not through a map of the whole
    file: its pages would count as memory of the process, and a store is there to keep that below a
    budget. A `view` maps its own rows alone, for as long as it is held (on Linux).
    The system may still cache the files, in memory that it takes back when it is needed. Anyone may
    map a sealed array with `np.load(file, mmap_mode="r")`; one of bfloat16 comes as two-byte
    `void`, for `.view(ml_dtypes.bfloat16)`.

    After a crash at any moment, `open` gives a store in which every array is as it was when it was
    last sealed, or is known to be unsealed, so that reading it is an error. `seal` waits until the
    array is on the disk. A sealed array is never written over: `add` with `replace` writes another
    file, and the sealed one stays, for `open` to find, until the new one is sealed too. `unseal`
    gives that up: after a crash the array is lost.

    One process at a time may have the store open, by a lock on a file in the folder; all processes
    of a job as a `CollectiveStore`. StoreError tells what the disk refuses, and what in the folder
    is not as the manifest says.
    """

    def __init__(
        self, folder: Path, identity: str, *, shared: bool = False, lock: io.FileIO | None = None
    ) -> None:
        super().__init__(str(folder))
        self.shows_rows = maps()
        self._folder = folder
        self._identity = identity
        self._files: dict[str, ArrayFile] = {}
        self._kept: dict[str, ArrayFile] = {}  # sealed, behind an unsealed replacement
        self._lock = lock or _lock(folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)

    @classmethod
    def create(cls, folder: str | Path) -> DiskStore:
        """A store without arrays, in a folder that is made if need be, and may hold other files."""
        folder = Path(folder).absolute()
        with failures(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as undo:
            store = undo.enter_context(cls(folder, secrets.token_hex(4)))
            if (folder / MANIFEST).exists():
                raise StoreError(
                    f"{folder}: the folder has a {MANIFEST}; open the store with DiskStore.open, "
                    "or choose another folder"
                )
            store._commit({}, {})
            undo.pop_all()
            return store

    @classmethod
    def open(cls, folder: str | Path) -> DiskStore:
        """The store in `folder`, its sealed arrays checked for their files, sizes and headers.
        Files that a crash left of it are removed, and no others."""
        folder = Path(folder).absolute()
        _read_manifest(folder)  # Without one of ours, not even a lock is put into the folder.
        with contextlib.ExitStack() as undo:
            store = undo.enter_context(cls(folder, ""))
            store._identity, arrays = _read_manifest(folder)
            for name, (path, info) in arrays.items():
                stream = open_complete(path, info) if info.sealed else None
                store._files[name] = ArrayFile(path, info, stream)
            store._remove_leftovers()
            undo.pop_all()
            return store

    def add(
        self, name: str, num_rows: int, shape: Sequence[int], dtype: Any, *, replace: bool = False
    ) -> None:
        """A new array of zeros, `[num_rows, *shape]`, with its room on the disk reserved."""
        info = self._new(name, num_rows, shape, dtype, replace)
        old = self._files.get(name)
        kept = {**self._kept, name: old} if old is not None and old.info.sealed else self._kept
        file = self._make(name, info)
        try:
            self._commit({**self._files, name: file}, kept)
        except BaseException:
            if self._files.get(name) is not file:
                file.remove()
            raise
        if old is not None and not old.info.sealed:
            old.remove()

    def seal(self, name: str) -> None:
        """The array is complete, and on the disk: `open` will find it as it is now."""
        self._usable(name)
        file = self._files[name]
        if file.info.sealed:
            return
        with failures(file.path, file.info.bytes):
            os.fsync(file.fd)
        sealed = dataclasses.replace(file, info=dataclasses.replace(file.info, sealed=True))
        old = self._kept.get(name)
        self._commit({**self._files, name: sealed}, _without(self._kept, name))
        if old is not None:
            old.remove()

    def unseal(self, name: str) -> None:
        """The array may be written again; until it is sealed, a crash loses it."""
        self._usable(name)
        file = self._files[name]
        if file.info.sealed:
            info = dataclasses.replace(file.info, sealed=False)
            self._commit({**self._files, name: dataclasses.replace(file, info=info)}, self._kept)

    def drop(self, name: str) -> None:
        self.info(name)
        old = [files[name] for files in (self._files, self._kept) if name in files]
        self._commit(_without(self._files, name), _without(self._kept, name))
        for file in old:
            file.remove()

    def close(self) -> None:
        if self._lock.closed:
            return
        for file in (*self._files.values(), *self._kept.values()):
            file.close()
        # A process that was forked from this one would keep the lock with its copy of the file.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._lock.close()

    def _infos(self) -> Mapping[str, ArrayInfo]:
        if self._lock.closed:
            raise self._closed()
        return {name: file.info for name, file in self._files.items()}

    def _usable(self, name: str) -> ArrayInfo:
        info = self.info(name)
        if self._files[name].stream is None:
            raise StoreError(
                f"{self._where}: the array {name!r} is not complete, the run stopped while writing "
                "it: add it with replace=True and write it anew, or drop it"
            )
        return info

    @property
    def folder(self) -> Path:
        """The folder that the store is in."""
        return self._folder

    def map(self, name: str) -> np.ndarray:
        """A sealed array where it lies, read-only, as `numpy.load` maps it: what is read of it is
        memory that the system may take back. It may be held longer than the store is open. Raises
        StoreError for a name that the store does not know, and an array that is not sealed."""
        info = self._usable(name)
        if not info.sealed:
            raise StoreError(
                f"{self._where}: map({name!r}) of an array that is not sealed: seal it"
            )
        if not info.bytes:  # there is nothing to map
            return np.zeros((info.rows, *info.shape), info.dtype)
        with failures(self._files[name].path):
            found = np.load(self._files[name].path, mmap_mode="r")
        return found.view(info.dtype)

    def _read(self, name: str, start: int, out: np.ndarray) -> None:
        file = self._files[name]
        read_at(file, out.reshape(-1).view(np.uint8).data, file.begin_of(start))

    def _write(self, name: str, start: int, rows: np.ndarray) -> None:
        file = self._files[name]
        write_at(file, rows.reshape(-1).view(np.uint8).data, file.begin_of(start))

    def _waits(self, name: str, start: int, stop: int) -> bool:
        file = self._files[name]
        return not cached(file, file.begin_of(start), file.begin_of(stop))

    def _expect(self, name: str, start: int, stop: int) -> None:
        file = self._files[name]
        expect(file, file.begin_of(start), file.begin_of(stop))

    def _view(self, name: str, start: int, stop: int, until: int) -> np.ndarray | None:
        file = self._files[name]
        shape, dtype = (stop - start, *file.info.shape), file.info.dtype
        found = mapped(file, file.begin_of(start), file.begin_of(stop))
        return None if found is None else found.view(dtype).reshape(shape)

    def _make(self, name: str, info: ArrayInfo) -> ArrayFile:
        """A file of the whole length. Where that fails, none is left."""
        path = self._folder / f"{name}.{self._identity}{secrets.token_hex(4)}.npy"
        with failures(path, info.file_bytes):
            file = ArrayFile(path, info, io.FileIO(path, "x+"))
            try:
                reserve(file.fd, info.file_bytes, self._folder)
                write_at(file, memoryview(info.header()), 0)
            except BaseException:
                file.remove()
                raise
        return file

    def _commit(self, files: dict[str, ArrayFile], kept: dict[str, ArrayFile]) -> None:
        """From here on these are the arrays, also after a crash."""
        arrays = {name: _entry(file) for name, file in sorted({**files, **kept}.items())}
        raw = _MANIFEST.written({"id": self._identity, "arrays": arrays})
        with failures(self._folder / MANIFEST, len(raw)):
            write_atomically(self._folder / MANIFEST, raw)
            self._files, self._kept = files, kept
            sync_folder(self._folder)

    def _remove_leftovers(self) -> None:
        known = {file.path.name for file in self._files.values()}
        # The identity, which is random, tells our files from those of others and of other stores.
        ours = re.compile(
            rf"{NAME}\.{self._identity}[0-9a-f]{{8}}\.npy|\.{re.escape(MANIFEST)}\.[a-z0-9_]{{8}}"
        )
        for path in self._folder.iterdir():
            if path.name not in known and ours.fullmatch(path.name):
                os.unlink(path)


class SharedStore(DiskStore):
    """The sealed arrays of a `DiskStore`, to be read. Nobody writes while one is open: writers lock
    the folder for themselves, and readers for all readers."""

    @classmethod
    def open(cls, folder: str | Path) -> SharedStore:
        """Raises StoreError as `DiskStore.open` does; files that a crash left stay."""
        folder = Path(folder).absolute()
        _read_manifest(folder)  # without one of ours, not even a lock is put into the folder
        with contextlib.ExitStack() as undo:
            store = undo.enter_context(cls(folder, "", shared=True))
            _, arrays = _read_manifest(folder)
            for name, (path, info) in arrays.items():
                if info.sealed:
                    store._files[name] = ArrayFile(path, info, open_complete(path, info))
            undo.pop_all()
            return store

    def _new(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._refused()

    def _commit(self, *args: Any) -> NoReturn:
        raise self._refused()

    def _refused(self) -> StoreError:
        return StoreError(
            f"{self._where}: the store is open for reading in several processes: change it with "
            "DiskStore.open in one process"
        )


def _entry(file: ArrayFile) -> dict[str, Any]:
    info = file.info
    return {
        "file": file.path.name,
        "rows": info.rows,
        "shape": list(info.shape),
        "dtype": str(info.dtype),
        "bytes": info.file_bytes,
        "sealed": info.sealed,
    }


def _read_manifest(folder: Path) -> tuple[str, dict[str, tuple[Path, ArrayInfo]]]:
    """The identity of the store in `folder`; per array its file and what it is."""
    path = folder / MANIFEST
    with failures(path):
        data = _MANIFEST.read(path)
    if data is None:
        raise StoreError(
            f"{folder}: no vertex store, it has no {MANIFEST}; DiskStore.create makes one"
        )
    identity, arrays = str(data.get("id")), data.get("arrays")
    if not re.fullmatch("[0-9a-f]{8}", identity) or not isinstance(arrays, dict):
        raise _MANIFEST.damaged(path, "no id, or no arrays")
    return identity, {name: _parse(path, identity, name, entry) for name, entry in arrays.items()}


def _parse(path: Path, identity: str, name: str, entry: Any) -> tuple[Path, ArrayInfo]:
    match entry:
        case {
            "file": str(file),
            "rows": int(rows),
            "shape": [*shape],
            "dtype": str(dtype),
            "bytes": int(size),
            "sealed": bool(sealed),
        } if (
            re.fullmatch(NAME, name)
            and re.fullmatch(rf"{re.escape(name)}\.{identity}[0-9a-f]{{8}}\.npy", file)
            and dtype in DTYPES
            and all(type(n) is int and n >= 0 for n in (rows, *shape))
        ):
            info = ArrayInfo(rows, tuple(shape), DTYPES[dtype], sealed)
            if size == info.file_bytes:
                return path.parent / file, info
    raise _MANIFEST.damaged(path, f"the entry of {name!r}")


def _lock(folder: Path, kind: int) -> io.FileIO:
    """The lock file with this process's number in it, locked until it is closed."""
    path = folder / LOCK
    with contextlib.ExitStack() as undo, failures(path):
        stream = undo.enter_context(io.FileIO(path, "a+"))
        try:
            fcntl.flock(stream, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read(32).decode(errors="replace").strip()
            raise StoreError(
                f"{folder}: process {holder or 'unknown'} has this store open, and only one "
                "may: close it there first"
            ) from None
        stream.truncate(0)
        stream.write(b"%d\n" % os.getpid())
        undo.pop_all()
        return stream


def _without(files: dict[str, ArrayFile], name: str) -> dict[str, ArrayFile]:
    return {other: file for other, file in files.items() if other != name}
