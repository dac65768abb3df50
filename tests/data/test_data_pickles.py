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


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"r\xff\xff\xff\x7f.", "LONG_BINPUT at byte 0 names entry 2,147,483,647 of the memo"),
        (b"(p99999999\n.", "PUT at byte 1 names entry 99,999,999 of the memo"),
        (b"]p-3\n.", "PUT at byte 1 names entry -3 of the memo"),
        (b"Q.", "byte 0 is BINPERSID, expected an opcode of arrays"),
        (b"\x82\x01.", "byte 0 is EXT1, expected an opcode of arrays"),
        (b"]\xff.", "byte 1 is 0xff, expected an opcode of arrays"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7fa.", "BINBYTES8 at byte 0 runs past the end"),
        (b"X\xff\xff\xff\xffa.", "BINUNICODE at byte 0 runs past the end"),
        (b"cnumpy\nndarray.", "GLOBAL at byte 0 runs past the end"),
        (b"I12", "INT at byte 0 runs past the end"),
    ],
)
def test_opcodes_are_checked_before_they_run(raw, why):
    """The first of these made the C unpickler write gigabytes of its memo."""
    with pytest.raises(DataError) as error:
        load_pickle(raw, "f")
    assert f"Error: {why}), expected a pickle of arrays" in str(error.value)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_all_protocols_have_known_opcodes(protocol):
    value = {"a": [1, -70000, 2**70, 2.5, None, True, "é", (1, 2, 3, 4)], 2: list(range(300))}
    assert load_pickle(pickle.dumps(value, protocol), "f") == value


def test_text_of_python_2_that_is_not_ascii():
    assert load_pickle(b"S'\\x80\\xe9'\np1\n.", "f") == "\x80é"


@given(st.data())
def test_changed_bytes_are_named_or_read(data):
    raw = bytearray(_SAMPLE)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        load_pickle(bytes(raw), "f")


def test_a_matrix_of_any_width_is_not_made_dense():
    matrix = check_csr("f", np.ones(1), np.array([0]), np.array([0, 1]), (1, 2**62))
    with pytest.raises(DataError, match=r"^f: the matrix has 1 x 4,611,686,018,427,387,904 elem"):
        matrix.dense("f")
