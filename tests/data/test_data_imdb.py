"""IMDB as MAGNN has it, and BlogCatalog, in small files of their formats."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from gnnjit.data import blogcatalog, imdb
from gnnjit.errors import DataError

HEADER = "color,director_name,actor_2_name,genres,actor_1_name,actor_3_name,plot_keywords\n"
ROWS = [
    "c,Ann,Kim,Drama|Action,Lee,,old love",
    "c,Ann,,Comedy,Kim,Lee,love story|love",
    'c,Bob,Max,"Western|Drama",Max,,story of a man',
    "c,Bob,,Western,Kim,,no class",
    "c,,Kim,Drama,Lee,,no director",
]


@pytest.fixture
def movies(tmp_path):
    (tmp_path / "movie_metadata.csv").write_text(HEADER + "\n".join(ROWS) + "\n")
    return tmp_path


def edges(graph, key):
    one = graph[key]
    return sorted(zip(np.asarray(one.src).tolist(), np.asarray(one.dst).tolist(), strict=True))


def test_metapaths(movies):
    data = imdb(movies, train=1, val=1)
    assert repr(data) == (
        "Dataset(imdb: 3 vertices in 1 types, 10 directed edges, 2 features, 3 classes, 1 train / "
        "1 val / 1 test)"
    )
    assert data.y.tolist() == [2, 1, 2]
    together = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)]
    assert edges(data.graph, "director") == together
    assert edges(data.graph, "actor") == together  # Kim, Lee; Max is in movie 2 twice
    np.testing.assert_array_equal(data.x["movie"], [[1, 0], [2, 1], [0, 1]])  # love, story


def test_people(movies):
    data = imdb(movies, metapaths=False, train=1, val=1)
    assert data.graph.num_nodes == {"movie": 3, "director": 2, "actor": 3}
    assert edges(data.graph, ("director", "in", "movie")) == [(0, 0), (0, 1), (1, 2)]
    assert edges(data.graph, ("movie", "by", "actor")) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)]
    np.testing.assert_allclose(data.x["director"], [[1.5, 0.5], [0, 1]])
    assert data.widths == {"movie": 2, "director": 2, "actor": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "line 1: has no column director_name, expected director_name, actor_1_name"),
        (HEADER + "c,Ann,Kim,Drama\n", "line 2: has fewer columns than line 1"),
        (HEADER + 'c,"Ann"x,Kim,Drama,Lee,,w\n', "line 2: .* expected comma-separated values"),
        (HEADER, "has no movie with a director, an actor and one of the genres Action"),
    ],
)
def test_damaged_movies(movies, text, message):
    (movies / "movie_metadata.csv").write_text(text)
    with pytest.raises(DataError, match=f"movie_metadata.csv.*{message}"):
        imdb(movies)


def test_a_split_leaves_some(movies):
    with pytest.raises(DataError, match="imdb: got train=400, val=400 and seed=1566911444, "):
        imdb(movies)


def write_blogs(folder, **changes):
    network = sp.csc_matrix(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], float))
    group = sp.csc_matrix(np.array([[1, 0], [1, 1], [0, 1]], float))
    scipy.io.savemat(folder / "blogcatalog.mat", {"network": network, "group": group} | changes)
    return folder


def test_blogcatalog(tmp_path):
    data = blogcatalog(write_blogs(tmp_path), train_fraction=0.34, val_fraction=0.33)
    assert repr(data) == (
        "Dataset(blogcatalog: 3 vertices, 4 directed edges, 0 features, 2 classes, 1 train / "
        "1 val / 1 test)"
    )
    assert data.y.tolist() == [[True, False], [True, True], [False, True]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group": np.ones((3, 2))}, "has no sparse matrix group, expected network and group"),
        ({"group": sp.csc_matrix(np.ones((2, 2)))}, "network is 3 x 3 and group 2 x 2, expected a"),
    ],
)
def test_damaged_blogcatalog(tmp_path, changes, message):
    with pytest.raises(DataError, match=f"blogcatalog.mat: {message}"):
        blogcatalog(write_blogs(tmp_path, **changes))


def test_no_mat_file(tmp_path):
    (tmp_path / "blogcatalog.mat").write_bytes(b"MATLAB")
    with pytest.raises(DataError, match=r"blogcatalog.mat: .* expected a MATLAB file of version 5"):
        blogcatalog(tmp_path)
    with pytest.raises(DataError, match=r"blogcatalog: got train_fraction=0\.9 and val"):
        blogcatalog(tmp_path, train_fraction=0.9)


def test_real(real):
    folder = real("imdb-magnn/movie_metadata.csv", "blogcatalog/blogcatalog.mat")
    data = imdb(folder, metapaths=False)
    assert data.graph.num_nodes == {"movie": 4278, "director": 2081, "actor": 5257}
    assert np.bincount(data.y).tolist() == [1135, 1584, 1559]
    assert list(data.graph.num_edges.values()) == [4278, 4278, 12828, 12828]
    assert data.num_features == 3066
    # What scikit-learn's train_test_split gives with the authors' seed.
    assert np.flatnonzero(data.train_mask)[:5].tolist() == [3, 35, 43, 47, 48]
    assert np.flatnonzero(data.val_mask)[:5].tolist() == [52, 57, 61, 63, 75]
    assert (data.train_mask.sum(), data.val_mask.sum(), data.test_mask.sum()) == (400, 400, 3478)
    data = blogcatalog(folder)
    assert (data.num_nodes, data.num_edges, int(data.y.sum())) == (10312, 667966, 14476)
