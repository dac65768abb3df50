"""Lowerings to XLA's own operations: rows by degree class, sorted segments, CSR products.

They run on every platform. `segment` takes every edge function; the others answer `why_not`.
"""
