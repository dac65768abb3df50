"""JSON files for later processes: caches of what was measured, and manifests of folders.

A file is written whole or not at all. One that is missing is no news; one that is damaged, of
another format or for something else raises `Unusable`, and a cache ignores it with a warning.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from gnnjit import config
from gnnjit.errors import GnnjitError, StoreError

T = TypeVar("T")


class Unusable(ValueError):
    """Why a file is not what was looked for, as a part of a message."""


class _NotJSON(Unusable):
    """`short`: without the words of the parser."""

    def __init__(self, error: Exception) -> None:
        self.short = f"not JSON, {type(error).__name__}"
        super().__init__(f"{self.short}: {error}")


def read(path: Path, *, finite: bool = True) -> Any:
    """What a JSON file holds, with `finite` numbers alone. Raises OSError and Unusable."""
    text = path.read_bytes()
    try:
        return json.loads(text.decode(), parse_constant=_no_number if finite else None)
    except Unusable:
        raise
    except (ValueError, RecursionError) as error:
        raise _NotJSON(error) from error


def _no_number(text: str) -> NoReturn:
    raise Unusable(f"it holds {text}, expected finite numbers")


def write(path: Path, data: Any) -> None:
    """A file of the cache directory, atomically; its directory is made. Raises OSError, and
    ValueError for a number that JSON has no word for."""
    text = json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def write_atomically(path: Path, raw: bytes) -> None:
    """Others see the old file or the whole new one, also after a crash. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path: Path, parse: Callable[[Any], T], what: str, do: str) -> T | None:
    """What `parse` makes of a file; None where there is none, and, with a warning, where it is not
    `what` was looked for: the warning ends with what happens now, or what to `do`. `parse` raises
    Unusable, another error of gnnjit, or what Python raises for data of another form."""
    try:
        return parse(read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = f"cannot be read, {error.strerror}"
    except (Unusable, GnnjitError) as error:
        why = str(error)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
    warnings.warn(f"{path}: not {what} ({why}); it is ignored{do}", stacklevel=3)
    return None


# ------------------------------------------------------------------------------------- one entry


def digest(data: Any) -> str:
    """Equal for equal data."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_sealed(path: Path, format: int, key: Mapping[str, Any], fields: dict[str, Any]) -> None:
    """A file with a format, what it is for (`key`), and a checksum. Raises as `write`."""
    data = {"format": format, **key, **fields}
    write(path, {**data, "checksum": digest(data)})


def unsealed(data: Any, format: int, key: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of a file of `write_sealed`. Raises Unusable where it is damaged, or of another
    format or key."""
    if not isinstance(data, dict) or "format" not in data:
        raise Unusable("it has no format")
    if data["format"] != format:
        raise Unusable(f"it has the format {data['format']!r}, expected {format}")
    if data.pop("checksum", None) != digest(data):
        raise Unusable("its checksum is wrong: it is damaged, or was edited")
    found = {name: data.get(name) for name in key}
    if found != key:
        raise Unusable(_difference(found, key))
    return data


def _difference(found: Mapping[str, Any], key: Mapping[str, Any]) -> str:
    """Each part of a key that is another one; an entry of a key may have parts of its own."""
    parts: list[str] = []
    for name, expected in key.items():
        there = found[name]
        if isinstance(expected, dict) and not isinstance(there, dict):
            return "it does not say what it is for"
        pairs = {name: (there, expected)}
        if isinstance(expected, dict):
            pairs = {k: (there.get(k), v) for k, v in expected.items()}
        parts += [f"{k} {a!r}, expected {b!r}" for k, (a, b) in pairs.items() if a != b]
    return f"it is for {'; '.join(parts) or 'more than its key'}"


# ---------------------------------------------------------------------------------- many entries


@dataclasses.dataclass(frozen=True)
class Table(Generic[T]):
    """Entries by key, in one file of the cache directory.

    name: of the entries, and of the file, without its ending. parse, dump: of one entry, from and
    to what JSON can say; `parse` raises ValueError, TypeError, KeyError or AttributeError.
    """

    name: str
    parse: Callable[[str, Any], T]
    dump: Callable[[T], Any]
    format: int = 1

    def path(self) -> Path:
        return config.cache_dir() / f"{self.name}.json"

    def load(self) -> dict[str, T]:
        """Everything stored; nothing, with a warning, where the file is damaged or not ours."""
        file = self.path()
        try:
            version = (str(file), file.stat().st_mtime_ns)
        except OSError:
            return {}
        if version not in _loaded:
            what = f"a table of gnnjit's {self.name}"
            found = load(file, self._parse, what, ", and written anew at the next tuning")
            _loaded[version] = found or {}
        return _loaded[version]

    def store(self, key: str, entry: T) -> None:
        """Beside what is stored, atomically; a warning where that cannot be written."""
        file = self.path()
        entries = {**self.load(), key: entry}
        dumped = {k: self.dump(v) for k, v in entries.items()}
        try:
            write(file, {"format": self.format, self.name: dumped})
        except OSError as error:
            warnings.warn(
                f"{file}: cannot be written ({error.strerror}); the {self.name} are timed again "
                "next time. Set XDG_CACHE_HOME to a directory that can",
                stacklevel=2,
            )

    def _parse(self, data: Any) -> dict[str, T]:
        if data["format"] != self.format:
            raise Unusable(f"format {data['format']}, expected {self.format}")
        return {k: self.parse(k, v) for k, v in data[self.name].items()}


_loaded: dict[tuple[str, int], dict[str, Any]] = {}
"""Tables by file and time of its last change."""


# ------------------------------------------------------------------------------------- manifests


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A file that says what the folder around it holds.

    noun, of: what messages call it: the `noun` of a `of`. format: its version. otherwise: what to
    do about another version. repair: what to do about a damaged file.
    """

    noun: str
    of: str
    format: int
    otherwise: str
    repair: str

    def read(self, path: Path) -> dict[str, Any] | None:
        """What it says; None where there is none. Raises OSError, and StoreError where it is
        damaged, of another format, or not ours."""
        try:
            data = read(path, finite=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except _NotJSON as error:
            raise self.damaged(path, error.short) from error
        if not isinstance(data, dict) or data.get("kind") != f"gnnjit {self.of}":
            raise StoreError(f"{path}: not the {self.noun} of a {self.of}; choose another folder")
        if data.get("format") != self.format:
            raise StoreError(
                f"{path}: a {self.of} of the format {data.get('format')!r}, expected "
                f"{self.format}: open it with the version of gnnjit that wrote it, or "
                f"{self.otherwise}"
            )
        return data

    def written(self, fields: Mapping[str, Any]) -> bytes:
        """The file that says this, for `write_atomically`."""
        data = {"kind": f"gnnjit {self.of}", "format": self.format, **fields}
        return (json.dumps(data, indent=1) + "\n").encode()

    def damaged(self, path: Path, why: str) -> StoreError:
        return StoreError(f"{path}: the {self.noun} is damaged ({why}): {self.repair}")
