"""Kernels that XLA knows by name: those that are compiled, and those that a thread compiles."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import llvmlite.binding as llvm

from gnnjit.lower.cpu import compile as compiler
from gnnjit.lower.cpu import kept_code
from gnnjit.lower.cpu.entry_points import COUNT
from gnnjit.system import turns

ENTRY = "entry"
"""The function of a kernel's object file that XLA calls."""

SELF_TEST = "gnnjit_cpu_self_test"

_names: set[str] = set()
_kept: list[llvm.ExecutionEngine] = []
"""For the life of the process: XLA holds addresses into them."""

_lock = threading.Lock()
_waiting: list[Future[Any]] = []


def register(name: str, code: bytes) -> None:
    """Register the kernel of an object file under a name; nothing where the name is known, since
    two programs may come to the same code."""
    with _lock:
        if name not in _names:
            _register(name, _load(code).get_function_address(ENTRY))


def register_later(name: str, make: Callable[[], bytes]) -> None:
    """Register a name for the kernel of the object file that `make` returns, in a thread. A program
    that runs the kernel waits for it there. Where `make` fails, a warning says why, and running the
    kernel is an error. Where the name is known, `make` runs all the same: it keeps the code."""
    with _lock:
        _waiting[:] = [f for f in _waiting if not f.done()]
        if name in _names:
            _waiting.append(_thread().submit(_in_short_turns, make))
            return
        points, number = _free_entry_point()
        _register(name, points.entries[number])
        _waiting.append(_thread().submit(_in_short_turns, _fill, points, number, name, make))


def finish() -> None:
    """Return when all kernels are compiled."""
    for future in list(_waiting):
        future.result()


def register_self_test() -> str:
    """The name of a kernel that adds the first entry of a float32 vector to each of its entries."""
    with _lock:
        if SELF_TEST not in _names:
            _register(SELF_TEST, _entry_points(0).self_test)
        return SELF_TEST


def _register(name: str, address: int) -> None:
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(address), platform="cpu", api_version=1)
    _names.add(name)


def _load(code: bytes) -> llvm.ExecutionEngine:
    engine = compiler.load(code)
    _kept.append(engine)
    return engine


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """One: LLVM, as Python calls it, does one thing at a time."""
    return ThreadPoolExecutor(1, thread_name_prefix="gnnjit-llvm")


def _in_short_turns(run: Callable[..., Any], *args: Any) -> None:
    with turns.short():
        run(*args)


_taken = 0


@dataclasses.dataclass(frozen=True)
class EntryPoints:
    """Addresses: LLVM answers no question while it compiles in another thread."""

    entries: tuple[int, ...]
    fill: int
    failing: int
    self_test: int


def _free_entry_point() -> tuple[EntryPoints, int]:
    """One that no name has, by its number."""
    global _taken
    module, number = divmod(_taken, COUNT)
    _taken += 1
    return _entry_points(module), number


@functools.cache
def _entry_points(module: int) -> EntryPoints:
    """The entry points from `module * COUNT` on."""
    address = _load(_code_of_entry_points()).get_function_address
    entries = tuple(address(f"entry_{number}") for number in range(COUNT))
    return EntryPoints(entries, *map(address, ("fill", "failing", "self_test")))


@functools.cache
def _code_of_entry_points() -> bytes:
    key = kept_code.key(["entry points"])
    found = kept_code.load(key)
    if found is None:
        text = compiler.emit_entry_points()
        code = compiler.object_code(text)
        found = kept_code.KeptKernel("entry points", text.count("\n"), code)
        kept_code.store(key, found)
    return found.code


def _fill(points: EntryPoints, number: int, name: str, make: Callable[[], bytes]) -> None:
    failed: Exception | None = None
    try:
        kernel = _load(make()).get_function_address(ENTRY)
    except Exception as error:
        kernel, failed = points.failing, error
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    signature(points.fill)(number, kernel)
    if failed is not None:  # after it: a warning may be made an error
        warnings.warn(f"LLVM failed to compile the CPU kernel {name}: {failed}", stacklevel=1)
