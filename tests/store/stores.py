"""What the tests of the vertex stores share."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from gnnjit.errors import StoreError
from gnnjit.store.store import VertexStore

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)


def put(store: VertexStore, name: str, rows: np.ndarray) -> None:
    store.add(name, len(rows), rows.shape[1:], rows.dtype, replace=True)
    store.write(name, 0, rows)
    store.seal(name)


def everything(store: VertexStore, name: str) -> np.ndarray:
    return store.read(name, 0, store.info(name).rows)


def refused(message: str):
    """The whole message; `{folder}` stands for any path of a store."""
    pattern = re.escape(message).replace(re.escape("{folder}"), "[^:]*store")
    return pytest.raises(StoreError, match=f"^{pattern.replace(re.escape('#'), '[0-9a-f]{16}')}$")


def file_of(folder: Path, name: str = "x") -> Path:
    (found,) = folder.glob(f"{name}.*.npy")
    return found


def rewrite(folder: Path, **change) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
