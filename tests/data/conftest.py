"""Tiny datasets in the original file formats, and the way to the real ones where they are."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

_REPO = Path(__file__).resolve().parents[2]
_REAL = Path(os.environ.get("GNNJIT_DATA_DIR") or _REPO.parent / "shared" / "data")


@pytest.fixture(autouse=True)
def own_directories(monkeypatch, tmp_path):
    """No test reads the user's directory or writes the user's cache."""
    monkeypatch.delenv("GNNJIT_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def real(request):
    """real("cora/ind.cora.x") is the directory of the real files, or the test is skipped."""

    def find(*needed: str) -> Path:
        for name in needed:
            if not (_REAL / name).is_file():
                pytest.skip(f"the real dataset file {name} is not here")
        return _REAL

    return find


def dump(value, protocol: int | str) -> bytes:
    """Pickle as Python 3 does, or under the module names of the time of Python 2 ("old")."""
    if protocol != "old":
        return pickle.dumps(value, protocol=protocol)
    raw = pickle.dumps(value, protocol=2)
    raw = raw.replace(b"cscipy.sparse._csr\n", b"cscipy.sparse.csr\n")
    return raw.replace(b"cnumpy._core.", b"cnumpy.core.")


@pytest.fixture
def dump_pickle():
    return dump


def tiny_planetoid() -> dict:
    """12 vertices: 0-2 train, 3-6 more, 7-9 and 11 test; 10 has no features, as in Citeseer."""
    features = np.arange(55, dtype=np.float32).reshape(11, 5) % 4
    labels = np.eye(3, dtype=np.int32)[[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]]
    neighbours = defaultdict(list, {i: [(i + 1) % 12, (i + 11) % 12] for i in range(12)})
    neighbours[0] += [1, 1, 0]  # twice more, and a self loop
    neighbours[3] += [6]  # in one direction only
    return {
        "x": sp.csr_matrix(features[:3]),
        "allx": sp.csr_matrix(features[:7]),
        "tx": sp.csr_matrix(features[7:]),
        "y": labels[:3],
        "ally": labels[:7],
        "ty": labels[7:],
        "graph": neighbours,
        "test.index": [9, 7, 11, 8],
    }


@pytest.fixture
def planetoid_parts():
    return tiny_planetoid()


@pytest.fixture
def write_planetoid():
    """Write the eight files; a part that is bytes is written as it is, None is left out."""

    def write(folder: Path, parts: dict, protocol: int | str = 2) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in parts.items():
            if value is None:
                continue
            if key == "test.index" and not isinstance(value, bytes):
                value = "".join(f"{i}\n" for i in value).encode()
            raw = value if isinstance(value, bytes) else dump(value, protocol)
            (folder / f"ind.cora.{key}").write_bytes(raw)
        return folder

    return write


@pytest.fixture
def tu_texts():
    """Three graphs: an edge, a triangle, a lone vertex; edges out of the order of graphs."""
    return {
        "A": "3, 4\n4, 3\n1, 2\n2, 1\n4, 5\n5, 4\n3, 5\n5, 3\n",
        "graph_indicator": "1\n1\n2\n2\n2\n3\n",
        "graph_labels": "1\n-1\n1\n",
        "node_labels": "4\n7\n7\n7\n4\n9\n",
        "node_attributes": " 0.5, 1\n 1.5, 2\n 2.5, 3\n 3.5, 4\n 4.5, 5\n 5.5, 6\n",
        "edge_labels": "2\n2\n0\n0\n2\n2\n5\n5\n",
    }


@pytest.fixture
def write_tu():
    """Write the texts as a zip or, without a suffix, as a folder; None is left out."""

    def write(path: Path, texts: dict[str, str | None], name: str = "MUTAG") -> Path:
        files = {f"{name}_{part}.txt": text for part, text in texts.items() if text is not None}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".zip":
            with zipfile.ZipFile(path, "w") as archive:
                for file, text in files.items():
                    archive.writestr(f"{name}//{file}", text)
        else:
            path.mkdir(parents=True, exist_ok=True)
            for file, text in files.items():
                (path / file).write_text(text)
        return path

    return write
