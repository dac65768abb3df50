"""2,000 malformed or unusual calls, drawn from a seed: a named error, or the right result.

Each family is a function that draws one call: what it was (for the message), the call, and an
oracle in NumPy that gives the right result or raises where there is none. To cover more, write
another family and list it in `FAMILIES`.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gnnjit
from gnnjit import nn
from gnnjit.errors import CheckError, GnnjitError, LayerError, VerifyError

CALLS = 2_000
LONGEST = 1_000


class Nonsense(Exception):
    """Raised by an oracle where a call has no right result."""


@dataclasses.dataclass(frozen=True)
class Call:
    what: str
    call: Callable[[], Any]
    oracle: Callable[[], Any]
    values: bool = False
    """Whether `call` computes (else it is only traced, and shapes are compared)."""


class Pick:
    """Draws from named choices, and remembers the names."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.names: list[str] = []

    def __call__(self, choices: dict[str, Any]) -> Any:
        name = list(choices)[self.rng.integers(len(choices))]
        self.names.append(name)
        found = choices[name]
        return found() if isinstance(found, types.FunctionType) and name[0] == "=" else found


# ---------------------------------------------------------------------------- graphs and features

SRC, DST = np.array([0, 1, 2, 2, 0]), np.array([1, 2, 0, 1, 1])
FULL = gnnjit.Graph.from_edges(SRC, DST, num_nodes=4)
NO_EDGES = gnnjit.Graph.from_edges([], [], num_nodes=4)
ONE = gnnjit.Graph.from_edges([0], [0], num_nodes=1)
NONE = gnnjit.Graph.from_edges([], [], num_nodes=0)
TWO_SETS = gnnjit.Graph.from_edges([0, 1, 1], [0, 2, 0], num_src=2, num_dst=3)
PADDED = FULL.pad(6, 7)
GRAPHS = {"full": FULL, "no edges": NO_EDGES, "one vertex": ONE, "empty": NONE,
          "two sets": TWO_SETS, "padded": PADDED, "full again": FULL, "and again": FULL,
}  # fmt: skip


class Tensor:
    """What a tensor or a data frame of another library looks like."""

    def __init__(self, array: Any):
        self.array = np.asarray(array)
        self.shape, self.dtype = self.array.shape, "other.float32"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


class Other:
    pass


def features(rng: np.random.Generator, n: int, width: int = 3) -> dict[str, Any]:
    """Right, unusual and wrong features of `n` elements."""
    x = rng.normal(size=(n, width)).astype(np.float32)
    whole = rng.integers(-3, 4, (n, width))
    right = {
        "jnp": jnp.asarray(x), "numpy": x, "float64": x.astype(np.float64), "int": whole,
        "float16": x.astype(np.float16), "bool": whole > 0, "big-endian": x.astype(">f4"),
        "uint8": np.abs(whole).astype(np.uint8), "bfloat16": jnp.asarray(x, jnp.bfloat16),
        "strided": np.asfortranarray(x), "read-only": x[::-1], "nothing wide": x[:, :0],
        "dict": {"a": x, "b": x[:, :1]}, "scalars": x[:, 0], "matrices": x[:, :, None],
        "list of arrays": [x, x], "other width": np.concatenate([x, x], axis=1),
    }  # fmt: skip
    wrong = {
        "list": x.tolist(), "long list": np.zeros((n + 1, 3000)).tolist(), "nested": [[[1.0]] * 4],
        "ragged": [[1, 2], [3]], "None": None, "number": 1.5, "integer": 3, "text": "features",
        "bytes": b"abc", "object": x.astype(object), "texts": x.astype(str),
        "scalar": np.float32(2),
        "0-d": jnp.zeros(()), "more rows": np.zeros((n + 2, width), np.float32),
        "transposed": np.zeros((width + 5, n), np.float32), "tensor": Tensor(x), "other": Other(),
        "function": len, "dates": np.zeros((n, 1), "datetime64[s]"), "class": dict,
        "records": np.zeros(n, [("a", "f4")]), "masked": np.ma.masked_invalid(x), "graph": FULL,
        "set": {1, 2}, "range": range(n), "mixed": {"a": x, "b": "text"}, "many": [x[:0]] * 400,
        "generator": (i for i in range(n)), "empty tuple": (),
        "one row more": {"a": x, "b": [x, x[:1]]},
    }  # fmt: skip
    return wrong if rng.random() < 0.2 else right


