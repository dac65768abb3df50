"""The layers of `bench_layers.py`, once per implementation, on the same parameters.

Each module `with_*` has `build(layer, configuration, work, setting)`, which returns a `Case`. This
file says what exists without loading any of the libraries.
"""

from __future__ import annotations

import importlib.util

MODULES = {
    "gnnjit": "layers.with_gnnjit",
    "segment": "layers.with_segment",
    "pyg": "layers.with_pyg",
}

CONFIGURATIONS = {
    "gnnjit": ("default",),
    "segment": ("sorted",),
    "pyg": ("coo", "csr", "edge_index", "compiled", "product"),
}

_LINEAR = ("linear", "sum")
_SPARSE = ("gcn", "sage", "gin")


def why_not(layer: str, implementation: str, configuration: str) -> str | None:
    """A reason not to run this case, or None."""
    if implementation != "pyg":
        return None
    if importlib.util.find_spec("torch_geometric") is None:
        return "torch_geometric is not installed: pip install 'gnnjit[bench]'"
    if configuration == "product":
        return None if layer in _LINEAR else "the layer is not one CSR product"
    if layer in _LINEAR:
        return "compared with the CSR product itself"
    if configuration == "csr" and layer not in _SPARSE:
        return "PyG turns a sparse matrix back into edges for this layer"
    return None
