"""Where dataset files come from: a directory of the user's, or a cache filled by download.

A directory given as `data_dir` or in GNNJIT_DATA_DIR is only read, never written, and its files
are checked for structure alone. Without one, files live in XDG_CACHE_HOME/gnnjit (~/.cache/gnnjit)
and are fetched once; none is used unless its SHA-256 matches.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnjit.config import cache_dir, path_of
from gnnjit.errors import DataError
from gnnjit.system.cache import write_atomically
from gnnjit.system.optional import optional

Fetch = Callable[[str, int], bytes]
"""fetch(url, size): the bytes behind a URL, at most size + 1 of them; OSError if there are none."""

_HOW = "put the files in a directory and pass --data-dir DIR (data_dir=, or set GNNJIT_DATA_DIR)"


@dataclass(frozen=True)
class RemoteFile:
    """A file that may be downloaded: where from, how many bytes, and their SHA-256."""

    name: str
    url: str
    size: int
    sha256: str


def fetch_url(url: str, size: int) -> bytes:
    """The bytes behind an https URL, at most size + 1 of them."""
    if not url.startswith("https://"):
        raise DataError(f"got the URL {url}, expected https.")
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read(size + 1)


def user_dir(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The user's directory: `data_dir`, else GNNJIT_DATA_DIR, else None. It must exist."""
    chosen = data_dir or os.environ.get("GNNJIT_DATA_DIR")
    if not chosen:
        return None
    given = "--data-dir" if data_dir else "GNNJIT_DATA_DIR"
    path = path_of(chosen, given, DataError)
    if not path.exists():
        raise DataError(f"{path}: no such directory, expected {given} to hold dataset files.")
    return path


def locate(
    dataset: str,
    folder: str,
    files: tuple[RemoteFile, ...],
    data_dir: str | os.PathLike[str] | None,
    fetch: Fetch = fetch_url,
) -> dict[str, Path]:
    """The path of each of a dataset's files, downloading into the cache where need be.

    Args:
      dataset: the dataset's name, for messages.
      folder: its folder below `data_dir` (optional there) and below the cache.
      files: what is needed; all must be found.
      data_dir: the user's directory, or None for GNNJIT_DATA_DIR or the cache.
      fetch: downloads a URL; tests pass their own.

    Returns:
      RemoteFile.name -> path.

    Raises:
      DataError: naming the missing file, the failed download or the wrong checksum.
    """
    root = user_dir(data_dir)
    if root is None:
        return {f.name: _cached(dataset, cache_dir() / folder / f.name, f, fetch) for f in files}
    return {f.name: find_local(dataset, root, folder, f.name) for f in files}


def find_local(dataset: str, root: Path, folder: str, name: str) -> Path:
    """`root/folder/name` or `root/name`, whichever exists, or DataError naming the file."""
    candidates = (root / folder / name, root / name)
    for path in candidates:
        if path.is_file():
            return path
    raise DataError(
        f"{dataset}: {name} is missing, expected {candidates[0]} or {candidates[1]}. Add the file, "
        "or leave out --data-dir (and GNNJIT_DATA_DIR) to download it."
    )


def library(module: str, asked: str, how: str) -> Any:
    """The module that `asked` needs. Raises DataError, which says `how` to get it or do without,
    where its library is not installed."""
    try:
        return optional(module, asked, how)
    except ImportError as error:
        raise DataError(f"{error}.") from error


def read_bytes(path: Path) -> bytes:
    """The file's bytes, or DataError naming the file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error


def _cached(dataset: str, path: Path, file: RemoteFile, fetch: Fetch) -> Path:
    if path.is_file() and _sha256(read_bytes(path)) == file.sha256:
        return path
    try:
        raw = fetch(file.url, file.size)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{dataset}: cannot download {file.name} from {file.url} ({error}). Without a network, "
            f"{_HOW}."
        ) from error
    found = _sha256(raw)
    if found != file.sha256:
        raise DataError(
            f"{dataset}: {file.url} gave {len(raw):,} bytes with SHA-256 {found}, expected "
            f"{file.size:,} bytes with {file.sha256}. Nothing was kept. Try again, or {_HOW}."
        )
    _write(path, raw)
    return path


def _write(path: Path, raw: bytes) -> None:
    """Write atomically: other processes see the whole file or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, raw)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror}). Set XDG_CACHE_HOME to a directory "
            f"that can, or {_HOW}."
        ) from error


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