class Leaves(list):
    """A list that NumPy's arithmetic does not take for an array."""

    __array_ufunc__ = None


jax.tree_util.register_pytree_node(
    Leaves, lambda x: (list(x), None), lambda _, leaves: Leaves(leaves)
)


def plain(x: Any) -> Any:
    """Features as the oracle reads them: arrays of NumPy, in one leaf or a dict of them."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)) and all(hasattr(a, "shape") for a in x):
        return Leaves([plain(a) for a in x])
    ok = isinstance(x, (np.ndarray, jax.Array)) and not isinstance(x, np.ma.MaskedArray)
    if not ok or np.ndim(x) == 0 or not (x.dtype == jnp.bfloat16 or x.dtype.kind in "biuf"):
        raise Nonsense(f"{type(x).__name__}")
    return np.asarray(x).astype(np.float64)


# ------------------------------------------------------------------------------- calls of layers


@dataclasses.dataclass(frozen=True)
class Edge:
    src: Any
    dst: Any
    data: Any


MESSAGES: dict[str, Callable[..., Any]] = {
    "e.src": lambda v, e, *p: e.src,
    "e.src * v": lambda v, e, *p: e.src * v,
    "e.src + e.data": lambda v, e, *p: e.src + e.data,
    "e.data": lambda v, e, *p: e.data,
    "e.src @ w": lambda v, e, *p: e.src @ p[0],
    "e.src * b": lambda v, e, *p: e.src * p[0],
    "e.dst - e.src": lambda v, e, *p: e.dst * 1.0 - e.src,
    "e.src[0]": lambda v, e, *p: e.src[0],
    "e.src['a']": lambda v, e, *p: e.src["a"],
    "e.src[:, 0]": lambda v, e, *p: e.src[:, 0],
    "e.source": lambda v, e, *p: e.source,
    "e": lambda v, e, *p: e,
    "v.src": lambda v, e, *p: v.src,
    "v[7] if v[0] > 0": lambda v, e, *p: v if v[0] > 0 else e.src,
    "float(e.src)": lambda v, e, *p: float(e.src[0]),
    "None": lambda v, e, *p: None,
    "text": lambda v, e, *p: "text",
    "e.src + 1": lambda v, e, *p: e.src * 1.0 + 1,
}
NEEDS_TRACE = ("v[7] if v[0] > 0", "float(e.src)")
"""What plain arrays can do and a traced value cannot: there is no right result."""

WORDS = ("sum", "mean", "max", "min", "edge")
REDUCE: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}

PARAMETERS = {
    "nothing": (), "nothing again": (), "still nothing": (),
    "w": (np.eye(3, 2, dtype=np.float32),), "b": (np.ones(3, np.float32),),
    "number": (2.0,), "other w": (np.ones((4, 2), np.float32),), "two": (1.0, 2.0),
    "text": ("text",), "tensor": (Tensor(np.ones((3, 2))),), "list": ([[1.0, 2.0]] * 3,),
    "None": (None,), "object": (Other(),), "long b": (np.ones(999, np.float32),),
    "objects": (np.array([None] * 3),), "function": (len,),
}  # fmt: skip


def layer_call(pick: Pick) -> Call:
    graph = pick(GRAPHS)
    rng = pick.rng
    two = graph.num_src != graph.num_dst
    x = pick(features(rng, graph.num_dst))
    if two and rng.random() < 0.8:
        pick.names.append("Bipartite")
        x = gnnjit.Bipartite(src=pick(features(rng, graph.num_src)), dst=x)
    said = list(MESSAGES)[rng.integers(len(MESSAGES))]
    given = rng.random() < (0.9 if "data" in said else 0.1)
    edges = pick(features(rng, graph.num_edges)) if given else None
    word = WORDS[rng.integers(len(WORDS))]
    pick.names += [said, word]
    params = pick(PARAMETERS)
    message = MESSAGES[said]

    def function(v: Any, e: Any, *p: Any) -> Any:
        m = message(v, e, *p)
        return m if word == "edge" else getattr(gnnjit, word)(m)

    layer = gnnjit.layer(function)
    values = rng.random() < 0.1

    def oracle() -> Any:
        if said in NEEDS_TRACE:
            raise Nonsense(said)
        if "data" not in said and jax.tree.leaves(edges):
            raise Nonsense("edges that nothing reads")
        return longhand(graph, x, edges, params, message, word)

    return Call("layer", lambda: layer(graph, x, *params, edges=edges), oracle, values)


def longhand(
    graph: Any, x: Any, edges: Any, params: tuple[Any, ...], message: Any, word: str
) -> Any:
    """The layer on plain arrays, edge by edge."""
    src, dst = (x.src, x.dst) if isinstance(x, gnnjit.Bipartite) else (x, x)
    if graph.num_src != graph.num_dst and not isinstance(x, gnnjit.Bipartite):
        raise Nonsense("one array for two sets")
    sizes = (graph.num_src, graph.num_dst, graph.num_edges)
    src, dst, data = (
        None if a is None else rows_of(plain(a), n)
        for a, n in zip((src, dst, edges), sizes, strict=True)
    )
    p = [plain_parameter(a) for a in params]
    real = np.ones(graph.num_edges, bool) if graph.mask is None else np.asarray(graph.mask)
    us, vs = np.asarray(graph.src), np.asarray(graph.dst)

    def at(tree: Any, i: int) -> Any:
        return (
            None
            if tree is None
            else jax.tree.map(lambda a: np.zeros(a.shape[1:]) if len(a) == 0 else a[i], tree)
        )

    def one(i: int) -> Any:
        u, v = (us[i], vs[i]) if len(us) else (0, 0)
        given = Edge(at(src, u), at(dst, v), at(data, i))
        found = message(at(dst, v), given, *p)
        if found is None or isinstance(found, (str, Edge)):
            raise Nonsense(type(found).__name__)
        if not jax.tree.leaves(found):
            raise Nonsense("nothing")
        return jax.tree.map(lambda a: np.asarray(a, np.float64), found)

    every = jax.tree.map(lambda *a: np.stack(a), *[one(i) for i in range(max(len(us), 1))])
    if word == "edge":
        return jax.tree.map(
            lambda a: np.where(real.reshape(-1, *[1] * (a.ndim - 1)), a[: len(us)], 0), every
        )
    into = [np.flatnonzero((vs == v) & real) for v in range(graph.num_dst)]

    def reduced(a: Any) -> Any:
        rows = [REDUCE[word](a[i], axis=0) if len(i) else np.zeros(a.shape[1:]) for i in into]
        return np.stack(rows) if rows else np.zeros((0, *a.shape[1:]))

    return jax.tree.map(reduced, every)


def rows_of(tree: Any, n: int) -> Any:
    if any(len(a) != n for a in jax.tree.leaves(tree)):
        raise Nonsense("rows")
    return tree


def plain_parameter(a: Any) -> Any:
    if isinstance(a, (float, int)):
        return a
    if a is None or isinstance(a, list):  # no error unless something is done with it
        return Leaves([])
    if isinstance(a, np.ndarray) and a.dtype.kind in "biuf":
        return a
    raise Nonsense(type(a).__name__)


# ------------------------------------------------------------------------- words, inside a layer


def word_call(pick: Pick) -> Call:
    word = pick({w: w for w in ("sum", "mean", "max", "min", "std", "var", "logsumexp", "softmax")})
    value = pick({
        "e.src": lambda v, e: e.src, "v": lambda v, e: v, "e": lambda v, e: e,
        "a list": lambda v, e: [e.src, v], "text": lambda v, e: "x", "number": lambda v, e: 1.0,
        "None": lambda v, e: None, "zeros": lambda v, e: jnp.zeros(3),
        "object": lambda v, e: Other(),
        "dict": lambda v, e: {"a": e.src}, "word": lambda v, e: gnnjit.sum(e.src),
        "words": lambda v, e: getattr(gnnjit, word)(getattr(gnnjit, word)(e.src)),
    })  # fmt: skip
    options = pick({
        "plain": {}, "initial": {"initial": 1.0}, "initial text": {"initial": "x"},
        "initial wide": {"initial": np.ones(9)}, "axis": {"axis": 0}, "keepdims": {"keepdims": 1},
    })  # fmt: skip
    place = pick({"inside": True, "outside": False, "in vmap": "vmap", "in scan": "scan"})
    x = jnp.asarray(pick.rng.normal(size=(4, 3)), jnp.float32)

    def function(v: Any, e: Any) -> Any:
        def call(*_: Any) -> Any:
            return getattr(gnnjit, word)(value(v, e), **options)

        if place == "vmap":
            return jax.vmap(call)(jnp.arange(2))
        if place == "scan":
            return jax.lax.scan(lambda c, _: (c, call()), 0, jnp.arange(2))[1]
        return call()

    if not place:
        return Call("word", lambda: getattr(gnnjit, word)(x, **options), nothing_right)
    return Call("word", lambda: gnnjit.layer(function)(FULL, x), anything)


def dropout_call(pick: Pick) -> Call:
    rate = pick({
        "half": 0.5, "0": 0, "1": 1.0, "-1": -1, "nan": float("nan"), "text": "half", "None": None,
        "numpy": np.float32(0.25), "array": np.array([0.5]), "traced": jnp.float32(0.5),
        "True": True, "long": "x" * 5000,
    })  # fmt: skip
    key = jax.random.key(1)
    x = jnp.ones((4, 3))
    of = pick({"edge": lambda v, e, w: e.src, "vertex": lambda v, e, w: v,
               "shared": lambda v, e, w: w, "number": lambda v, e, w: 1.0})  # fmt: skip
    layer = gnnjit.layer(lambda v, e, w: gnnjit.dropout(of(v, e, w), rate, key))
    return Call("dropout", lambda: layer(FULL, x, jnp.ones(3)), anything)


def anything() -> Any:
    """No oracle: only errors are judged."""
    return None


def nothing_right() -> Any:
    raise Nonsense


# ------------------------------------------------------- how layers, explain and check are called


def arguments_call(pick: Pick) -> Call:
    x = jnp.ones((4, 3))
    layer = gnnjit.layer(lambda v, e, w=2.0: gnnjit.sum(e.src * w))
    args = pick({
        "()": (), "(x)": (x,), "(x, g)": (x, FULL), "(g)": (FULL,), "(g, g)": (FULL, FULL),
        "(g, x, x, x)": (FULL, x, x, x), "(None, x)": (None, x), "(g, x)": (FULL, x),
        "(text)": ("graph", x), "(src, dst, x)": (SRC, DST, x), "(x, x)": (x, x),
    })  # fmt: skip
    keywords = pick({
        "plain": {}, "w": {"w": 3.0}, "unknown": {"weight": 3.0}, "x twice": {"x": x},
        "bad edges": {"edges": "text"},
    })  # fmt: skip
    right = pick.names[0] == "(g, x)"
    tools = {"call": layer, "explain": layer.explain, "check": layer.check}
    how = layer if right else pick(tools)  # these two would compile
    oracle = anything if right and pick.names[1] in ("plain", "w") else nothing_right
    return Call("arguments", lambda: how(*args, **keywords), oracle)


def tool_call(pick: Pick) -> Call:
    x = jnp.ones((4, 3))
    layer = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    call = pick({
        "explain text": lambda: gnnjit.explain("layer"),
        "explain nothing": lambda: gnnjit.explain(lambda: None),
        "explain wrt": lambda: layer.explain(FULL, x, wrt="weights"),
        "explain learn": lambda: layer.explain(FULL, x, learn=True),
        "check text": lambda: gnnjit.check("layer"),
        "check nothing": lambda: gnnjit.check(lambda: None),
        "check rtol": lambda: layer.check(FULL, x, rtol="small"),
        "check below": lambda: layer.check(FULL, x, rtol=-1),
        "layer of 3": lambda: gnnjit.layer(3),
        "layer of text": lambda: gnnjit.layer("f"),
        "no (v, e)": lambda: gnnjit.layer(lambda: 1)(FULL, x),
        "v alone": lambda: gnnjit.layer(lambda v: v)(FULL, x),
        "a class": lambda: gnnjit.layer(dict)(FULL, x),
        "budget": lambda: gnnjit.layer(lambda v, e: v, memory_budget="much"),
        "budget 0": lambda: gnnjit.layer(lambda v, e: v, memory_budget=0),
        "budget list": lambda: gnnjit.layer(lambda v, e: v, memory_budget=[1]),
        "budget long": lambda: gnnjit.layer(lambda v, e: v, memory_budget="9" * 3000 + "XB"),
        "budget within": lambda: gnnjit.memory_budget(-1).__enter__(),
    })  # fmt: skip
    return Call("tool", call, nothing_right)


def module_call(pick: Pick) -> Call:
    rngs = nnx.Rngs(0)
    make = pick({
        "GCN": lambda: nn.GCN(3, 2, rngs=rngs), "SAGE": lambda: nn.SAGE(3, 2, rngs=rngs),
        "GAT": lambda: nn.GAT(3, 2, rngs=rngs), "GIN": lambda: nn.GIN(3, 3, 2, rngs=rngs),
    })  # fmt: skip
    x = pick(features(pick.rng, 4))
    module = MODULES.setdefault(pick.names[-2], make())

    def oracle() -> Any:
        rows = rows_of(plain(x), 4)
        if isinstance(rows, Leaves):  # Flax stacks lists
            return None
        if not isinstance(rows, np.ndarray) or rows.shape != (4, 3):
            raise Nonsense
        return Shape((4, 2))

    return Call("module", lambda: module(FULL, x), oracle)


MODULES: dict[str, Any] = {}


@dataclasses.dataclass(frozen=True)
class Shape:
    """A right result of which only the shape is known."""

    shape: tuple[int, ...]


# ------------------------------------------------------------------------------------- graphs


def graph_call(pick: Pick) -> Call:
    graph = pick(GRAPHS)
    count = {"0": 0, "9": 9, "numpy": np.int64(9), "-1": -1, "text": "9", "None": None, "1e3": 1e3,
             "True": True, "2.5": 2.5, "few": 2, "array": np.array([9])}  # fmt: skip
    n, m = pick(count), pick(count)
    call = pick({
        "pad": lambda: graph.pad(n, m),
        "pad two": lambda: graph.pad(num_src=n, num_dst=m, num_edges=9),
        "degree": lambda: graph.degree(n),
        "num_nodes": lambda: graph.num_nodes,
    })  # fmt: skip
    return Call("graph", call, anything)


FAMILIES: dict[Callable[[Pick], Call], int] = {
    layer_call: 12, word_call: 3, dropout_call: 1, arguments_call: 2, tool_call: 1, module_call: 3,
    graph_call: 1,
}  # fmt: skip
"""Each family, and how often it is drawn."""


# -------------------------------------------------------------------------------------- judging


def complaint(call: Call) -> str | None:
    """What is wrong with the answer to a call, if anything."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = run(call)
    except Exception as error:
        return bad_error(error) or refused(call, error)
    try:
        want = call.oracle()
    except Exception as error:
        return f"gave a result, expected an error ({type(error).__name__}: {error})"
    return None if want is None else difference(call, got, want)


