import hashlib
import os
import urllib.error

import pytest

from gnnjit.config import cache_dir
from gnnjit.data.files import RemoteFile, fetch_url, find_local, locate
from gnnjit.data.upstream import CITATION_FULL, PLANETOID, TU
from gnnjit.errors import DataError

_RAW = b"the contents"
_SUM = hashlib.sha256(_RAW).hexdigest()
_FILE = RemoteFile("f.bin", "https://host/f.bin", len(_RAW), _SUM)
_HOW = "put the files in a directory and pass --data-dir DIR (data_dir=, or set GNNJIT_DATA_DIR)"


class Fetch:
    """A download that never touches the network, and counts."""

    def __init__(self, raw=_RAW):
        self.raw, self.calls = raw, []

    def __call__(self, url, size):
        self.calls.append((url, size))
        if isinstance(self.raw, Exception):
            raise self.raw
        return self.raw


def _refuse(url, size):
    pytest.fail(f"downloads {url}")


def test_downloads_once_into_the_cache(tmp_path):
    fetch = Fetch()
    got = locate("set", "folder", (_FILE,), None, fetch)
    assert got == {"f.bin": tmp_path / "cache" / "gnnjit" / "folder" / "f.bin"}
    assert got["f.bin"].read_bytes() == _RAW
    assert fetch.calls == [("https://host/f.bin", len(_RAW))]
    assert locate("set", "folder", (_FILE,), None, _refuse) == got


def test_a_damaged_cache_is_fetched_again():
    path = locate("set", "folder", (_FILE,), None, Fetch())["f.bin"]
    path.write_bytes(b"damaged")
    locate("set", "folder", (_FILE,), None, Fetch())
    assert path.read_bytes() == _RAW


def test_a_wrong_checksum_is_not_kept():
    wrong = b"something else"
    with pytest.raises(DataError) as error:
        locate("set", "folder", (_FILE,), None, Fetch(wrong))
    assert str(error.value) == (
        "set: https://host/f.bin gave 14 bytes with SHA-256 "
        f"{hashlib.sha256(wrong).hexdigest()}, expected 12 bytes with {_SUM}. Nothing was kept. "
        f"Try again, or {_HOW}."
    )
    assert not (cache_dir() / "folder").exists()


@pytest.mark.parametrize("reason", [urllib.error.URLError("no route"), TimeoutError("no route")])
def test_no_network(reason):
    with pytest.raises(DataError) as error:
        locate("set", "folder", (_FILE,), None, Fetch(reason))
    assert str(error.value) == (
        f"set: cannot download f.bin from https://host/f.bin ({reason}). Without a network, {_HOW}."
    )


def test_an_interrupted_write_leaves_nothing(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        locate("set", "folder", (_FILE,), None, Fetch())
    assert os.listdir(cache_dir() / "folder") == []


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written .*Set XDG_CACHE_HOME to a directory"):
        locate("set", "folder", (_FILE,), None, Fetch())


@pytest.mark.parametrize("folder", ["folder", "."])
@pytest.mark.parametrize("how", ["argument", "environment"])
def test_the_users_directory_is_read_as_it_is(tmp_path, monkeypatch, folder, how):
    path = tmp_path / "mine" / folder / "f.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"my own version")
    root = path.parent if folder == "." else path.parent.parent
    if how == "environment":
        monkeypatch.setenv("GNNJIT_DATA_DIR", str(root))
    given = root if how == "argument" else None
    assert locate("set", "folder", (_FILE,), given, _refuse) == {"f.bin": path}


def test_missing_in_the_users_directory(tmp_path):
    with pytest.raises(DataError) as error:
        find_local("set", tmp_path, "folder", "f.bin")
    assert str(error.value) == (
        f"set: f.bin is missing, expected {tmp_path}/folder/f.bin or {tmp_path}/f.bin. Add the "
        "file, or leave out --data-dir (and GNNJIT_DATA_DIR) to download it."
    )


def test_no_such_directory(tmp_path, monkeypatch):
    with pytest.raises(DataError) as error:
        locate("set", "folder", (_FILE,), tmp_path / "no", _refuse)
    assert str(error.value) == (
        f"{tmp_path}/no: no such directory, expected --data-dir to hold dataset files."
    )
    monkeypatch.setenv("GNNJIT_DATA_DIR", str(tmp_path / "no"))
    with pytest.raises(DataError, match="expected GNNJIT_DATA_DIR to hold dataset files"):
        locate("set", "folder", (_FILE,), None, _refuse)


def test_the_cache_is_in_the_home_without_xdg(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "gnnjit"


def test_only_https_is_fetched():
    with pytest.raises(DataError, match=r"got the URL http://host/f, expected https"):
        fetch_url("http://host/f", 1)


_ALL = [f for files in PLANETOID.values() for f in files.values()]
_ALL += [*CITATION_FULL.values(), *TU.values()]


@pytest.mark.parametrize("file", _ALL, ids=lambda f: f.name)
def test_every_upstream_file_is_pinned(file):
    assert file.url.startswith("https://raw.githubusercontent.com/")
    assert len(file.url.split("/")[5]) == 40  # a commit, not a branch
    assert file.url.endswith(f"/{file.name}")
    assert file.size > 0
    assert len(bytes.fromhex(file.sha256)) == 32


@pytest.mark.parametrize(
    ("path", "file"),
    [
        *((f"{name}/{f.name}", f) for name, fs in PLANETOID.items() for f in fs.values()),
        *((f"citationfull-{name}/{f.name}", f) for name, f in CITATION_FULL.items()),
        *((f"tu-{name.lower()}/{f.name}", f) for name, f in TU.items()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_real_files_have_the_pinned_sums(real, path, file):
    raw = (real(path) / path).read_bytes()
    assert (len(raw), hashlib.sha256(raw).hexdigest()) == (file.size, file.sha256)
