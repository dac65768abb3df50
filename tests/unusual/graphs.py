"""Graphs made of edges, batched, padded, streamed, and what else takes arrays of their elements."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from gnnjit.graph import Bipartite, Graph, batch, coalesce, symmetrize
from gnnjit.partition import Partition, partition
from gnnjit.partition.vertex_features import vertex_features
from gnnjit.store import HostStore
from gnnjit.streaming import StreamedGraph

from .calls import Call, Nonsense, Pick, anything
from .features import GRAPHS, Tensor, features

HUGE = list(range(20_000))
VALUES: list[Any] = [
    None, True, -1, 0, 3, 2.0, 1e3, 1e300, float("nan"), float("inf"), 2**40, 2**100, "5",
    "x" * 20_000, b"5", (), [], [0, 1], HUGE, [HUGE, HUGE[:5]], [[0, 1], [1, 0]], {"a": 1}, {1, 2},
    object(), np.arange(3), np.arange(3.0), np.array([1, np.nan, 2]), np.array(["a", "b", "c"]),
    np.array([None, 1, 2], object), np.zeros((3, 3)), np.zeros((0, 2)), np.zeros(3, "m8[s]"),
    np.zeros(3, "M8[s]"), np.zeros(3, complex), np.zeros(3, ">i2"), np.zeros(3, [("a", "i4")]),
    np.ma.array([1, 2, 3], mask=[1, 0, 0]), Tensor([0, 1, 2]), Tensor([0, 1], "no"),
    jax.random.key(0), jax.random.split(jax.random.key(0), 3), jnp.arange(3), range(3),
    scipy.sparse.eye(3).tocsr(), lambda: 0, np.float16(2), 1j, "dst", Ellipsis, slice(3),
]  # fmt: skip


def small() -> Graph:
    return Graph.from_edges([0, 1, 2], [1, 2, 2], 3)


def other_call(pick: Pick) -> Call:
    """What else takes arrays: any two values."""
    a, b = (VALUES[pick.rng.integers(len(VALUES))] for _ in range(2))
    pick.names.append(f"{str(a)[:40]}, {str(b)[:40]}")
    call = pick({
        "edges": lambda: Graph.from_edges(a, b),
        "edges, 3": lambda: Graph.from_edges(a, b, 3),
        "num_nodes": lambda: Graph.from_edges([0, 1], [1, 0], a),
        "sizes": lambda: Graph.from_edges([0], [0], num_src=a, num_dst=b),
        "mask": lambda: Graph.from_edges([0, 1, 2], [0, 1, 2], edge_mask=a),
        "said": lambda: Graph.from_edges([0], [0], sorted_by=a, symmetric=b),
        "pad": lambda: small().pad(a, b),
        "pad_nodes": lambda: small().pad_nodes(a),
        "pad_edges": lambda: small().pad_edges({"a": a, "b": [b]}),
        "batch": lambda: batch([small(), a]),
        "batch of": lambda: batch(a),
        "degree": lambda: small().degree(a),
        "gcn_norm": lambda: small().gcn_norm(a),
        "gcn_factors": lambda: small().gcn_factors(a),
        "self loops": lambda: small().with_self_loops(a, fill=b),
        "self loops, fill": lambda: small().with_self_loops(np.ones(3), fill=a),
        "check": lambda: small().check(a, b, "x"),
        "coalesce": lambda: coalesce(a, b),
        "symmetrize": lambda: symmetrize(a, b),
        "equal_vertices": lambda: partition.equal_vertices(a, b),
        "equal_edges": lambda: partition.equal_edges(a, b),
        "balanced": lambda: partition.balanced(a, b),
        "partition": lambda: Partition(a, b, "given"),
        "shards": lambda: Partition.of_assignment(a, b),
        "features": lambda: vertex_features([0], [0], a, b),
        "streamed": lambda: StreamedGraph.from_edges(a, b, 3),
        "streamed size": lambda: StreamedGraph.from_edges([0], [0], a, seed=b),
        "streamed order": lambda: StreamedGraph.from_edges([0, 1], [1, 2], 3, order=a),
        "streamed store": lambda: StreamedGraph.from_edges([0, 1], [1, 2], 3, store=a),
        "put": lambda: streamed().put(a, b),
        "put rows": lambda: streamed().put("x", a),
        "put edges": lambda: streamed().put_edges("x", a),
        "array": lambda: (streamed().array(a), streamed().edge_array(b)),
        "column": lambda: streamed().column(a),
    })  # fmt: skip
    return Call("other", lambda: number_of_leaves(call()), anything, values=True, quiet=True)


def streamed() -> StreamedGraph:
    return StreamedGraph.from_edges([0, 1, 2], [1, 2, 2], 3)


def number_of_leaves(result: Any) -> int:
    return len(jax.tree.leaves(result))


# ------------------------------------------------------------------------------------ from_edges


def contents(graph: Graph) -> dict[str, Any]:
    """What is compared of a graph."""
    rows = {"in": graph.in_structure, "out": graph.out_structure}
    found = {f"{k} {of}": getattr(s, of) for k, s in rows.items() for of in ("indptr", "degree")}
    found = {k: x() if callable(x) else x for k, x in found.items()}
    mask = jnp.ones(graph.num_edges, bool) if graph.mask is None else graph.mask
    sizes = np.array([graph.num_src, graph.num_dst, graph.num_edges, graph.bipartite])
    return {"src": graph.src, "dst": graph.dst, "mask": mask, "sizes": sizes, **found}


def expected(
    src: Any, dst: Any, mask: Any, num_src: int, num_dst: int, bipartite: bool = False
) -> dict[str, Any]:
    """What `contents` is to give of these edges, of which `mask` marks the real ones."""
    real = np.ones(len(src), bool) if mask is None else np.asarray(mask)
    degrees = {
        "in": np.bincount(dst[real], minlength=num_dst),
        "out": np.bincount(src[real], minlength=num_src),
    }
    found: dict[str, Any] = {
        "src": np.where(real, src, 0), "dst": np.where(real, dst, 0), "mask": real,
        "sizes": np.array([num_src, num_dst, len(src), bipartite]),
    }  # fmt: skip
    for k, degree in degrees.items():
        found[f"{k} indptr"], found[f"{k} degree"] = np.cumsum([0, *degree]), degree
    return found


def ends(rng: np.random.Generator, right: np.ndarray) -> dict[str, Any]:
    """Right and wrong forms of an array of endpoints."""
    forms = {
        "list": right.tolist(), "tuple": tuple(right.tolist()), "int64": right.astype(np.int64),
        "int32": right.astype(np.int32), "uint8": right.astype(np.uint8), "jnp": jnp.asarray(right),
        "int8 of JAX": jnp.asarray(right, jnp.int8), "big-endian": right.astype(">i4"),
        "tensor": Tensor(right), "strided": np.stack([right, right], 1)[:, 0],
        "uint64": right.astype(np.uint64), "not masked": np.ma.array(right),
        "numbers of NumPy": [np.int16(x) for x in right],
    }  # fmt: skip
    n = len(right)
    wrong = {
        "floats": np.zeros(max(n, 1)), "fractions": np.full(max(n, 1), 0.5),
        "NaN": np.full(max(n, 1), np.nan),
        "texts": [f"user {x}" for x in right] or ["u"],
        "objects": np.array([None] * n + [1], object),
        "bool": np.ones(max(n, 1), bool), "complex": np.ones(max(n, 1), complex),
        "pairs": [[int(x), int(x)] for x in right] or [[0, 1]], "column": right[:, None],
        "0-d": np.array(0), "number": 3, "None": None, "masked": np.ma.array([0, 1], mask=[0, 1]),
        "keys": jax.random.split(jax.random.key(0), max(n, 1)), "key": jax.random.key(0),
        "sparse": scipy.sparse.eye(3).tocsr(), "generator": (x for x in right), "dict": {"src": 1},
        "set": {0, 1}, "graph": small(), "text": "edges", "dates": np.zeros(n + 1, "M8[s]"),
        "ragged": [[0], [1, 2]], "huge": [2**40] * max(n, 1), "100 bits": [2**100] * max(n, 1),
        "negative": [-1, *right], "longer": [*right, 0, 0, 0], "negative only": [-7] * max(n, 1),
        "records": np.zeros(n, [("a", "i4")]), "long": list(range(50_000)),
        "infinite": [float("inf")] * max(n, 1), "bytes": b"012", "function": len,
    }  # fmt: skip
    return wrong if rng.random() < 0.15 else forms


def edges_call(pick: Pick) -> Call:
    """`Graph.from_edges`, with all that it takes."""
    rng = pick.rng
    two = rng.random() < 0.25
    src, dst, n_src, n_dst = some_edges(rng, two)
    forms = [ends(rng, src), ends(rng, dst)]
    right = all("list" in x for x in forms)
    args: tuple[Any, ...] = (pick(forms[0]), pick(forms[1]))
    traced = right and rng.random() < 0.1
    if traced:
        pick.names.append("traced")
        args = tuple(np.asarray(x).astype(np.int32) for x in args)
    elif right and rng.random() < 0.2:
        pair = np.stack([src, dst])
        args = pick({"pair": (args,), "edge_index": (pair,), "of JAX": (jnp.asarray(pair),),
                     "list": (pair.tolist(),), "tensor": (Tensor(pair),)})  # fmt: skip
    options, sizes = options_of(pick, src, (n_src, n_dst), two)

    def call() -> Any:
        def made(*edges: Any) -> Any:
            return contents(Graph.from_edges(*edges, **options))

        return jax.jit(made)(*args) if traced else made(*args)

    def oracle() -> Any:
        if not right or sizes is None or (traced and None in sizes):
            raise Nonsense
        return from_edges(src, dst, sizes, two, traced, options)

    return Call("from_edges", call, oracle, values=not traced, quiet=True)


def some_edges(rng: np.random.Generator, two: bool) -> tuple[Any, Any, int, int]:
    """Edges of a few vertices, sometimes sorted, sometimes in both directions."""
    n_src, count = int(rng.integers(1, 6)), int(rng.integers(0, 9))
    n_dst = int(rng.integers(1, 6)) if two else n_src
    src, dst = rng.integers(0, n_src, count), rng.integers(0, n_dst, count)
    if not two and rng.random() < 0.3:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    if rng.random() < 0.4:
        by = np.argsort(dst if rng.random() < 0.7 else src, kind="stable")
        src, dst = src[by], dst[by]
    return src, dst, n_src, n_dst


def from_edges(
    src: Any, dst: Any, sizes: Any, two: bool, traced: bool, options: dict[str, Any]
) -> dict[str, Any]:
    """What is right of edges and options that are no nonsense by themselves."""
    mask = options.get("edge_mask")
    real = np.ones(len(src), bool) if mask is None else np.asarray(mask)
    high = [int(x[real].max(initial=-1)) + 1 for x in (src, dst)]
    high = high if two else [max(high)] * 2
    a, b = (x if y is None else y for x, y in zip(high, sizes, strict=True))
    if (traced or mask is not None) and len(src) and not (a and b):
        raise Nonsense("padding has no vertex")
    if traced:  # what is out of range is padding
        real = real & (src < a) & (dst < b)
    elif high[0] > a or high[1] > b:
        raise Nonsense("out of range")
    said = options.get("sorted_by"), options.get("symmetric", False)
    if not traced and not is_said(src[real], dst[real], *said):
        raise Nonsense("not as it is said to be")
    return expected(src, dst, real, a, b, two)


def is_said(src: Any, dst: Any, sorted_by: Any, symmetric: bool) -> bool:
    """Whether edges are as the options of `from_edges` say."""
    there, back = sorted(zip(src, dst, strict=True)), sorted(zip(dst, src, strict=True))
    if symmetric and there != back:
        return False
    row = {"src": src, "dst": dst, None: src[:0]}[sorted_by]
    return bool(np.all(row[1:] >= row[:-1]))


def options_of(pick: Pick, src: Any, n: tuple[int, int], two: bool) -> tuple[dict[str, Any], Any]:
    """Options of `from_edges`, and the (sources, destinations) that they say; None if wrong."""
    rng, options, right = pick.rng, {}, True

    def add(name: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
        nonlocal right
        wrong = rng.random() < 0.15
        right &= not wrong
        options[name] = pick(bad if wrong else good)
        pick.names[-1] = f"{name} {pick.names[-1]}"

    counts = {"text": "5", "float": 1e3, "NaN": float("nan"), "True": True, "-1": -1, "list": [3],
              "array": np.arange(3), "long": "9" * 5000, "key": jax.random.key(0), "set": {3},
              "100 bits": 2**100, "graph": small(), "infinite": float("inf")}  # fmt: skip
    if two:
        add("num_src", {"right": n[0], "more": n[0] + 2, "numpy": np.int8(n[0])}, counts)
        add("num_dst", {"right": n[1], "more": n[1] + 1, "left out": None}, counts)
    else:
        good = {"right": n[0], "more": n[0] + 3, "left out": None, "numpy": np.int64(n[0]),
                "JAX": jnp.int32(n[0]), "again": n[0], "few": 1}  # fmt: skip
        add("num_nodes", good, counts)
    if rng.random() < 0.3:
        some = rng.random(len(src)) < 0.7
        good = {"numpy": some, "list": some.tolist(), "JAX": jnp.asarray(some), "None": None}
        if not len(src):
            good = {"None": None}
        bad = {"ints": some.astype(int), "texts": ["yes"] * len(src) + ["no"],
               "longer": [True] * 99,
               "column": np.ones((len(src), 1), bool), "number": 1, "text": "all",
               "floats": some * 1.0,
               "keys": jax.random.split(jax.random.key(0), len(src)), "function": len}  # fmt: skip
        add("edge_mask", good, bad)
    if rng.random() < 0.3:
        bad = {"DST": "DST", "True": True, "3": 3, "list": ["dst"], "long": "x" * 3000,
               "array": np.array(["src"]), "bytes": b"dst"}  # fmt: skip
        add("sorted_by", {"dst": "dst", "src": "src", "None": None}, bad)
    if rng.random() < 0.3:
        bad = {"None": None, "1": 1, "yes": "yes", "array": np.array([True, False]), "list": [1]}
        if two:
            bad["True"] = True
        good = {"no": False, "numpy": np.False_} | ({} if two else {"yes": True, "np": np.True_})
        add("symmetric", good, bad)
    if rng.random() < 0.03:
        options |= pick({"weights": {"weights": np.ones(len(src))}, "edges": {"edges": 1},
                         "both": {"num_nodes": 3, "num_src": 3}})  # fmt: skip
        right = False
    count = ("num_src", "num_dst") if two else ("num_nodes", "num_nodes")
    wanted = [options.get(k) for k in count]
    return options, [None if x is None else int(x) for x in wanted] if right else None


# --------------------------------------------------------------------------- graphs of graphs


def read(graph: Graph) -> tuple[Any, ...]:
    mask = np.ones(graph.num_edges, bool) if graph.mask is None else np.asarray(graph.mask)
    return np.asarray(graph.src), np.asarray(graph.dst), mask, graph.num_src, graph.num_dst


def batch_call(pick: Pick) -> Call:
    graphs = [pick(GRAPHS) for _ in range(pick.rng.integers(0, 5))]
    wrong = pick.rng.random() < 0.3
    bad = pick({
        "None": None, "number": 3, "arrays": (np.arange(3), np.arange(3)), "text": "g" * 3000,
        "list": graphs, "streamed": streamed(), "features": np.ones((3, 3)), "class": Graph,
    })  # fmt: skip
    graphs = [*graphs, bad] if wrong else graphs
    given = pick({
        "list": graphs, "tuple": tuple(graphs), "=generator": lambda: (g for g in graphs),
        "dict": dict(enumerate(graphs)), "array": np.array([*graphs, None], object)[:-1],
    })  # fmt: skip

    def call() -> Any:
        graph, index = batch(given)
        return contents(graph), index

    def oracle() -> Any:
        two = {g.bipartite for g in graphs} if not wrong and not isinstance(given, dict) else ()
        if len(two) != 1:
            raise Nonsense
        parts = [read(g) for g in graphs]
        starts = [np.cumsum([0, *(p[k] for p in parts)]) for k in (3, 4)]
        src = np.concatenate([p[0] + x for p, x in zip(parts, starts[0], strict=False)])
        dst = np.concatenate([p[1] + x for p, x in zip(parts, starts[1], strict=False)])
        mask = np.concatenate([p[2] for p in parts])
        of = [np.repeat(np.arange(len(parts)), [p[k] for p in parts]) for k in (3, 4)]
        index = Bipartite(of[0], of[1]) if True in two else of[1]
        last = int(starts[0][-1]), int(starts[1][-1])
        return expected(src, dst, mask, *last, bipartite=True in two), index

    return Call("batch", call, oracle, values=True, quiet=True)


def pad_call(pick: Pick) -> Call:
    graph = pick(GRAPHS)
    names = ("num_src", "num_dst") if graph.bipartite else ("num_nodes",)
    names = (*names, "num_edges")
    present = {"num_src": graph.num_src, "num_dst": graph.num_dst, "num_nodes": graph.num_dst,
               "num_edges": graph.num_edges}  # fmt: skip
    sizes = {}
    for name in names:
        has = present[name]
        sizes[name] = pick({
            "as it is": has, "more": has + 3, "numpy": np.int64(has + 1), "None": None,
            "much more": has + 40, "few": has - 1, "text": "9", "float": 9.0, "True": True,
            "key": jax.random.key(0), "list": [9], "NaN": float("nan"), "array": np.arange(9),
        })  # fmt: skip
    if pick.rng.random() < 0.1:
        sizes[pick({"num_src": "num_src", "num_nodes": "num_nodes", "rows": "rows"})] = 9
    elif pick.rng.random() < 0.1:
        sizes["num_edges"] = jnp.asarray(graph.num_edges + 2)

    def oracle() -> Any:
        for name, x in sizes.items():
            ok = x is None or (hasattr(x, "__index__") and np.ndim(x) == 0 and x is not True)
            if name not in names or not ok or (x is not None and int(x) < present[name]):
                raise Nonsense(name)
        wanted = {k: present[k] if sizes[k] is None else int(sizes[k]) for k in names}
        n_dst = wanted["num_dst" if graph.bipartite else "num_nodes"]
        n_src = wanted["num_src"] if graph.bipartite else n_dst
        if wanted["num_edges"] and not (n_src and n_dst):
            raise Nonsense("padding has no vertex")
        more = wanted["num_edges"] - graph.num_edges
        src, dst, mask, *_ = (np.pad(x, (0, more)) if np.ndim(x) else x for x in read(graph))
        return expected(src, dst, mask, n_src, n_dst, graph.bipartite)

    return Call("pad", lambda: contents(graph.pad(**sizes)), oracle, values=True, quiet=True)


def graph_call(pick: Pick) -> Call:
    graph = pick(GRAPHS)
    space = pick({"in": "in", "dst": "dst", "out": "out", "src": "src", "IN": "IN", "3": 3,
                  "None": None, "list": ["in"], "long": "in" * 2000})  # fmt: skip

    def oracle() -> Any:
        if space not in ("in", "dst", "out", "src"):
            raise Nonsense
        src, dst, mask, n_src, n_dst = read(graph)
        into = space in ("in", "dst")
        return np.bincount((dst if into else src)[mask], minlength=n_dst if into else n_src)

    return Call("degree", lambda: graph.degree(space), oracle, values=True, quiet=True)


# ------------------------------------------------------------------------------ streamed graphs

STORED = ("float32", "float16", "bfloat16", "int32", "bool")


def streamed_call(pick: Pick) -> Call:
    """A graph put into a store, and what is put there for its vertices or edges and read back."""
    store = pick({
        "=host": HostStore, "None": None, "none": None, "number": 3, "text": "folder", "dict": {},
        "class": HostStore, "path": b"/tmp", "graph": small(),
    })  # fmt: skip
    order = pick({"auto": "auto", "given": "given", "rcm": "rcm", "array": [3, 1, 0, 2],
                  "text": "best", "number": 3, "None": None, "short": [1, 0], "dict": {"a": 1},
                  "keys": jax.random.split(jax.random.key(0), 4),
    })  # fmt: skip
    src, dst = np.array([0, 1, 2, 2, 0]), np.array([1, 2, 0, 1, 1])
    of_edges = pick({"vertices": False, "edges": True})
    count = 5 if of_edges else 4
    rows = pick(features(pick.rng, count))
    name = pick({"x": "x", "dots": "a.b-c_2", "own": "vertex", "space": "a b", "empty": "",
                 "number": 3, "None": None, "long": "x" * 300, "path": "../x",
                 "bytes": b"x"})  # fmt: skip
    right_store = store is None or isinstance(store, HostStore)

    def call() -> Any:
        graph = StreamedGraph.from_edges(src, dst, 4, store=store, order=order)
        return np.asarray((graph.put_edges if of_edges else graph.put)(name, rows))

    def oracle() -> Any:
        known = (
            order in ("auto", "given", "rcm") if isinstance(order, str) else order == [3, 1, 0, 2]
        )
        if not (right_store and known and name in ("x", "a.b-c_2", "vertex")):
            raise Nonsense
        if hasattr(rows, "todense"):
            raise Nonsense("sparse")
        if isinstance(rows, (dict, list, range)):
            return None
        if np.shape(rows)[:1] != (count,) or str(rows.dtype) not in STORED:
            return None  # what other dtypes become is not asked here
        return np.asarray(rows)

    return Call("streamed", call, oracle, values=True, quiet=True)
