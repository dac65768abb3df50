"""Movies of IMDB with their directors and actors, prepared as MAGNN's authors did."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from gnnjit.data.files import Fetch, fetch_url, locate
from gnnjit.data.splits import masks_from_indices
from gnnjit.data.tables import text_of
from gnnjit.data.types import Dataset
from gnnjit.data.upstream import IMDB
from gnnjit.errors import DataError
from gnnjit.graph import TypedGraph

GENRES = ("Action", "Comedy", "Drama")
AUTHORS_SEED = 1566911444
"""Of the split of MAGNN's authors."""
_ACTORS = ("actor_1_name", "actor_2_name", "actor_3_name")
_COLUMNS = ("director_name", *_ACTORS, "genres", "plot_keywords")


def imdb(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    metapaths: bool = True,
    train: int = 400,
    val: int = 400,
    seed: int = AUTHORS_SEED,
    fetch: Fetch = fetch_url,
) -> Dataset:
    """Movies, told apart as action, comedy or drama.

    Fu et al., "MAGNN: Metapath Aggregated Graph Neural Network for Heterogeneous Graph Embedding"
    (2020), section 5.1: movies with a director and a first actor; the class is the first of the
    three among a movie's genres; features are the words of its plot that two movies have, counted.
    A director's and an actor's are the mean of their movies'. This is not the IMDB of the
    heterogeneous graph benchmark.

    Args:
      data_dir: holds `movie_metadata.csv`, or a folder `imdb-magnn` with it; see
        `gnnjit.data.files`.
      metapaths: movies alone, joined where they share a director ("director") or an actor
        ("actor"), each with itself too, as HAN takes them (Wang et al. 2019, section 5.1). Else
        movies, directors and actors, joined by who directs and who plays, both ways.
      train, val: movies of each split, drawn at random; the others are the test.
      seed: of the split; by default that of the authors' preprocessing, which gives their split.
      fetch: downloads a URL; for tests.

    Returns:
      4,278 movies in 3 classes, 3,066 features; 2,081 directors and 5,257 actors.

    Raises:
      DataError: if the file is missing or damaged, or the split takes all movies.
    """
    path = locate("imdb", "imdb-magnn", (IMDB,), data_dir, fetch)[IMDB.name]
    movies = _movies(path)
    of_director = _numbered([[movie["director_name"]] for movie in movies])
    of_actor = _numbered([[movie[a] for a in _ACTORS] for movie in movies])
    x = _words([movie["plot_keywords"] for movie in movies])
    split = _split(len(movies), train, val, seed)
    if metapaths:
        features = {"movie": x.toarray()}
        graph = _of_metapaths({"director": of_director, "actor": of_actor})
    else:
        features = {"movie": x, "director": _mean(of_director, x), "actor": _mean(of_actor, x)}
        features = {t: rows.toarray() for t, rows in features.items()}
        graph = _of_people({"director": of_director, "actor": of_actor})
    return Dataset(
        name="imdb",
        graph=graph,
        x={t: rows.astype(np.float32) for t, rows in features.items()},
        y=np.array([movie["class"] for movie in movies], np.int32),
        train_mask=split.train,
        val_mask=split.val,
        test_mask=split.test,
        num_classes=len(GENRES),
        source="Fu et al. 2020, arXiv:2002.01680",
        target="movie",
    )


