"""Machine code of kernels, kept in the cache directory, so that a second process makes none.

A file holds one kernel: a line of JSON with its custom call's name, the lines of its LLVM IR (which
tell what it costs to compile) and a checksum, then the object code. Its name is a digest of all
that the code depends on: the program, the choices, the code generator's own source, LLVM, the
processor and XLA's structs. GNNJIT_KEEP_KERNELS=0 keeps none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from gnnjit import config
from gnnjit.ir.show import show
from gnnjit.lower.cpu import ffi_abi
from gnnjit.lower.cpu.spec import Spec
from gnnjit.system.cache import Unusable, write_atomically

FORMAT = 1

MOST = 1000
"""Files that are kept; the oldest are removed beyond."""


@dataclasses.dataclass(frozen=True)
class KeptKernel:
    """A compiled kernel. name: of its custom call. lines: of its IR. code: an object file."""

    name: str
    lines: int
    code: bytes


def key_of(spec: Spec) -> str | None:
    """What tells a kernel from all others in every process; None where the program holds what no
    text tells."""
    objects: list[Any] = []
    text = show(spec.body, locations=False, objects=objects)
    if objects:
        return None
    rest = (
        spec.reductions, spec.rows.value, tuple(d.name for d in spec.index_dtypes),
        dataclasses.astuple(spec.config), spec.partial, spec.starts,
    )  # fmt: skip
    return key(["traversal", text, repr(rest)])


def key(parts: Sequence[str]) -> str:
    """The key of a kernel that `parts` describe."""
    return hashlib.sha256(json.dumps([*parts, *_surroundings()]).encode()).hexdigest()


@functools.cache
def _surroundings() -> tuple[str, ...]:
    """What all kernels depend on."""
    source = hashlib.sha256()
    for folder in (Path(__file__).parent, Path(show.__code__.co_filename).parent):
        for file in sorted(folder.glob("*.py")):
            source.update(file.name.encode() + file.read_bytes())
    machine = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    versions = config.version(), llvmlite.__version__, repr(llvm.llvm_version_info)
    return (*versions, *machine, repr(ffi_abi.read_abi()), source.hexdigest())


def load(key: str | None) -> KeptKernel | None:
    """The kernel that is kept; None, with a warning where its file is damaged or another's."""
    path = _path(key)
    if path is None:
        return None
    try:
        raw = path.read_bytes()
        if hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
            raise Unusable("it is another user's")
        return _parsed(raw)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = f"cannot be read, {error.strerror}"
    except Unusable as error:
        why = str(error)
    except (ValueError, TypeError, KeyError) as error:
        why = f"{type(error).__name__}: {error}"
    warnings.warn(f"{path}: not a kernel of gnnjit ({why}); it is compiled anew", stacklevel=2)
    return None


def _parsed(raw: bytes) -> KeptKernel:
    head, _, code = raw.partition(b"\n")
    data = json.loads(head)
    if data["format"] != FORMAT:
        raise Unusable(f"it has the format {data['format']!r}, expected {FORMAT}")
    if data["checksum"] != _checksum(data, code):
        raise Unusable("its checksum is wrong: it is damaged")
    return KeptKernel(data["name"], data["lines"], code)


def _checksum(data: dict[str, Any], code: bytes) -> str:
    head = json.dumps([data["name"], data["lines"]])
    return hashlib.sha256(head.encode() + code).hexdigest()


def store(key: str | None, kernel: KeptKernel) -> None:
    """For later processes; where that cannot be written, they compile it again."""
    path = _path(key)
    if path is None:
        return
    data: dict[str, Any] = {"format": FORMAT, "name": kernel.name, "lines": kernel.lines}
    data["checksum"] = _checksum(data, kernel.code)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(data).encode() + b"\n" + kernel.code)
        _remove_oldest(path.parent)


def _remove_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.kernel"), key=lambda f: f.stat().st_mtime_ns)
    for file in files[: max(0, len(files) - MOST)]:
        file.unlink(missing_ok=True)


def _path(key: str | None) -> Path | None:
    if key is None or not config.KEEP_KERNELS:
        return None
    return config.cache_dir() / "kernels" / f"{key}.kernel"
