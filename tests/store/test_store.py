"""Vertex stores in memory and on disk: the same arrays, through errors, crashes and full disks."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.errors import GnnjitError, StoreError
from gnnjit.store.array_info import ALIGNED, DTYPES, ArrayInfo, aligned
from gnnjit.store.disk import DiskStore
from gnnjit.store.memory import HostStore
from gnnjit.store.store import VertexStore

from .stores import ROWS, everything, file_of, put, refused

pytestmark = pytest.mark.once

NAMES = st.sampled_from(["x", "h.1", "-_"])
SHAPES = st.sampled_from([(), (1,), (3,), (2, 2), (0,)])
CALLS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "read", "view", "write", "keep", "gather", "drop", "seal", "unseal"]
        ),
        NAMES,
        st.tuples(st.integers(0, 30), SHAPES, st.sampled_from(sorted(DTYPES))),
        st.integers(0, 2**32 - 1),
    ),
    max_size=30,
)


def look(store: VertexStore, name: str, array: np.ndarray, start: int, stop: int, do: str) -> None:
    if do == "read":
        got = store.read(name, start, stop)
        np.testing.assert_array_equal(got, array[start:stop], strict=True)
        got[...] = 1  # a copy: the store does not see it
        return
    behind = len(array) % 3
    got = store.view(name, start, stop + behind)
    want = np.concatenate([array, np.zeros_like(array, shape=(behind, *array.shape[1:]))])
    if start * store.info(name).row_bytes % ALIGNED:
        assert got is None
    elif got is not None:
        np.testing.assert_array_equal(got, want[start : stop + behind], strict=True)
        assert not got.flags.writeable


def apply(store: VertexStore, oracle: dict[str, np.ndarray], call) -> None:
    do, name, (count, shape, dtype), seed = call
    rng = np.random.default_rng(seed)
    if do == "add":
        store.add(name, count, shape, dtype, replace=True)
        oracle[name] = np.zeros((count, *shape), DTYPES[dtype])
        return
    if name not in oracle:
        return
    array = oracle[name]
    start, stop = sorted(rng.integers(0, len(array) + 1, size=2).tolist())
    if do in ("read", "view"):
        look(store, name, array, start, stop, do)
    elif do == "write" and not store.info(name).sealed:
        rows = rng.integers(0, 99, size=array[start:stop].shape).astype(array.dtype)
        store.write(name, start, rows)
        array[start:stop] = rows
        rows[...] = 1
    elif do == "keep" and not store.info(name).sealed:
        rows = rng.integers(0, 99, size=(stop - start + count % 3, *array.shape[1:]))
        rows = rows.astype(array.dtype)
        if not store.keep(name, start, rows, stop - start):
            store.write(name, start, rows[: stop - start])
        array[start:stop] = rows[: stop - start]
    elif do == "gather":
        rows = rng.integers(0, max(1, len(array)), size=count if len(array) else 0)
        got = store.gather(name, rows)
        np.testing.assert_array_equal(got, array[rows], strict=True)
    elif do == "drop":
        store.drop(name)
        del oracle[name]
    elif do in ("seal", "unseal"):
        getattr(store, do)(name)
        assert store.info(name).sealed == (do == "seal")


LONG = "'" + "x" * 37 + "..." + "x" * 38 + "'"
"""201 letters, in a message."""


@pytest.mark.parametrize("kind", ["host", "disk"])
@given(calls=CALLS)
def test_a_store_is_a_dict_of_arrays(kind, tmp_path_factory, calls):
    folder = tmp_path_factory.mktemp("dict") / "store"
    oracle: dict[str, np.ndarray] = {}
    with HostStore() if kind == "host" else DiskStore.create(folder) as store:
        for call in calls:
            apply(store, oracle, call)
        assert store.names() == tuple(sorted(oracle))
        for name, array in oracle.items():
            np.testing.assert_array_equal(everything(store, name), array, strict=True)
            store.seal(name)
    if kind == "disk":
        with DiskStore.open(folder) as store:
            assert store.names() == tuple(sorted(oracle))
            for name, array in oracle.items():
                np.testing.assert_array_equal(everything(store, name), array, strict=True)
                plain = np.load(file_of(folder, name), mmap_mode="r" if array.size else None)
                np.testing.assert_array_equal(plain.view(array.dtype), array, strict=True)


def test_info(store):
    store.add("x", 5, (2, 3), "bfloat16")
    assert store.info("x") == ArrayInfo(5, (2, 3), np.dtype(ml_dtypes.bfloat16), sealed=False)
    assert (store.info("x").row_bytes, store.info("x").bytes) == (12, 60)
    assert str(store.info("x")) == "bfloat16[5, 2, 3]"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.dtype("int32"), bool])
def test_dtypes_are_given_as_numpy_takes_them(store, dtype):
    store.add("x", 1, (), dtype)
    assert store.read("x", 0, 1).dtype == np.dtype(dtype)


def test_reading_into_an_array(store):
    put(store, "x", ROWS)
    out = np.zeros((5, 2), np.float32)
    got = store.read("x", 1, 4, out[1:4])
    assert np.shares_memory(got, out)
    np.testing.assert_array_equal(out, [[0, 0], *ROWS[1:4], [0, 0]])


def test_rows_are_seen_where_they_lie(store):
    rows = np.arange(64, dtype=np.float32).reshape(32, 2)
    put(store, "x", rows)
    view = store.view("x", 8, 24)
    if view is None:
        assert not isinstance(store, HostStore)
        assert sys.platform != "linux"
        return
    np.testing.assert_array_equal(view, rows[8:24], strict=True)
    assert view.ctypes.data % ALIGNED == 0
    assert store.view("x", 1, 24) is None  # not at a multiple
    assert store.bytes_read == view.nbytes
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    store.unseal("x")
    store.write("x", 8, -rows[8:16])
    np.testing.assert_array_equal(view, [*-rows[8:16], *rows[16:24]])
    store.drop("x")
    np.testing.assert_array_equal(view, [*-rows[8:16], *rows[16:24]])


def test_arrays_that_are_kept(store):
    """A view shows the very array, with what is behind its rows where that does not matter."""
    store.add("x", 32, (2,), "float32")
    rows, more, again = (aligned((20, 2), "float32") for _ in range(3))
    rows[...], more[...], again[...] = 1, 2, 3
    if not store.keep("x", 0, rows, 16):
        assert isinstance(store, DiskStore)
        return
    assert store.bytes_written == 16 * 8
    assert store.keep("x", 16, more, 16)
    assert np.shares_memory(store.view("x", 0, 20, until=16), rows)
    assert np.shares_memory(store.view("x", 8, 12), rows)
    assert np.shares_memory(store.view("x", 16, 36, until=32), more)
    assert store.keep("x", 16, again, 16)
    np.testing.assert_array_equal(store.view("x", 16, 36, until=32), again)
    np.testing.assert_array_equal(store.view("x", 16, 36), [*again[:16], *np.zeros((4, 2))])
    np.testing.assert_array_equal(everything(store, "x"), [*rows[:16], *again[:16]])
    store.seal("x")
    with pytest.raises(StoreError, match=r"keep\('x'\) to a sealed array"):
        store.keep("x", 0, rows, 16)
    store.unseal("x")
    with pytest.raises(StoreError, match="rows 16 to 33 of an array of 32 rows"):
        store.keep("x", 16, rows, 17)
    with pytest.raises(StoreError, match="rows 0 to 21 of an array of 32 rows"):
        store.keep("x", 0, rows, 21)


@pytest.mark.parametrize("behind", [1, 100, 500, 501, 2000])  # in a file's last page, behind it
def test_zeros_are_seen_behind_the_last_row(store, behind):
    rows = np.arange(4000, dtype=np.float32).reshape(2000, 2)
    put(store, "x", rows)
    shown = behind <= store.rows_behind(2000, 8)
    assert shown == (behind <= 500) or not isinstance(store, HostStore)
    for start in (0, 1992, 2000):
        view = store.view("x", start, 2000 + behind)
        if view is None:
            assert not shown or sys.platform != "linux"
            continue
        assert shown
        np.testing.assert_array_equal(view[: 2000 - start], rows[start:], strict=True)
        assert not view[2000 - start :].any()
        assert len(view) == 2000 + behind - start


def test_strided_rows_are_written(store):
    put(store, "x", ROWS[::-1])
    np.testing.assert_array_equal(everything(store, "x"), ROWS[::-1])


def test_the_counters(store):
    put(store, "x", ROWS)
    store.read("x", 1, 4)
    store.gather("x", np.array([5, 5]))
    # Of the row that is wanted twice, the disk reads one.
    assert store.bytes_read == 3 * 8 + (2 if isinstance(store, HostStore) else 1) * 8
    assert store.bytes_written == 48
    store.reset_counters()
    assert (store.bytes_read, store.bytes_written) == (0, 0)


def test_threads_read_and_write_at_once(store):
    rows = np.arange(4000, dtype=np.int32).reshape(1000, 4)
    store.add("x", 1000, (4,), "int32")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: store.write("x", i, rows[i : i + 10]), range(0, 1000, 10)))
        read = list(pool.map(lambda i: store.read("x", i, i + 10), range(0, 1000, 10)))
    np.testing.assert_array_equal(np.concatenate(read), rows)
    assert store.bytes_read == store.bytes_written == rows.nbytes


WHERE = {"host": "host store", "disk": "{folder}"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s: s.read("y", 0, 1),
            "there is no array 'y', add it first; the arrays: 'h', 'x'",
        ),
        (lambda s: s.info("y"), "there is no array 'y', add it first; the arrays: 'h', 'x'"),
        (lambda s: s.drop("y"), "there is no array 'y', add it first; the arrays: 'h', 'x'"),
        (
            lambda s: s.add("x", 1, (), "bool"),
            "add('x'): the array exists; drop it first, or pass replace=True to write it anew",
        ),
        *[
            (
                lambda s, name=name: s.add(name, 1, (), "bool"),
                f"add({came}): not a name, expected 1 to 200 of the characters A-Z a-z 0-9 _ . -",
            )
            for name, came in (
                ("", "''"),
                ("a/b", "'a/b'"),
                ("x\n", "'x\\n'"),
                ("é", "'é'"),
                ("x" * 201, LONG),
                (3, "3"),
            )
        ],
        (
            lambda s: s.add("y", 1, (2, -1), "bool"),
            "add('y'): 1 rows of shape (2, -1), expected sizes >= 0",
        ),
        *[
            (
                lambda s, dtype=dtype: s.add("y", 1, (), dtype),
                f"add('y'): the dtype {shown}, expected one of float32, float16, bfloat16, int32, "
                "bool",
            )
            for dtype, shown in (("float64", "float64"), (">f4", ">f4"), ("x7", "'x7'"))
        ],
        (
            lambda s: s.read("x", 3, 7),
            "read('x', 3, 7) of an array of 6 rows, expected 0 <= start <= stop <= 6",
        ),
        (
            lambda s: s.read("x", 3, 2),
            "read('x', 3, 2) of an array of 6 rows, expected 0 <= start <= stop <= 6",
        ),
        (
            lambda s: s.view("x", 7, 8),
            "view('x', 7, 8) of an array of 6 rows, expected 0 <= start <= 6 and start <= stop",
        ),
        (
            lambda s: s.read("x", 0, 2, np.zeros((2, 2))),
            "read('x', 0, 2) into float64[2, 2], expected a C-contiguous, writable NumPy array "
            "float32[2, 2]",
        ),
        (
            lambda s: s.read("x", 0, 2, np.zeros((2, 2), np.float32).T),
            "read('x', 0, 2) into strided float32[2, 2], expected a C-contiguous, writable NumPy "
            "array float32[2, 2]",
        ),
        (
            lambda s: s.read("x", 0, 2, np.broadcast_to(np.float32(0), (2, 2))),
            "read('x', 0, 2) into strided read-only float32[2, 2], expected a C-contiguous, "
            "writable NumPy array float32[2, 2]",
        ),
        (
            lambda s: s.read("x", 0, 1, [[0.0, 0.0]]),
            "read('x', 0, 1) into a list, expected a C-contiguous, writable NumPy array "
            "float32[1, 2]",
        ),
        (
            lambda s: s.write("x", 0, ROWS),
            "write('x') to a sealed array: add it anew with replace=True, or call unseal('x') to "
            "write into it",
        ),
        (
            lambda s: s.write("h", 5, ROWS[:2]),
            "write('h') of rows 5 to 7 of an array of 6 rows, expected rows of 0 to 6",
        ),
        (
            lambda s: s.write("h", -1, ROWS[:2]),
            "write('h') of rows -1 to 1 of an array of 6 rows, expected rows of 0 to 6",
        ),
        (
            lambda s: s.write("h", 0, ROWS[:, :1]),
            "write('h') of rows float32[6, 1], expected float32[n, 2]: nothing is cast or reshaped "
            "here",
        ),
        (
            lambda s: s.write("h", 0, ROWS.astype(np.float16)),
            "write('h') of rows float16[6, 2], expected float32[n, 2]: nothing is cast or reshaped "
            "here",
        ),
        (
            lambda s: s.write("h", 0, np.float32(1)),
            "write('h') of rows float32[], expected float32[n, 2]: nothing is cast or reshaped "
            "here",
        ),
        (
            lambda s: s.gather("x", [0, 6]),
            "gather('x') of row 6 of an array of 6 rows, expected 0 <= row < 6",
        ),
        (
            lambda s: s.gather("x", [-1]),
            "gather('x') of row -1 of an array of 6 rows, expected 0 <= row < 6",
        ),
        (
            lambda s: s.gather("x", [[0]]),
            "gather('x') of row numbers int64[1, 1], expected integers in one dimension",
        ),
        (
            lambda s: s.gather("x", [0.0]),
            "gather('x') of row numbers float64[1], expected integers in one dimension",
        ),
    ],
)
def test_calls_that_do_not_fit_are_refused(store, call, message):
    put(store, "x", ROWS)
    store.add("h", 6, (2,), "float32")
    store.reset_counters()
    with refused(f"{'host store' if isinstance(store, HostStore) else '{folder}'}: {message}"):
        call(store)
    np.testing.assert_array_equal(everything(store, "x"), ROWS)
    assert not everything(store, "h").any()
    assert store.names() == ("h", "x")
    assert store.bytes_written == 0


def test_an_empty_store_says_so(store):
    with pytest.raises(StoreError, match=r"there is no array 'x', add it first; the arrays: none$"):
        store.seal("x")


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.names(),
        lambda s: s.read("x", 0, 1),
        lambda s: s.write("x", 0, ROWS),
        lambda s: s.add("y", 1, (), bool),
        lambda s: s.seal("x"),
        lambda s: s.drop("x"),
    ],
)
def test_a_closed_store_is_refused(store, call):
    put(store, "x", ROWS)
    store.close()
    store.close()
    with pytest.raises(StoreError, match=r": the store is closed, open it or make a new one$"):
        call(store)


def test_the_error_is_one_of_ours():
    error = StoreError("a message")
    assert isinstance(error, GnnjitError)
    assert isinstance(error, ValueError)
    assert str(pickle.loads(pickle.dumps(error))) == "a message"


def test_what_is_expected_changes_nothing(store):
    """Also behind the end, where a block with padding ends."""
    put(store, "x", ROWS)
    for start, stop in ((0, 2), (2, 9), (6, 6)):
        store.expect("x", start, stop)
    assert (everything(store, "x") == ROWS).all()
    assert store.bytes_read == ROWS.nbytes
    with pytest.raises(StoreError, match="of an array of 6 rows"):
        store.expect("x", 7, 9)


def test_nothing_in_memory_is_waited_for():
    store = HostStore()
    put(store, "x", ROWS)
    assert not store.waits("x", 0, 9)
    with pytest.raises(StoreError, match="of an array of 6 rows"):
        store.waits("x", 7, 9)
