"""FB15k-237: facts of Freebase without inverse relations, in OpenKE's files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from gnnjit.data.files import Fetch, fetch_url, locate
from gnnjit.data.links import LinkDataset
from gnnjit.data.tables import numbers_of_lines, text_of
from gnnjit.data.upstream import FB15K_237
from gnnjit.errors import DataError


def fb15k_237(
    data_dir: str | os.PathLike[str] | None = None, *, fetch: Fetch = fetch_url
) -> LinkDataset:
    """Facts (head, relation, tail) of Freebase.

    Toutanova & Chen, "Observed versus latent features for knowledge base and text inference"
    (2015), section 3.1.

    Args:
      data_dir: holds `train2id.txt`, `valid2id.txt` and `test2id.txt` (the number of facts, then a
        line "head relation tail" for each) and `entity2id_no_sort.txt` and
        `relation2id_no_sort.txt` (the number of names, then "name id"), or a folder `fb15k-237` of
        them; see `gnnjit.data.files`.
      fetch: downloads a URL; for tests.

    Returns:
      14,541 entities, 237 relations; 272,115 facts to train on, 17,535 for validation, 20,466 for
      the test.

    Raises:
      DataError: if a file is missing, damaged or inconsistent.
    """
    paths = locate("fb15k-237", "fb15k-237", tuple(FB15K_237.values()), data_dir, fetch)
    entities, relations = (
        _count(paths[f"{what}2id_no_sort.txt"]) for what in ("entity", "relation")
    )
    train, val, test = (
        _facts(paths[f"{part}2id.txt"], entities, relations) for part in ("train", "valid", "test")
    )
    return LinkDataset(
        "fb15k-237",
        entities,
        train,
        val,
        test,
        num_relations=relations,
        source="Toutanova & Chen 2015",
    )


def _count(path: Path) -> int:
    """How many names a file has, which its first line says."""
    lines = [line for line in text_of(path).split("\n") if line.strip()]
    said = _said(path, lines)
    if said != len(lines) - 1:
        raise DataError(
            f"{path}, line 1: says {said} names, and {len(lines) - 1} follow. The file is cut "
            "short; get it again."
        )
    return said


def _said(path: Path, lines: list[str]) -> int:
    first = lines[0].strip() if lines else ""
    if not first.isdecimal():
        raise DataError(
            f"{path}, line 1: got {first[:40]!r}, expected the number of lines that follow."
        )
    return int(first)


def _facts(path: Path, entities: int, relations: int) -> np.ndarray:
    """int32 [L, 3]. Raises DataError, naming the line, for an id that is out of range."""
    said = _said(path, text_of(path).split("\n", 1))
    facts = numbers_of_lines(path, columns=3, header=1)
    if said != len(facts):
        raise DataError(
            f"{path}, line 1: says {said} facts, and {len(facts)} follow. The file is cut short; "
            "get it again."
        )
    ends = np.array([entities, relations, entities])
    bad = facts >= ends
    if bad.any():
        i, column = (int(n) for n in np.argwhere(bad)[0])
        raise DataError(
            f"{path}, line {i + 2}: has the {('head', 'relation', 'tail')[column]} "
            f"{facts[i, column]}, expected 0 to {ends[column] - 1}."
        )
    return facts.astype(np.int32)
