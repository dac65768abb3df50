"""A store in a folder that all processes of a job have open."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gnnjit.distributed.process_group import ProcessGroup
from gnnjit.errors import StoreError
from gnnjit.store.array_info import DTYPES, ArrayInfo
from gnnjit.store.disk import LOCK, DiskStore
from gnnjit.store.files import ArrayFile, open_complete


class CollectiveStore(DiskStore):
    """A `DiskStore` that all connected processes have open, for graphs that they stream together.

    `gnnjit.distributed.connect` connects them. In a job of one process it is a `DiskStore`.

    All processes call `create` or `open`, and what changes which arrays there are (`add`, `seal`,
    `unseal`, `drop`, `once`), in the same order. When all have come, process 0 does it, and then
    all go on. Process 0 has the lock and writes the manifest, so that a crash of any process leaves
    a folder as a crash of a `DiskStore` does. `seal` waits until what each process has written is
    on the disk. Each process reads and writes rows by itself; it sees rows of another process after
    the next barrier.

    The folder is on one computer, or on a file system on which what one writes is what the others
    read at once (Lustre, GPFS, CephFS; not NFS, whose clients keep copies).
    """

    def __init__(
        self,
        folder: Path,
        identity: str,
        *,
        lock: io.FileIO | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(folder, identity, lock=lock)
        self.group = ProcessGroup.here() if group is None else group
        self._leading = True  # until all have it

    @classmethod
    def create(cls, folder: str | Path) -> CollectiveStore:
        """As `DiskStore.create`, together."""
        return cls.together(folder, super().create, ProcessGroup.here())

    @classmethod
    def open(cls, folder: str | Path) -> CollectiveStore:
        """As `DiskStore.open`, together."""
        return cls.together(folder, super().open, ProcessGroup.here())

    @classmethod
    def together(
        cls, folder: str | Path, make: Callable[[str | Path], DiskStore], group: ProcessGroup
    ) -> CollectiveStore:
        """The store that process 0 makes, in all processes of a group."""
        made: list[DiskStore] = []

        def lead() -> bytes:
            made.append(make(folder))
            return _view(made[0])

        view = group.lead(f"the store in {folder}", lead)
        if made:
            assert isinstance(made[0], cls)
            store = made[0]
            store.group = group
        else:
            path = Path(folder).absolute()
            _check_seen(path / LOCK, group)
            store = cls(path, "", lock=io.FileIO(path / LOCK, "r+"), group=group)
            store._follow(view)
        store._leading = False
        return store

    def once(self, work: Callable[[], object]) -> None:
        if self.group.alone or self._leading:
            work()
            return

        def lead() -> bytes:
            self._leading = True
            try:
                work()
            finally:
                self._leading = False
            return _view(self)

        view = self.group.lead(f"the arrays of {self._folder.name}", lead)
        if not self.group.leads:
            self._follow(view)

    def add(
        self, name: str, num_rows: int, shape: Sequence[int], dtype: Any, *, replace: bool = False
    ) -> None:
        add = super().add
        self.once(lambda: add(name, num_rows, shape, dtype, replace=replace))

    def seal(self, name: str) -> None:
        if not (self.group.alone or self._leading):
            self._usable(name)
            if not self._files[name].info.sealed:
                os.fsync(self._files[name].fd)  # what this process wrote
        seal = super().seal
        self.once(lambda: seal(name))

    def unseal(self, name: str) -> None:
        unseal = super().unseal
        self.once(lambda: unseal(name))

    def drop(self, name: str) -> None:
        drop = super().drop
        self.once(lambda: drop(name))

    def _follow(self, view: bytes) -> None:
        """Have the arrays that process 0 has."""
        open_now = {file.path: file for file in self._files.values()}
        files = {}
        for name, (file, rows, shape, dtype, sealed, usable) in json.loads(view).items():
            path = self._folder / file
            info = ArrayInfo(rows, tuple(shape), DTYPES[dtype], sealed)
            known = open_now.pop(path, None)
            stream = None if known is None else known.stream
            if usable and stream is None:
                _check_seen(path, self.group)
                stream = open_complete(path, info)
            files[name] = ArrayFile(path, info, stream)
        self._files = files
        for file in open_now.values():
            file.close()


def _check_seen(path: Path, group: ProcessGroup) -> None:
    if not path.exists():
        raise StoreError(
            f"{path}: process 0 has made this file, and process {group.process} does not see it: "
            "all processes need the same folder, on one computer or on a file system that shows "
            "all of them the same at once"
        )


def _view(store: DiskStore) -> bytes:
    """The arrays of a store, for other processes."""
    return json.dumps(
        {
            name: (
                file.path.name,
                file.info.rows,
                file.info.shape,
                str(file.info.dtype),
                file.info.sealed,
                file.stream is not None,
            )
            for name, file in store._files.items()
        }
    ).encode()
