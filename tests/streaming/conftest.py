"""Stores to stream from."""

from store.conftest import folder, store

__all__ = ["folder", "store"]
