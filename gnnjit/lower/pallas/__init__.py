"""Lowering a traversal to the GPU kernels of `gnnjit.pallas_kernels`."""

from gnnjit.lower.pallas.kernel import run, why_not

__all__ = ["run", "why_not"]
