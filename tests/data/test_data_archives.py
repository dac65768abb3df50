import contextlib
import io
import os
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.data.archives import read_npz, read_zip
from gnnjit.errors import DataError


def _zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in members:
            archive.writestr(name, raw)
    return path


def test_members_by_their_last_name(tmp_path):
    path = _zip(tmp_path / "a.zip", [("A//A_x.txt", b"1"), ("A/", b""), ("README", b"2")])
    assert read_zip(path) == {"A_x.txt": b"1", "README": b"2"}


@pytest.mark.parametrize("name", ["../x.txt", "a/../../x.txt", "/etc/x.txt", "a\\..\\x", "C:/x"])
def test_paths_out_of_the_archive_are_refused(tmp_path, name):
    path = _zip(tmp_path / "a.zip", [(name, b"1")])
    stored = zipfile.ZipFile(path).namelist()[0]
    with pytest.raises(DataError) as error:
        read_zip(path)
    assert str(error.value) == (
        f"{path}: holds the path {stored!r}, expected paths inside the archive. The file is not "
        "to be trusted; get it from its original source."
    )
    assert os.listdir(tmp_path) == ["a.zip"]


def test_a_zip_bomb_is_refused(tmp_path):
    path = _zip(tmp_path / "a.zip", [("a", b"0" * 600), ("b", b"0" * 600)])
    with pytest.raises(DataError) as error:
        read_zip(path, limit=1000)
    assert str(error.value) == (
        f"{path}: unpacks to more than 1,000 bytes (reached in b), expected a small dataset. Is "
        "it the right file?"
    )


def test_a_name_twice_is_refused(tmp_path):
    path = _zip(tmp_path / "a.zip", [("x/a", b"1"), ("y/a", b"2")])
    with pytest.raises(DataError, match="holds a twice, expected each file once"):
        read_zip(path)


@pytest.mark.parametrize("length", [0, 10, 60, 200])
def test_cut_short(tmp_path, length):
    path = _zip(tmp_path / "a.zip", [("a", os.urandom(300))])
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match="not a readable zip archive"):
        read_zip(path)


def test_damaged_contents(tmp_path):
    path = _zip(tmp_path / "a.zip", [("a", b"0123456789" * 100)])
    raw = bytearray(path.read_bytes())
    raw[34] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(DataError, match="not a readable zip archive"):
        read_zip(path)


def test_npz_of_numbers_and_of_objects(tmp_path):
    path = tmp_path / "a.npz"
    matrix = sp.csr_matrix(np.eye(3, dtype=np.float32))
    np.savez(path, m=np.array(matrix, dtype=object), n=np.arange(3), other=np.zeros(2))
    got = read_npz(path, ("m", "n", "absent"))
    assert set(got) == {"m", "n"}
    np.testing.assert_array_equal(got["m"].dense(), np.eye(3, dtype=np.float32), strict=True)
    np.testing.assert_array_equal(got["n"], np.arange(3), strict=True)


def test_npz_with_a_foreign_object(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, m=np.array(io.BytesIO(b""), dtype=object))
    with pytest.raises(DataError, match=r"a\.npz:m: the pickle asks for _io\.BytesIO"):
        read_npz(path, ("m",))


@pytest.mark.parametrize("raw", [b"", b"text", b"\x93NUMPY\x01\x00\x06\x00{'a':", b"\x93NUMPY\t\t"])
def test_npz_with_a_damaged_array(tmp_path, raw):
    path = _zip(tmp_path / "a.npz", [("m.npy", raw)])
    with pytest.raises(DataError, match=r"a\.npz:m: not a readable array .*expected the \.npy"):
        read_npz(path, ("m",))


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}",
         "8 bytes for float32 of the shape (1099511627776,)"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", "its shape is (-2,)"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (2,)}", "8 bytes for <U0 of"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2)}",
         "its shape is (True, 2)"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2," + "1," * 70 + ")}",
         "its shape is (2, 1, 1,"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
         "8 bytes for float32 of the shape (3,)"),
        ("{'descr': '|V8', 'fortran_order': False, 'shape': (1,)}", "8 bytes for |V8 of"),
        ("{'descr': 'f99', 'fortran_order': False, 'shape': (1,)}", "descr"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (", ""),
        ("{" * 3000, ""),
        ("\x00", ""),
        ("", ""),
        ("{'descr': '<f4', 'shape': (2,)}", ""),
        ("[]", ""),
    ],
)  # fmt: skip
def test_headers_are_compared_with_what_is_there(tmp_path, header, why):
    path = _zip(tmp_path / "a.npz", [("x.npy", _npy(header, b"12345678"))])
    with pytest.raises(DataError) as error:
        read_npz(path, ("x",))
    message = str(error.value)
    assert message.startswith(f"{path}:x: not a readable array (")
    assert message.endswith("), expected the .npy format. Get the file again.")
    assert why in message
    assert len(message) < 400


@pytest.mark.parametrize("shape", ["(0, 99999999999999999999)", "(2**70,)", str((0,) * 70)])
@pytest.mark.parametrize("dtype", ["<f4", "<U0"])
def test_sizes_that_numpy_does_not_have(tmp_path, shape, dtype):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}"
    path = _zip(tmp_path / "a.npz", [("x.npy", _npy(header))])
    with pytest.raises(DataError, match=r"not a readable array \(.*\), expected the .npy format"):
        read_npz(path, ("x",))


@pytest.mark.parametrize(
    "array",
    [np.arange(6).reshape(2, 3), np.asfortranarray(np.eye(3)), np.zeros((0, 4)), np.array(7),
     np.arange(3, dtype=">i2"), np.array([True, False])],
)  # fmt: skip
def test_arrays_come_back(tmp_path, array):
    np.savez(tmp_path / "a.npz", x=array)
    got = read_npz(tmp_path / "a.npz", ("x",))["x"]
    np.testing.assert_array_equal(got, array, strict=True)


@given(st.data())
def test_changed_bytes_are_named_or_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("changed") / "a.npz"
    np.savez(path, x=np.arange(20, dtype=np.float32), y=np.array(sp.eye(3, format="csr")))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    with contextlib.suppress(DataError):
        read_npz(path, ("x", "y"))
