"""Vertex stores on disk: pieces, files, one process."""

from __future__ import annotations

import collections
import errno
import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.errors import StoreError
from gnnjit.store import disk
from gnnjit.store.array_info import ArrayInfo
from gnnjit.store.disk import DiskStore
from gnnjit.store.store import GAP, PIECE, _runs

from .stores import ROWS, everything, file_of, put, refused, rewrite

pytestmark = pytest.mark.once


@given(
    rows=st.lists(st.integers(0, 3000), max_size=60).map(sorted),
    row_bytes=st.sampled_from([0, 1, 4096, 20000, PIECE // 2, 2 * PIECE]),
)
def test_rows_are_gathered_in_runs(rows, row_bytes):
    runs = list(_runs(np.array(rows, np.int64), row_bytes))
    assert [i for begin, end in runs for i in range(begin, end)] == list(range(len(rows)))
    for begin, end in runs:
        assert (rows[end - 1] + 1 - rows[begin]) * row_bytes <= max(PIECE, row_bytes)
        gaps = np.diff(rows[begin:end]) - 1
        assert (gaps * row_bytes <= GAP).all()


def test_neighbouring_rows_are_gathered_by_one_read(tmp_path, monkeypatch):
    calls = collections.Counter()
    preadv = os.preadv

    def counted(*arguments):
        calls["read"] += 1
        return preadv(*arguments)

    rows = np.arange(200_000, dtype=np.int32)
    with DiskStore.create(tmp_path / "store") as store:
        put(store, "x", rows)
        monkeypatch.setattr(disk.os, "preadv", counted)
        wanted = np.array([190_001, 7, 3, 190_000, 7, 5])
        np.testing.assert_array_equal(store.gather("x", wanted), wanted)
        assert calls["read"] == 2
        assert store.bytes_read == 4 * (5 + 2)  # rows 3 to 7, 190000 and 190001


def test_the_system_may_do_less_than_asked(tmp_path, monkeypatch):
    preadv, pwritev = os.preadv, os.pwritev
    monkeypatch.setattr(disk.os, "preadv", lambda fd, v, at: preadv(fd, [v[0][:7]], at))
    monkeypatch.setattr(disk.os, "pwritev", lambda fd, v, at: pwritev(fd, [v[0][:5]], at))
    with DiskStore.create(tmp_path / "store") as store:
        put(store, "x", ROWS)
        np.testing.assert_array_equal(everything(store, "x"), ROWS)
    np.testing.assert_array_equal(np.load(file_of(tmp_path / "store")), ROWS)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system does not tell")
@pytest.mark.parametrize("error", [None, errno.EAGAIN, errno.EOPNOTSUPP])
def test_what_a_view_would_wait_for(tmp_path, monkeypatch, error):
    """In one place of five MiB, the system answers with an error; with none, or before it or behind
    it, nothing is to be waited for."""
    asked = []

    def look(fd, buffers, at, flags=0):
        assert flags == os.RWF_NOWAIT
        asked.append(at)
        if error and 3 << 20 <= at < 4 << 20:
            raise OSError(error, os.strerror(error))
        return 1

    rows = np.zeros((5 << 16, 4), np.float32)
    with DiskStore.create(tmp_path / "store") as store:
        put(store, "x", rows)
        monkeypatch.setattr(disk.os, "preadv", look)
        assert store.waits("x", 0, len(rows)) == (error is not None)
        assert not store.waits("x", 0, 2 << 16)
        assert not store.waits("x", 4 << 16, len(rows) + 9)
        assert max(asked) == file_of(tmp_path / "store").stat().st_size - 1
        assert not store.waits("x", len(rows), len(rows) + 9)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system takes no advice")
def test_all_that_is_expected_is_asked_for(tmp_path, monkeypatch):
    """In pieces: of a large one, Linux reads what the disk takes at once."""
    asked = []
    monkeypatch.setattr(disk.os, "posix_fadvise", lambda fd, *call: asked.append(call))
    rows = np.zeros((5 << 16, 4), np.float32)
    with DiskStore.create(tmp_path / "store") as store:
        put(store, "x", rows)
        store.expect("x", 1 << 16, 4 << 16)
        store.expect("x", 7, 7)
    begin = file_of(tmp_path / "store").stat().st_size - rows.nbytes
    ends = [begin + (1 << 20), *(at + count for at, count, _ in asked)]
    assert [at for at, _, _ in asked] == ends[:-1]
    assert ends[-1] == begin + (4 << 20)
    assert {advice for _, _, advice in asked} == {os.POSIX_FADV_WILLNEED}
    assert max(count for _, count, _ in asked) <= 128 << 10


# On disk: one process, and the files of others


def test_what_is_not_sealed_is_not_complete(folder):
    with DiskStore.open(folder) as store:
        put(store, "y", ROWS)
        store.unseal("y")
        store.add("z", 6, (2,), "float32")
        store.write("z", 0, ROWS)
    with DiskStore.open(folder) as store:
        np.testing.assert_array_equal(everything(store, "x"), ROWS)
        for name in "yz":
            assert store.info(name) == ArrayInfo(6, (2,), np.dtype(np.float32), sealed=False)
            for call in (
                lambda name=name: store.read(name, 0, 0),
                lambda name=name: store.gather(name, [0]),
                lambda name=name: store.write(name, 0, ROWS),
                lambda name=name: store.seal(name),
                lambda name=name: store.unseal(name),
            ):
                with refused(
                    f"{{folder}}: the array '{name}' is not complete, the run stopped while "
                    "writing it: add it with replace=True and write it anew, or drop it"
                ):
                    call()
        put(store, "y", ROWS + 1)
        store.drop("z")
    with DiskStore.open(folder) as store:
        assert store.names() == ("x", "y")
        np.testing.assert_array_equal(everything(store, "y"), ROWS + 1)
    assert len(list(folder.glob("*.npy"))) == 2


def test_a_replaced_array_stays_until_the_new_one_is_sealed(folder):
    first = file_of(folder)
    with DiskStore.open(folder) as store:
        for shape in ((3,), (4,)):
            store.add("x", 2, shape, "int32", replace=True)
            assert everything(store, "x").shape == (2, *shape)
        assert len(list(folder.glob("x.*.npy"))) == 2
    assert first.exists()
    with DiskStore.open(folder) as store:
        assert file_of(folder) == first
        np.testing.assert_array_equal(everything(store, "x"), ROWS)
        put(store, "x", ROWS + 1)
        assert file_of(folder) != first


def test_dropping_frees_every_generation(folder):
    with DiskStore.open(folder) as store:
        store.add("x", 2, (3,), "int32", replace=True)
        store.drop("x")
        assert list(folder.glob("*.npy")) == []
        store.add("x", 1, (), "bool")


def test_leftovers_are_removed_and_other_files_are_not(folder):
    ours = file_of(folder)
    identity = json.loads((folder / "manifest.json").read_text())["id"]
    left = [f"y.{identity}00000000.npy", ".manifest.json.ab3_de5f"]
    others = ["y.npy", "y.20260101.npy", "y.0123456789abcdef.npy", "manifest.json.bak", "notes"]
    for name in (*left, *others):
        (folder / name).write_text("something")
    DiskStore.open(folder).close()
    expected = {*others, ours.name, "manifest.json", ".gnnjit-store.lock"}
    assert {path.name for path in folder.iterdir()} == expected


def test_one_store_at_a_time(folder):
    with DiskStore.open(folder):
        for again in (DiskStore.open, DiskStore.create):
            with refused(
                f"{{folder}}: process {os.getpid()} has this store open, and only one may: close "
                "it there first"
            ):
                again(folder)
    DiskStore.open(folder).close()


def test_stores_are_not_made_over_others(folder, tmp_path):
    with refused(
        "{folder}: the folder has a manifest.json; open the store with DiskStore.open, or choose "
        "another folder"
    ):
        DiskStore.create(folder)
    (tmp_path / "file_store").write_text("")
    with refused("{folder}: File exists: check the disk, and the rights on the folder"):
        DiskStore.create(tmp_path / "file_store")


def test_folders_without_a_store(tmp_path):
    folder = tmp_path / "store"
    for _ in ("no folder", "an empty one"):
        with refused(
            "{folder}: no vertex store, it has no manifest.json; DiskStore.create makes one"
        ):
            DiskStore.open(folder)
        folder.mkdir(exist_ok=True)
    manifest = folder / "manifest.json"
    manifest.write_text('{"name": "an app"}')
    with refused(
        "{folder}/manifest.json: not the manifest of a vertex store; choose another folder"
    ):
        DiskStore.open(folder)
    assert list(manifest.parent.iterdir()) == [manifest]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "JSONDecodeError"),
        ('{"kind": "gnnjit', "JSONDecodeError"),
        ("\udcff", "UnicodeDecodeError"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_manifests_that_are_not_json(folder, text, reason):
    (folder / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with refused(
        f"{{folder}}/manifest.json: the manifest is damaged (not JSON, {reason}): create the store "
        "anew"
    ):
        DiskStore.open(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "../.."}, "the manifest is damaged (no id, or no arrays): create the store anew"),
        ({"arrays": []}, "the manifest is damaged (no id, or no arrays): create the store anew"),
        (
            {"arrays": {"x": 1}},
            "the manifest is damaged (the entry of 'x'): create the store anew",
        ),
        (
            {"format": 2},
            "a vertex store of the format 2, expected 1: open it with the version of gnnjit that "
            "wrote it, or create a new one",
        ),
    ],
)
def test_manifests_of_another_form(folder, change, message):
    rewrite(folder, **change)
    with refused(f"{{folder}}/manifest.json: {message}"):
        DiskStore.open(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": -1},
        {"rows": 7},
        {"rows": True},
        {"shape": ["2"]},
        {"dtype": "float64"},
        {"bytes": 0},
        {"sealed": None},
        {"file": "../x.npy"},
    ],
)
def test_entries_that_are_damaged(folder, change):
    arrays = json.loads((folder / "manifest.json").read_text())["arrays"]
    rewrite(folder, arrays={"x": {**arrays["x"], **change}})
    with refused(
        "{folder}/manifest.json: the manifest is damaged (the entry of 'x'): create the store anew"
    ):
        DiskStore.open(folder)


