"""Vertex stores on a full disk, and after a crash."""

from __future__ import annotations

import collections
import errno
import mmap
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from gnnjit.errors import StoreError
from gnnjit.store import disk, files
from gnnjit.store.disk import DiskStore
from gnnjit.store.store import VertexStore

from .stores import ROWS, everything, file_of, put, refused

pytestmark = pytest.mark.once


@pytest.fixture
def full(monkeypatch):
    """The disk says that it has 1000 bytes free."""
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage(5000, 4000, 1000))


def fail(code: int):
    def call(*_):
        raise OSError(code, os.strerror(code))

    return call


NO_ROOM = (
    "{folder}/y.#.npy: No space left on device: 928 bytes were needed, and the disk has 1,000 "
    "bytes free: make room, or create the store on another disk"
)


@pytest.mark.parametrize("replace", [False, True])
def test_no_room_to_reserve(folder, full, monkeypatch, replace):
    with DiskStore.open(folder) as store:
        if replace:
            put(store, "y", ROWS)
        before = sorted(folder.iterdir())
        monkeypatch.setattr(disk, "reserve", fail(errno.ENOSPC))
        with refused(NO_ROOM):
            store.add("y", 200, (), "int32", replace=replace)
        assert sorted(folder.iterdir()) == before
        assert store.names() == (("x", "y") if replace else ("x",))
        np.testing.assert_array_equal(everything(store, "x"), ROWS)


