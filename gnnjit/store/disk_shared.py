"""A vertex store in a folder that several processes read at once."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NoReturn

from gnnjit.errors import StoreError
from gnnjit.store.disk import DiskStore, _read_manifest
from gnnjit.store.files import ArrayFile, open_complete


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
