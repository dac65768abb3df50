"""Aggregations on the CPU as generated machine code (LLVM), called through XLA's FFI."""

from gnnjit.lower.cpu.kernel import run, why_not

__all__ = ["run", "why_not"]