@pytest.mark.parametrize("code", [None, errno.EOPNOTSUPP, errno.EINVAL])
def test_file_systems_that_cannot_reserve(folder, full, monkeypatch, code):
    if code is None:
        monkeypatch.delattr(disk.os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(disk.os, "posix_fallocate", fail(code), raising=False)
    with DiskStore.open(folder) as store:
        with refused(NO_ROOM.replace("928", "1,128")):
            store.add("y", 250, (), "int32")
        assert len(list(folder.glob("*.npy"))) == 1
        store.add("y", 200, (), "int32")
        assert file_of(folder, "y").stat().st_size == 928
        assert not everything(store, "y").any()


def test_no_room_while_writing(folder, full, monkeypatch):
    with DiskStore.open(folder) as store:
        store.add("y", 200, (), "int32")
        monkeypatch.setattr(disk.os, "pwritev", fail(errno.ENOSPC))
        with refused(NO_ROOM.replace("928", "400")):
            store.write("y", 0, np.ones(100, np.int32))
        assert store.bytes_written == 0


def test_no_room_for_the_manifest(folder, full, monkeypatch):
    with DiskStore.open(folder) as store:
        before = sorted(folder.iterdir())
        monkeypatch.setattr(disk, "write_atomically", fail(errno.ENOSPC))
        with pytest.raises(StoreError, match=r"manifest.json: No space left on device: \d+ bytes"):
            store.add("y", 1, (), "int32")
        assert store.names() == ("x",)
        assert sorted(folder.iterdir()) == before


def test_a_disk_that_fails(folder, monkeypatch):
    with DiskStore.open(folder) as store:
        monkeypatch.setattr(disk.os, "preadv", fail(errno.EIO))
        with refused(
            "{folder}/x.#.npy: Input/output error: check the disk, and the rights on the folder"
        ):
            everything(store, "x")


@pytest.mark.skipif(sys.platform != "linux", reason="rows are mapped on Linux alone")
@pytest.mark.parametrize("code", [errno.EIO, errno.EFAULT])
def test_a_disk_that_fails_while_rows_are_mapped(folder, monkeypatch, code):
    with DiskStore.open(folder) as store:
        monkeypatch.setattr(files.mmap, "mmap", refusing(code))
        with refused(
            "{folder}/x.#.npy: Input/output error: check the disk, and the rights on the folder"
        ):
            store.view("x", 0, 6)


def refusing(code: int) -> type[mmap.mmap]:
    class Refusing(mmap.mmap):
        def madvise(self, *_):
            raise OSError(code, os.strerror(code))

    return Refusing


@pytest.mark.skipif(sys.platform != "linux", reason="rows are mapped on Linux alone")
def test_a_system_that_cannot_read_a_map_ahead(folder, monkeypatch, request):
    request.addfinalizer(files.maps.cache_clear)
    files.maps.cache_clear()
    monkeypatch.setattr(files.mmap, "mmap", refusing(errno.EINVAL))
    with DiskStore.open(folder) as store:
        assert not store.shows_rows
        assert store.view("x", 0, 6) is None


@pytest.mark.skipif(sys.platform != "linux", reason="rows are mapped on Linux alone")
def test_a_file_that_is_truncated_is_not_mapped(folder):
    with DiskStore.open(folder) as store:
        os.truncate(file_of(folder), 150)
        with refused(
            "{folder}/x.#.npy: 150 bytes, expected 176: the file was truncated or changed: put "
            "the right one back, or create the store anew"
        ):
            store.view("x", 0, 6)


def test_every_moment_of_a_crash(tmp_path, monkeypatch):
    """What a kill leaves is what the folder is just before some system call that changes it."""
    folder, moments = tmp_path / "store", tmp_path / "moments"
    ones, twos = np.ones((5, 2), np.float32), np.full((3,), 2, np.int32)
    done: list[str] = []  # what had been completed, by moment
    state = "nothing"

    def watch(name: str) -> None:
        call = getattr(os, name)

        def watched(*arguments, **options):
            shutil.copytree(folder, moments / str(len(done)))
            done.append(state)
            return call(*arguments, **options)

        monkeypatch.setattr(os, name, watched)

    DiskStore.create(folder).close()
    for name in ("replace", "fsync", "pwritev", "posix_fallocate", "unlink"):
        if hasattr(os, name):
            watch(name)
    with DiskStore.open(folder) as store:
        put(store, "x", ones)
        state = "ones"
        put(store, "x", twos)
        state = "twos"
        store.drop("x")
        state = "dropped"
    monkeypatch.undo()
    assert len(done) > 20
    seen = collections.defaultdict(set)
    for moment, before in enumerate(done):
        with DiskStore.open(moments / str(moment)) as store:
            seen[before].add(found(store, ones, twos))
            assert len(list((moments / str(moment)).glob("*.npy"))) == len(store.names())
    # Each step of the run shows what it began with or what it ends with, and nothing between.
    assert seen["nothing"] == {"no array", "unsealed", "ones"}
    assert seen["ones"] == {"ones", "twos"}
    assert seen["twos"] == {"twos", "no array"}


def found(store: VertexStore, ones: np.ndarray, twos: np.ndarray) -> str:
    if "x" not in store.names():
        return "no array"
    if not store.info("x").sealed:
        return "unsealed"
    array = everything(store, "x")
    return "ones" if np.array_equal(array, ones) else "twos" if np.array_equal(array, twos) else "?"


CHILD = """
import itertools, sys
import numpy as np
from gnnjit.store.disk import DiskStore

store = DiskStore.create(sys.argv[1])
store.add("h", 1000, (16,), "float32")
store.write("h", 0, np.ones((500, 16), np.float32))
for k in itertools.count(1):
    store.add("x", 1000, (16,), "int32", replace=True)
    for start in range(0, 1000, 100):
        store.write("x", start, np.full((100, 16), k, np.int32))
    store.seal("x")
    print(k, flush=True)
"""


def test_a_killed_process(tmp_path):
    folder = tmp_path / "store"
    command = [sys.executable, "-c", CHILD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        sealed = [int(child.stdout.readline()) for _ in range(3)]
        with refused(
            f"{{folder}}: process {child.pid} has this store open, and only one may: close it "
            "there first"
        ):
            DiskStore.open(folder)
        child.send_signal(signal.SIGKILL)
        sealed += [int(line) for line in child.stdout]
    assert child.returncode == -signal.SIGKILL
    with DiskStore.open(folder) as store:
        assert store.names() == ("h", "x")
        x = everything(store, "x")
        # The kill may have come between the seal and its report.
        assert x[0, 0] in (sealed[-1], sealed[-1] + 1)
        assert (x == x[0, 0]).all()
        with pytest.raises(StoreError, match="the array 'h' is not complete, the run stopped"):
            everything(store, "h")
    assert len(list(folder.glob("*.npy"))) == 2


# ru_maxrss of a fresh process may be that of its parent before the exec: VmHWM is its own.
MEMORY = """
import re, sys
import numpy as np
from gnnjit.store.disk import DiskStore

def memory(what):
    with open("/proc/self/status") as status:
        return int(re.search(what + r":\\s*(\\d+) kB", status.read())[1]) / 1024

rows = 256 << 8  # of 4 KiB
piece = np.ones((1024, 1024), np.float32)
before = memory("VmRSS")
with DiskStore.create(sys.argv[1]) as store:
    store.add("x", rows, (1024,), "float32")
    for start in range(0, rows, 1024):
        store.write("x", start, piece)
    for start in range(0, rows, 1024):
        store.read("x", start, start + 1024, piece)
    store.gather("x", np.arange(0, rows, 64))
    print(memory("VmHWM") - before)
    whole = store.read("x", 0, rows)
    print(memory("VmHWM") - before)
    store.drop("x")
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_array(tmp_path):
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    streamed, whole = map(float, done.stdout.split())
    assert streamed < 64
    assert whole > 200  # the measure sees what is held at once
