import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnjit.data import communities
from gnnjit.data.communities import _root
from gnnjit.errors import DataError


def _edges(data):
    return np.asarray(data.graph.src), np.asarray(data.graph.dst)


def _arrays(data):
    masks = (data.train_mask, data.val_mask, data.test_mask)
    return (*_edges(data), data.x, data.y, *masks)


def _digest(data):
    digest = hashlib.sha256()
    for array in _arrays(data):
        little = array.astype(array.dtype.newbyteorder("<"))
        digest.update(f"{little.dtype.str}{little.shape}".encode())
        digest.update(little.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({"num_nodes": 3000}, "81cb277d564d2fa37650a7f00e354abba5f4642a917460810aa60402c69a4336"),
        (
            {
                "num_nodes": 500, "num_classes": 3, "num_features": 7, "avg_degree": 5.5,
                "seed": 11, "homophily": 0.9, "exponent": 2.2, "max_degree": 40,
                "separation": 1.0, "train_fraction": 0.3, "val_fraction": 0.2,
            },
            "db8b802aadccf36d03cc635803139acb22e321cdecc022bec146ea89bf950fcf",
        ),
    ],
)  # fmt: skip
def test_the_same_bits_everywhere(options, digest):
    assert _digest(communities(**options)) == digest


def test_the_graph_does_not_depend_on_the_features():
    a, b = communities(300), communities(300, num_features=3, separation=9, train_fraction=0.5)
    for one, other in zip(_edges(a), _edges(b), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(a.y, b.y)


def test_the_seed_changes_everything():
    a, b = communities(300, seed=1), communities(300, seed=2)
    assert not any(np.array_equal(p, q) for p, q in zip(_arrays(a), _arrays(b), strict=True))


@given(
    st.integers(1, 60), st.integers(1, 6), st.integers(1, 5), st.floats(0, 8), st.floats(2.05, 5),
    st.floats(0, 1), st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_well_formed_at_any_size(n, classes, features, degree, exponent, mixed, seed):
    classes = min(classes, n)
    data = communities(
        n, classes, features, min(degree, n - 1), seed, exponent=exponent,
        homophily=1 / classes + mixed * (1 - 1 / classes),
    )  # fmt: skip
    src, dst = _edges(data)
    keys = dst.astype(np.int64) * n + src
    assert (src != dst).all()
    assert (np.diff(keys) > 0).all()
    np.testing.assert_array_equal(np.sort(src.astype(np.int64) * n + dst), keys)
    assert np.ptp(np.bincount(data.y, minlength=classes)) <= 1
    assert (data.x.shape, data.x.dtype) == ((n, features), np.float32)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    assert (np.sum(masks, axis=0) == 1).all()


def test_degrees_and_homophily_are_as_asked():
    data = communities(20_000, num_features=1, avg_degree=12, homophily=0.7, exponent=2.5)
    src, dst = _edges(data)
    degree = np.bincount(dst, minlength=20_000)
    assert 11 < degree.mean() < 12.2
    assert (data.y[src] == data.y[dst]).mean() == pytest.approx(0.7, abs=0.02)
    assert degree.max() > 20 * degree.mean()
    assert np.median(degree) < 0.7 * degree.mean()
    # Of a Pareto law, P(degree > 4 d) / P(degree > d) = 4 ** (1 - exponent) = 1/8.
    tail = (degree > 80).sum() / (degree > 20).sum()
    assert tail == pytest.approx(1 / 8, rel=0.25)


def test_homophily_of_one_keeps_classes_apart():
    data = communities(400, homophily=1.0)
    src, dst = _edges(data)
    assert (data.y[src] == data.y[dst]).all()


def test_max_degree():
    data = communities(2000, max_degree=25)
    assert np.bincount(_edges(data)[1]).max() <= 25


def test_features_have_the_separation_asked_for():
    data = communities(40_000, 2, 32, avg_degree=1, separation=3.0, seed=3)
    means = np.stack([data.x[data.y == c].mean(axis=0) for c in range(2)])
    distance = np.linalg.norm(means[0] - means[1])
    assert 1.5 < distance < 4.5
    assert (data.x - means[data.y]).std() == pytest.approx(1, abs=0.01)


def _test_accuracy(data, x):
    """The accuracy of ridge regression onto the classes, fitted to the training vertices."""
    x = np.concatenate([x, np.ones((x.shape[0], 1))], axis=1)
    target = np.eye(data.num_classes)[data.y]
    train = data.train_mask
    gram = x[train].T @ x[train] + 10 * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, x[train].T @ target[train])
    right = (x @ weights).argmax(axis=1) == data.y
    return right[data.test_mask].mean()


def test_neighbours_help():
    data = communities()
    src, dst = _edges(data)
    degree = np.maximum(np.bincount(dst, minlength=data.num_nodes), 1)[:, None]

    def mean(x):
        out = np.zeros_like(x)
        np.add.at(out, dst, x[src])
        return out / degree

    one = mean(data.x)
    alone = _test_accuracy(data, data.x)
    together = _test_accuracy(data, np.concatenate([data.x, one, mean(one)], axis=1))
    assert alone < 0.55
    assert together > 0.85


@pytest.mark.parametrize("power", [0.05, 0.5, 2 / 3, 0.95])
def test_root_is_a_power(power):
    u = np.linspace(1e-6, 1, 1000)
    np.testing.assert_allclose(_root(u, power), u**power, rtol=4e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_nodes": 0}, "got num_nodes=0, expected 1 to 2**31 - 1."),
        ({"num_classes": 20_000}, "got num_classes=20000, expected 1 to num_nodes."),
        ({"num_features": 0}, "got num_features=0, expected at least 1."),
        ({"avg_degree": -1}, "got avg_degree=-1, expected 0 to below num_nodes."),
        ({"homophily": 0.05}, "got homophily=0.05, expected 1/num_classes to 1."),
        ({"exponent": 2.0}, "got exponent=2.0, expected a number above 2."),
        ({"separation": float("nan")}, "got separation=nan, expected a number of at least 0."),
        ({"num_nodes": 1e3}, "got num_nodes=1000.0, expected a whole number."),
        ({"num_classes": "5"}, "got num_classes='5', expected a whole number."),
        ({"exponent": [2, 3]}, "got exponent=[2, 3], expected a number."),
        ({"max_degree": 0}, "got max_degree=0, expected at least 1."),
        (
            {"train_fraction": 0.8, "val_fraction": 0.3},
            "got train_fraction=0.8, val_fraction=0.3, expected both at least 0 and at most 1 "
            "together.",
        ),
    ],
)
def test_refuses(options, message):
    with pytest.raises(DataError) as error:
        communities(**options)
    assert str(error.value) == f"communities: {message}"
