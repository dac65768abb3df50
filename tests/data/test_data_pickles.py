import contextlib
import os
import pickle
from collections import OrderedDict, defaultdict

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.data.pickles import check_csr, load_pickle
from gnnjit.errors import DataError


class Bomb:
    """A pickle of it calls os.mkdir(path) when it is loaded by the standard unpickler."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_malicious_pickle_does_not_run(tmp_path, protocol):
    sign = tmp_path / "it-ran"
    raw = pickle.dumps({"a": [Bomb(str(sign))]}, protocol=protocol)
    with pytest.raises(DataError) as error:
        load_pickle(raw, "evil.x")
    assert not sign.exists()
    assert str(error.value) == (
        f"evil.x: the pickle asks for {os.mkdir.__module__}.mkdir, expected only NumPy arrays, "
        "SciPy CSR matrices, dicts and lists. The file is not this dataset; nothing in it was "
        "run. Get it from its original source."
    )


def test_the_bomb_is_a_real_one(tmp_path):
    pickle.loads(pickle.dumps(Bomb(str(tmp_path / "it-ran"))))
    assert (tmp_path / "it-ran").exists()


@pytest.mark.parametrize(
    "asked",
    [b"cbuiltins\neval\n", b"cnumpy\nload\n", b"cnumpy.testing\nrundocs\n", b"ccopyreg\n__all__\n"],
)
def test_globals_off_the_list_are_refused(asked):
    with pytest.raises(DataError, match=r"the pickle asks for \w+"):
        load_pickle(asked + b"(S'1'\ntR.", "evil.x")


def test_scipy_and_numpy_code_does_not_run_either(monkeypatch):
    """The stand-ins build the arrays; the classes named in the pickle are never called."""
    raw = pickle.dumps(sp.csr_matrix(np.eye(2)), protocol=2)
    monkeypatch.setattr(sp.csr_matrix, "__setstate__", pytest.fail, raising=False)
    assert load_pickle(raw, "f").dense().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("protocol", ["old", 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i4", ">i8", "|b1", "<u2", "<f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(dump_pickle, protocol, dtype, order):
    array = np.array([[0, 1, 200], [3, 255, 1]]).astype(dtype, order=order)
    got = load_pickle(dump_pickle(array, protocol), "f")
    np.testing.assert_array_equal(got, array, strict=True)


@pytest.mark.parametrize("protocol", ["old", 2, 5])
def test_matrices_come_back(dump_pickle, protocol):
    dense = np.array([[0, 2.5, 0], [0, 0, 0], [1, 0, -3]], np.float32)
    got = load_pickle(dump_pickle(sp.csr_matrix(dense), protocol), "f")
    assert got.shape == (3, 3)
    np.testing.assert_array_equal(got.dense(), dense, strict=True)


def test_entries_stored_twice_add_up():
    got = check_csr("f", np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2]), (1, 2))
    assert got.dense().tolist() == [[0, 3]]


@pytest.mark.parametrize("protocol", ["old", 2, 5])
@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda d: defaultdict(list, d)])
def test_dicts_come_back(dump_pickle, protocol, kind):
    value = {0: [1, 2], 1: [], 2: [0]}
    assert load_pickle(dump_pickle(kind(value), protocol), "f") == value


@pytest.mark.parametrize(
    ("data", "indices", "indptr", "shape"),
    [
        ([1.0], [5], [0, 1], (1, 3)),  # column out of range
        ([1.0], [-1], [0, 1], (1, 3)),
        ([1.0], [0], [0, 7], (1, 3)),  # pointer past the end
        ([1.0, 1.0], [0, 1], [0, 2, 1, 2], (3, 3)),  # pointer that falls
        ([1.0], [0], [0, 1], (4, 3)),  # too few rows
        ([1.0, 2.0], [0], [0, 1], (1, 3)),  # more data than columns
        ([1.0], [0.0], [0, 1], (1, 3)),  # columns that are not integers
        (["a"], [0], [0, 1], (1, 3)),
    ],
)
def test_inconsistent_matrix_is_refused(data, indices, indptr, shape):
    with pytest.raises(DataError) as error:
        check_csr("ind.x", np.array(data), np.array(indices), np.array(indptr), shape)
    assert str(error.value) == (
        "ind.x: the sparse matrix is inconsistent, expected row pointers that rise from 0 to "
        f"{len(data)} over {shape[0]} rows, and columns below {shape[1]}. The file is damaged; get "
        "it again."
    )


def test_inconsistent_pickled_matrix_names_the_file():
    matrix = sp.csr_matrix(np.eye(3))
    matrix.indices[0] = 100
    with pytest.raises(DataError, match=r"^ind\.cora\.x: the sparse matrix is inconsistent"):
        load_pickle(pickle.dumps(matrix), "ind.cora.x")


def test_arrays_of_text_are_refused():
    with pytest.raises(DataError, match="array of type 'U1', expected numbers"):
        load_pickle(pickle.dumps(np.array(["a"])), "f")


def test_not_a_pickle():
    with pytest.raises(DataError) as error:
        load_pickle(b"", "ind.cora.x")
    assert str(error.value) == (
        "ind.cora.x: not a readable pickle (EOFError: Ran out of input), expected a pickle of "
        "arrays; got 0 bytes. The file is cut short or another kind of file; get it again."
    )


_SAMPLE = pickle.dumps([sp.csr_matrix(np.eye(3)), np.arange(4), defaultdict(list)], protocol=2)


@given(st.integers(0, len(_SAMPLE) - 1))
def test_cut_short(length):
    with pytest.raises(DataError, match="not a readable pickle"):
        load_pickle(_SAMPLE[:length], "f")


def _read_or_refused(raw):
    """Any other error fails the test."""
    with contextlib.suppress(DataError):
        load_pickle(raw, "f")


@given(st.integers(0, len(_SAMPLE) - 1), st.integers(0, 255))
def test_a_wrong_byte_is_read_or_refused(place, byte):
    raw = bytearray(_SAMPLE)
    raw[place] = byte
    _read_or_refused(bytes(raw))


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(raw):
    _read_or_refused(raw)