def test_missing_files(folder):
    file_of(folder).unlink()
    with refused(
        "{folder}/x.#.npy: the file of a sealed array, float32[6, 2], is missing: put it back, or "
        "create the store anew"
    ):
        DiskStore.open(folder)


def test_truncated_files(folder):
    message = (
        "{folder}/x.#.npy: 170 bytes, expected 176: the file was truncated or changed: put the "
        "right one back, or create the store anew"
    )
    with DiskStore.open(folder) as store:
        os.truncate(file_of(folder), 170)
        with refused(message):
            everything(store, "x")
    with refused(message):
        DiskStore.open(folder)


def test_files_with_another_header(folder):
    np.save(file_of(folder), ROWS.view(np.int32))
    with refused(
        """{folder}/x.#.npy: the header b"{'descr': '<i4', 'fortran_order': False, """
        """'shape': (6, 2), }", expected b"{'descr': '<f4', 'fortran_order': False, """
        """'shape': (6, 2), }": put the right file back, or create the store anew"""
    ):
        DiskStore.open(folder)


def test_a_sealed_array_is_mapped_where_it_lies(tmp_path):
    """Also when the store is closed."""
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    with DiskStore.create(tmp_path / "store") as store:
        put(store, "x", rows)
        store.add("y", 3, (), "int32")
        found = store.map("x")
        with pytest.raises(StoreError, match=r"map\('y'\) of an array that is not sealed: seal it"):
            store.map("y")
        assert store.folder == tmp_path / "store"
    assert isinstance(found, np.memmap)
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, rows)
