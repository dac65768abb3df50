"""What this machine's processor can do."""

from __future__ import annotations

import functools
import platform

import llvmlite.binding as llvm


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


@functools.cache
def features() -> frozenset[str]:
    return frozenset(k for k, on in llvm.get_host_cpu_features().items() if on)