def run(call: Call) -> Any:
    if call.values:
        with gnnjit.reference():
            return call.call()
    found: list[Any] = []

    def traced() -> Any:
        found.append(call.call())
        return [x for x in jax.tree.leaves(found[0]) if isinstance(x, jax.Array)]

    jax.eval_shape(traced)
    return jax.tree.map(lambda x: Shape(jnp.shape(x)), found[0])


def bad_error(error: Exception) -> str | None:
    text = f"{type(error).__name__}: {str(error)[:300]}"
    if len(str(error)) > LONGEST:
        return f"a message of {len(str(error))} characters: {text}"
    if isinstance(error, (VerifyError, CheckError)):
        return f"an error of ours inside: {text}"
    if isinstance(error, GnnjitError):
        return None
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "/gnnjit/" in f.filename]
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename}:{last.lineno}" if last in ours else "outside"
    users = last.filename == __file__  # Python with what the function was given, as it is
    if last in ours or not (users or isinstance(error, (TypeError, ValueError))):
        return f"a raw error ({place}): {text}"
    return None


def refused(call: Call, error: Exception) -> str | None:
    """An error, where there is a right result."""
    try:
        want = call.oracle()
    except Exception:
        return None
    return None if want is None else f"refused what is right: {type(error).__name__}: {error}"


