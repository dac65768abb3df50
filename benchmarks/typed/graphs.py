"""Typed graphs of any size, the same on both sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

Relation = tuple[str, str, str]

SCHEMA = (("a", "writes", "b"), ("b", "cites", "b"), ("b", "by", "a"), ("a", "keeps", "b"))
"""Of the models with several vertex types."""


@dataclasses.dataclass(frozen=True)
class Size:
    """vertices: of each type; edges: of all relations of `relations` together; width: of the
    features, before and after the layer; heads: of attention."""

    vertices: int
    edges: int
    width: int
    heads: int
    relations: int = len(SCHEMA)


@dataclasses.dataclass(frozen=True, eq=False)
class Typed:
    """Edges `int64[2, E]` by relation, and for each type features and cotangents of the result,
    `float32[N, width]`."""

    edges: Mapping[Relation, np.ndarray]
    features: Mapping[str, np.ndarray]
    cotangents: Mapping[str, np.ndarray]


def make(model: str, size: Size) -> Typed:
    """One vertex type where the model is R-GCN, of whose relations each has as many edges; two and
    the relations of `SCHEMA` for others."""
    rng = np.random.default_rng(0)
    n = size.vertices
    if model == "rgcn":
        types, relations = ("a",), [("a", f"r{i}", "a") for i in range(size.relations)]
    else:
        types, relations = ("a", "b"), list(SCHEMA)
    parts = np.array_split(rng.integers(0, n, (2, size.edges)), len(relations), axis=1)

    def rows() -> dict[str, np.ndarray]:
        return {t: rng.normal(size=(n, size.width)).astype(np.float32) for t in types}

    return Typed(dict(zip(relations, parts, strict=True)), rows(), rows())
