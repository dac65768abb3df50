"""What this machine's processor can do."""

from __future__ import annotations

import functools
import platform


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


@functools.cache
def features() -> frozenset[str]:
    """Names that LLVM has for what it does; none where LLVM is not there."""
    try:
        import llvmlite.binding as llvm
    except (ImportError, OSError):
        return frozenset()
    return frozenset(k for k, on in llvm.get_host_cpu_features().items() if on)


@functools.cache
def vector_bytes() -> int:
    """Register width; 32 where registers are narrower, so that loops are unrolled a little."""
    return 64 if "avx512f" in features() else 32