def difference(call: Call, got: Any, want: Any) -> str | None:
    a, b = jax.tree.leaves(got), jax.tree.leaves(want)
    shapes = [tuple(np.shape(x) if not isinstance(x, Shape) else x.shape) for x in (*a, *b)]
    if shapes[: len(a)] != shapes[len(a) :]:
        return f"shapes {shapes[: len(a)]}, expected {shapes[len(a) :]}"
    if not call.values:
        return None
    off = [np.abs(np.asarray(x, np.float64) - y).max(initial=0) for x, y in zip(a, b, strict=True)]
    return None if max(off, default=0) < 0.1 else f"values are off by {off}"


def drawn(seed: int) -> tuple[str, Call]:
    pick = Pick(seed)
    families = [f for f, weight in FAMILIES.items() for _ in range(weight)]
    call = families[pick.rng.integers(len(families))](pick)
    return f"{seed}: {call.what}({', '.join(pick.names)})", call


@pytest.mark.parametrize("part", range(4))
def test_unusual_calls_have_named_errors_or_right_results(part):
    complaints = []
    for seed in range(part, CALLS, 4):
        name, call = drawn(seed)
        if (wrong := complaint(call)) is not None:
            complaints.append(f"{name}: {wrong}")
    assert not complaints, "\n".join([f"{len(complaints)} of {CALLS // 4}", *complaints[:40]])


def test_the_calls_are_many_kinds_and_the_oracle_is_asked():
    """Neither all right nor all wrong; and the judge sees what it is there to see."""
    kinds: collections.Counter[str] = collections.Counter()
    for seed in range(0, CALLS, 10):
        _, call = drawn(seed)
        try:
            kinds["unknown" if call.oracle() is None else "right"] += 1
        except Exception:
            kinds["wrong"] += 1
    assert min(kinds[k] for k in ("right", "wrong", "unknown")) > 20, kinds

    def fails(error: Exception) -> Callable[[], Any]:
        def call() -> Any:
            raise error

        return call

    planted = [
        Call("", lambda: os.environ["no such variable"], nothing_right),
        Call("", fails(LayerError("x" * 1001)), nothing_right),
        Call("", fails(LayerError("named")), lambda: np.ones(3)),
        Call("", lambda: jnp.ones(3), nothing_right),
        Call("", lambda: jnp.ones(3), lambda: np.ones(4)),
        Call("", lambda: jnp.ones(3), lambda: np.zeros(3), values=True),
    ]
    assert all(complaint(call) for call in planted)
    assert complaint(Call("", lambda: jnp.ones(3), lambda: np.ones(3), values=True)) is None
