import io
import os
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp

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