def _movies(path: Path) -> list[dict[str, Any]]:
    """The rows that have a director, a first actor and a class, with it."""
    reader = csv.DictReader(io.StringIO(text_of(path)), strict=True)
    found = []
    try:
        missing = [c for c in _COLUMNS if c not in (reader.fieldnames or ())]
        if missing:
            raise DataError(
                f"{path}, line 1: has no column {missing[0]}, expected {', '.join(_COLUMNS)}."
            )
        for row in reader:
            if any(row[c] is None for c in _COLUMNS):
                raise DataError(
                    f"{path}, line {reader.line_num}: has fewer columns than line 1. The file is "
                    "damaged; get it again."
                )
            genres = row["genres"].split("|")
            labels = [GENRES.index(genre) for genre in genres if genre in GENRES]
            if labels and row["director_name"] and row["actor_1_name"]:
                found.append({**row, "class": labels[0]})
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num + 1}: {error}, expected comma-separated values. The "
            "file is damaged; get it again."
        ) from error
    if not found:
        raise DataError(
            f"{path}: has no movie with a director, an actor and one of the genres "
            f"{', '.join(GENRES)}."
        )
    return found


def _numbered(names: Sequence[Sequence[str]]) -> sp.csr_matrix:
    """The 0/1 matrix [people, movies] of who takes part in what; people by name."""
    known = sorted({name for some in names for name in some if name})
    number = {name: i for i, name in enumerate(known)}
    pairs = sorted({(number[n], m) for m, some in enumerate(names) for n in some if n})
    rows, columns = np.array(pairs).T
    ones = np.ones(len(pairs), np.float32)
    return sp.csr_matrix((ones, (rows, columns)), (len(known), len(names)))


def _words(texts: Sequence[str]) -> sp.csr_matrix:
    """How often each movie has each word of two letters or more that two movies have: what
    scikit-learn's CountVectorizer(min_df=2) gives, which MAGNN's authors used."""
    counted = [Counter(re.findall(r"\b\w\w+\b", text.lower())) for text in texts]
    movies_with = Counter(word for words in counted for word in words)
    number = {w: i for i, w in enumerate(sorted(w for w, n in movies_with.items() if n >= 2))}
    entries = [
        (movie, number[word], count)
        for movie, words in enumerate(counted)
        for word, count in words.items()
        if word in number
    ]
    rows, columns, counts = np.array(entries).T if entries else np.zeros((3, 0), np.int64)
    return sp.csr_matrix(
        (counts.astype(np.float32), (rows, columns)), (len(texts), max(1, len(number)))
    )


def _mean(of: sp.csr_matrix, x: sp.csr_matrix) -> sp.csr_matrix:
    movies = np.asarray(of.sum(axis=1)).ravel()
    return sp.csr_matrix(sp.diags(1 / np.maximum(movies, 1)) @ of @ x)


def _of_metapaths(of: dict[str, sp.csr_matrix]) -> TypedGraph:
    edges = {}
    for name, matrix in of.items():
        shared = sp.coo_matrix(matrix.T @ matrix)
        edges["movie", name, "movie"] = shared.row.astype(np.int32), shared.col.astype(np.int32)
    return TypedGraph.from_edges(edges, {"movie": next(iter(of.values())).shape[1]})


def _of_people(of: dict[str, sp.csr_matrix]) -> TypedGraph:
    edges, counts = {}, {"movie": next(iter(of.values())).shape[1]}
    for name, matrix in of.items():
        pairs = sp.coo_matrix(matrix)
        people, movies = pairs.row.astype(np.int32), pairs.col.astype(np.int32)
        edges[name, "in", "movie"] = people, movies
        edges["movie", "by", name] = movies, people
        counts[name] = matrix.shape[0]
    return TypedGraph.from_edges(edges, counts)


def _split(movies: int, train: int, val: int, seed: int) -> Any:
    if train < 1 or val < 0 or train + val >= movies or not 0 <= seed < 2**32:
        raise DataError(
            f"imdb: got train={train}, val={val} and seed={seed}, expected at least 1, 0 and 0, "
            f"train and val together fewer than {movies} movies, and a seed below 2**32."
        )
    # As scikit-learn's train_test_split, called by the authors twice with one seed.
    order, again = (np.random.RandomState(seed).permutation(n) for n in (movies, movies - val))
    rest, test = order[val:], movies - val - train
    return masks_from_indices(movies, rest[again[test:]], order[:val], rest[again[:test]])
