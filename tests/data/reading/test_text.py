"""Edges of text files: what is found out, what is told, and what is wrong."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnjit.data import read_edges, split_links
from gnnjit.data.reading.layout import fields
from gnnjit.data.reading.numbering import Numbering
from gnnjit.errors import DataError
from gnnjit.store import DiskStore, HostStore


@pytest.fixture
def file(tmp_path):
    """Write a file; its path."""

    def write(text, name="g.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def pairs(edges):
    return list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0 1\n1 2\n0 2\n", None),
        ("# a comment\n\n0\t1\r\n1\t2\r\n% another\r\n0\t2", None),
        ("source,target\n10,20\n20,30\n10,30\n", [10, 20, 30]),
        ("  5   -7 \n-7\t\t9\n5 9\n", None),
        ("a;b\nb;c\na;c\n", ["a", "b", "c"]),
        ("x,from,to\n1,a b,b\n2,b,c\n3,a b,c\n", ["a b", "b", "c"]),
        ('"u, 1",v\nv,w\n"u, 1",w\n', ["u, 1", "v", "w"]),
        ("1e3,2000.0\n2000,3000\n1000,3000\n", None),
    ],
)
def test_layouts(file, text, ids):
    edges = read_edges(file(text), **({"ids": "numbers"} if text.startswith("1e3") else {}))
    named = [] if edges.ids is None else edges.ids.tolist()
    if text.startswith("  5"):  # whole numbers are numbered as they ascend
        assert (pairs(edges), named) == ([(1, 0), (0, 2), (1, 2)], [-7, 5, 9])
        return
    assert pairs(edges) == [(0, 1), (1, 2), (0, 2)]
    assert named == (ids or ([1000, 2000, 3000] if text.startswith("1e3") else []))


def test_columns_beside_the_ends(file):
    text = "time,user,item,weight,stars\n2024-01-01,a,b,1.5,5\n2024-01-02T01:00:00,b,c,-2e-3,4\n"
    edges = read_edges(file(text), values=["stars"])
    assert edges.time.tolist() == [1704067200, 1704157200]
    assert edges.weight.tolist() == [1.5, np.float32(-2e-3)]
    assert edges.edges["stars"].tolist() == [5, 4]
    assert (
        repr(edges) == "EdgeList(g.txt: 3 vertices, 2 edges, edges' weight, time, stars, ids str)"
    )
    assert edges.report == (
        "3 lines, 2 of them edges", "a header: time, user, item, weight, stars",
        "vertices renumbered from 0 to 2",
    )  # fmt: skip
    plain = read_edges(file(text), weight=False, time=False, columns=("item", "user"))
    assert (plain.edges, pairs(plain)[0], plain.ids.tolist()) == ({}, (0, 1), ["b", "a", "c"])
    assert (edges.number_of("c"), edges.graph().num_nodes) == (2, 3)
    with pytest.raises(DataError, match=r"g.txt: has no vertex 'd'\."):
        edges.number_of("d")


def test_options(file):
    path = file("0|1|0.5\n1|3|1\n")
    edges = read_edges(path, weight=2, num_nodes=5, undirected=True)
    assert (edges.num_nodes, edges.ids, edges.weight.tolist()) == (5, None, [0.5, 1, 0.5, 1])
    assert pairs(edges) == [(0, 1), (1, 3), (1, 0), (3, 1)]
    assert read_edges(path, ids="text").ids.tolist() == ["0", "1", "3"]
    assert read_edges(file("a b\nc d\n"), header=True).num_edges == 1
    assert read_edges(file("!a b\nc d\n"), comments="!").num_edges == 1


@pytest.mark.parametrize("store", [None, "host"])
def test_sources_and_destinations_apart(file, store):
    path, where = file("user,item\n5,5\n5,9\n7,5\n"), HostStore() if store else None
    edges = read_edges(path, bipartite=True, store=where)
    assert (pairs(edges), edges.ids.tolist()) == ([(0, 2), (0, 3), (1, 2)], [5, 7, 5, 9])
    data = split_links(edges, test=1)
    assert (data.task, data.num_users, data.num_items, len(data.train)) == (
        "recommendation", 2, 2, 2,
    )  # fmt: skip
    names = read_edges({"user": ["a", "b"], "item": ["a", "a"]}, bipartite=True)
    assert (pairs(names), names.ids.tolist()) == ([(0, 2), (1, 2)], ["a", "b", "a"])
    with pytest.raises(DataError, match=r"g.txt: bipartite=True numbers sources and destinations"):
        read_edges(path, bipartite=True, num_nodes=9)
    with pytest.raises(DataError, match=r"g.txt: bipartite=True is for text and tables, and this"):
        read_edges(path, bipartite=True, kind="npz")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("0 1\n1 x\n", {}, "g.txt, line 2: got 'x' in '1 x', expected a whole number. Are ids "
         "texts? Pass ids='text'."),
        ("#\n0,1\n\n7\n", {}, "g.txt, line 4: got '7', expected at least 2 columns with ',' "
         "between them."),
        ("a,b\na,\n", {}, "g.txt, line 2: got '' in 'a,', expected the id of a vertex."),
        ("0 1 2\n1 2 y\n", {"weight": 2}, "g.txt, line 2: got 'y' in '1 2 y', expected a number, "
         "the weight."),
        ("0 1 2\n1 2 nan\n", {"weight": 2}, "g.txt, line 2: got 'nan' in '1 2 nan', expected a "
         "finite number, the weight."),
        ("0 1 2024-01-01\n1 2 soon\n", {"time": 2}, "g.txt, line 2: got 'soon' in '1 2 soon', "
         "expected a date, as 2024-05-31T12:00:00."),
        ("0 1 7\n" * 200 + "0 1 7.5\n", {"time": 2}, "g.txt, line 201: got '7.5' in '0 1 7.5', "
         "expected a whole number, as the first times are."),
        ("0 1\n1 5\n", {"num_nodes": 3}, "g.txt: edge 1 has the vertex 5, expected 0 to 2, by the "
         "3 vertices that there are."),
        ("# none\n", {}, "g.txt: has no edges, expected a line with two columns for each."),
        ("from,to\n", {}, "g.txt: has no edges after its header 'from, to'."),
        ("0\n1\n", {}, "g.txt: has one column, expected two or more, of source and destination. Is "
         "it another delimiter? Pass delimiter=."),
        ("0 1\n", {"weight": "w"}, "g.txt: has no column 'w', expected 0 to 1, there is no "
         "header."),
        ("a,b\n1,2\n", {"columns": "ab"}, "g.txt: columns is 'ab', expected two: those of source "
         "and destination."),
        ("0 1\n", {"delimiter": "::"}, "g.txt: delimiter is '::', expected one character, such as "
         "',', or ' ' for any number of blanks and tabs."),
        ("0 1\n", {"ids": "int"}, "g.txt: ids is 'int', expected 'auto', 'numbers' or 'text'."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(file, text, options, message):
    path = file(text)
    with pytest.raises(DataError) as error:
        read_edges(path, **options)
    assert str(error.value) == f"{path.parent}/{message}"


def test_a_block_at_a_time(file):
    """Lines are counted over blocks, and a line may be in two of them."""
    text = "# head\n" + "".join(f"{i} {i + 1} {i / 8}\n" for i in range(200)) + "201 x 1"
    path = file(text)
    with pytest.raises(DataError, match=r"g.txt, line 202: got 'x' in '201 x 1'"):
        read_edges(path, block_bytes=64)
    path = file(text.removesuffix("201 x 1"))
    edges = read_edges(path, weight=2, block_bytes=64)
    assert pairs(edges) == [(i, i + 1) for i in range(200)]
    assert edges.weight.tolist() == [i / 8 for i in range(200)]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed(file, pack):
    path = file(pack(b"0 1\n1 2\n"), "g.csv.packed")
    assert pairs(read_edges(path)) == [(0, 1), (1, 2)]
    with pytest.raises(DataError, match=r"g.csv.packed: is cut short or damaged"):
        read_edges(file(pack(b"0 1\n" * 999)[:-9], "g.csv.packed"))


def test_zstandard(file, monkeypatch):
    if importlib.util.find_spec("zstandard") is not None:
        import zstandard

        path = file(zstandard.compress(b"0 1\n1 2\n"), "g.zst")
        assert pairs(read_edges(path)) == [(0, 1), (1, 2)]
        twice = zstandard.compress(b"0 1\n1 ") + zstandard.compress(b"2\n")
        assert pairs(read_edges(file(twice, "g.zst"))) == [(0, 1), (1, 2)]
        for bad in (twice[:-3], twice + b"no frame"):
            with pytest.raises(DataError, match=r"g.zst: is (cut short or )?damaged"):
                read_edges(file(bad, "g.zst"))
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    monkeypatch.setitem(__import__("sys").modules, "backports.zstd", None)
    monkeypatch.setitem(__import__("sys").modules, "compression.zstd", None)
    path = file(b"\x28\xb5\x2f\xfd....", "g.zst")
    with pytest.raises(DataError) as error:
        read_edges(path)
    assert str(error.value) == (
        f"{path}: is packed with Zstandard, and there is no library for it: pip install zstandard, "
        "or unpack the file with zstd -d."
    )


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_to_a_store(file, tmp_path, kind):
    text = "".join(f"{7 * i % 50} {11 * i % 60 + 100} {i * 10**10} {i / 4}\n" for i in range(500))
    path, options = file(text), {"time": 2, "weight": 3}
    plain = read_edges(path, **options)
    store = DiskStore.create(tmp_path / "store") if kind == "disk" else HostStore()
    with store:
        edges = read_edges(path, store=store, block_bytes=512, **options)
        assert store.read("edge.dst", 0, 3).tolist() == plain.dst[:3].tolist()
        for part in ("src", "dst", "weight", "time", "ids"):
            assert np.array_equal(getattr(edges, part), getattr(plain, part))
        assert edges.time.dtype == np.int64
        assert sorted(store.names()) == ["edge.dst", "edge.src", "edge.time", "edge.weight"]


def rows_of(ids):
    return st.lists(st.lists(ids, min_size=2, max_size=2), max_size=9)


@given(rows_of(st.integers(-(10**12), 10**12) | st.integers(0, 9)), st.integers(1, 4))
def test_numbers_of_whole_ids(rows, size):
    numbering = Numbering("here", text=False)
    given_ = np.array(rows, np.int64).reshape(-1, 2)
    some = [numbering.number(given_[i : i + size]) for i in range(0, len(given_), size)]
    temporary = np.concatenate([np.zeros((0, 2), np.int32), *some])
    table, ids, count = numbering.finish()
    final = temporary if table is None else table[temporary]
    known, expected = np.unique(given_, return_inverse=True)
    assert (final.reshape(-1) == expected.reshape(-1)).all()
    assert count == len(known)
    assert (np.arange(count) if ids is None else ids).tolist() == known.tolist()


@given(rows_of(st.text("abü", min_size=1, max_size=3)), st.integers(1, 4))
def test_numbers_of_texts(rows, size):
    numbering = Numbering("here", text=True)
    given_ = np.char.encode(np.array(rows, "U3").reshape(-1, 2), "utf-8")
    some = [numbering.number(given_[i : i + size]) for i in range(0, len(given_), size)]
    _, ids, count = numbering.finish()
    order = list(dict.fromkeys(name for row in rows for name in row))
    assert (ids.tolist(), count) == (order, len(order))
    found = [int(i) for piece in some for i in piece.reshape(-1)]
    assert found == [order.index(name) for row in rows for name in row]


@given(st.lists(st.floats(-1e12, 1e12).map(lambda x: f"{x:.6g}"), min_size=1, max_size=9))
def test_numbers_are_rounded_as_python_does(words):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "g.txt"
        path.write_text("".join(f"0 1 {word}\n" for word in words))
        found = read_edges(path, time=2).time.tolist()
    assert found == [float(word) for word in words]


@pytest.mark.parametrize(
    ("line", "delimiter", "found"),
    [
        (b'a,"b, ""c""",d\r\n', ",", ("a", 'b, "c"', "d")),
        (b"a  b\tc ", " ", ("a", "b", "c")),
        (b"a\t\tc", "\t", ("a", "", "c")),
    ],
)
def test_fields(line, delimiter, found):
    assert fields(line, delimiter) == found
