"""Layers written to bytes, and read in another process."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental import serialize_executable

import gnnjit
from gnnjit.errors import GraphError, StreamError
from gnnjit.graph.degree_buckets import make_buckets
from gnnjit.graph.row_tasks import make_tasks
from gnnjit.lower import choose, cpu
from gnnjit.store import HostStore
from gnnjit.streaming import StreamedGraph
from gnnjit.system.portable import PORTABLE

RNG = np.random.default_rng(5)
GRAPH = gnnjit.Graph.from_edges(*RNG.integers(0, 30, (2, 110)), 30)
X = jnp.asarray(RNG.normal(size=(30, 6)), jnp.float32)
P = {k: jnp.asarray(RNG.normal(size=(6, 6)) / 3, jnp.float32) for k in ("far", "near")}
LEAVES, TREE = jax.tree.flatten(GRAPH)


@gnnjit.layer
def layer(v: Any, e: Any, p: Any) -> Any:
    score = jnp.sum(jax.nn.tanh(e.src @ p["far"] + v @ p["near"]))
    return gnnjit.sum(gnnjit.softmax(score) * e.src) @ p["far"]


def value(p: Any, graph: Any, x: Any) -> Any:
    return jnp.sum(jnp.sin(layer(graph, x, p)))


def gradient(p: Any, leaves: Any, x: Any) -> Any:
    return jax.grad(lambda p, x: value(p, jax.tree.unflatten(TREE, leaves), x), (0, 1))(p, x)


def custom_calls(text: str) -> set[str]:
    return set(re.findall(r"custom_call @(\w+)", text)) - {"Sharding"}


generated = pytest.mark.skipif(not cpu.available(), reason="no CPU kernels here")


# --------------------------------------------------------------------------------- in this process


@generated
@pytest.mark.parametrize("fn", [value, gradient], ids=["value", "gradient"])
@pytest.mark.parametrize("platforms", [None, ("cuda",), ("cpu", "cuda", "rocm", "tpu")])
def test_an_export_is_portable_by_itself(fn, platforms):
    args = (P, GRAPH if fn is value else LEAVES, X)
    f = jax.jit(fn)
    assert any(name.startswith("gnnjit_cpu_") for name in custom_calls(f.lower(*args).as_text()))
    exported = export.export(f, platforms=platforms)(*args)
    assert custom_calls(exported.mlir_module()) == set()
    assert exported.platforms == (platforms or ("cpu",))
    if "cpu" in exported.platforms:
        for a, b in zip(*map(jax.tree.leaves, (exported.call(*args), f(*args))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert any(name.startswith("gnnjit_cpu_") for name in custom_calls(f.lower(*args).as_text()))


@pytest.mark.parametrize("kernel", choose.KERNELS)
def test_whatever_is_preferred(kernel):
    f = jax.jit(lambda g, x: gnnjit.layer(lambda v, e: gnnjit.sum(e.src))(g, x))
    with choose.prefer(kernel):
        exported = export.export(f, platforms=("cpu", "cuda"))(GRAPH, X)
        assert custom_calls(exported.mlir_module()) == set()
        with gnnjit.portable():
            text = f.trace(GRAPH, X).lower(lowering_platforms=("cuda",)).as_text()
    assert custom_calls(text) == set()


def test_explain_says_why():
    program = gnnjit.layer(lambda v, e: gnnjit.sum(e.src))
    with gnnjit.portable():
        assert PORTABLE in str(program.explain(GRAPH, X))


def with_tables(graph: gnnjit.Graph) -> gnnjit.Graph:
    """As where a lowering wants them."""

    def full(s: Any) -> Any:
        indptr = np.asarray(s.indptr)
        return dataclasses.replace(
            s, buckets=make_buckets(indptr, True), tasks=make_tasks(indptr, True)
        )

    return dataclasses.replace(
        graph, in_structure=full(graph.in_structure), out_structure=full(graph.out_structure)
    )


@pytest.mark.parametrize(
    "graph",
    [GRAPH, with_tables(GRAPH), GRAPH.pad(30, 120), gnnjit.Graph.from_edges([0], [1], num_src=2)],
    ids=["plain", "tables", "padded", "bipartite"],
)
def test_graphs_are_written(graph):
    f = jax.jit(lambda graph, x: (graph, x))
    x = gnnjit.Bipartite(src=X, dst=None)
    loaded = export.deserialize(export.export(f)(graph, x).serialize())
    assert jax.tree.structure(loaded.call(graph, x)) == jax.tree.structure((graph, x))


def test_a_sharded_graph_goes_as_arrays():
    mesh = jax.make_mesh((2,), ("s",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = gnnjit.shard(GRAPH, mesh)
    x = sharded.put(X)
    exported = export.export(jax.jit(value))(P, sharded, x)
    with pytest.raises(GraphError) as raised:
        exported.serialize()
    assert str(raised.value) == (
        "a sharded graph is an argument of an exported function, and it names the devices of this "
        "process. Export a function of its arrays: f(leaves) with leaves, tree = "
        "jax.tree.flatten(graph), which calls jax.tree.unflatten(tree, leaves)"
    )
    leaves, tree = jax.tree.flatten(sharded)
    flat = jax.jit(lambda p, leaves, x: value(p, jax.tree.unflatten(tree, leaves), x))
    loaded = export.deserialize(export.export(flat)(P, leaves, x).serialize())
    assert loaded.nr_devices == 2
    np.testing.assert_allclose(jax.jit(loaded.call)(P, leaves, x), value(P, GRAPH, X), rtol=1e-4)


@pytest.mark.parametrize("transform", [jax.grad, lambda f: export.export(jax.jit(f))])
def test_a_streamed_function_cannot_be_traced(transform):
    with HostStore() as store:
        graph = StreamedGraph.from_edges(GRAPH.src, GRAPH.dst, 30, store=store)
        x, f = graph.put("x", np.asarray(X)), gnnjit.stream(value, memory_budget="1MiB")
        with pytest.raises(StreamError) as raised:
            transform(lambda p: f(p, graph, x))(P)
    assert str(raised.value) == (
        "a streamed function was called while JAX traces (inside jax.jit, jax.grad, jax.vmap or "
        "jax.export), expected arrays: it moves blocks of data while it runs. Call it directly, "
        "and put jax.grad and the like inside the function that gnnjit.stream gets"
    )


# ------------------------------------------------------------------------------- in another process

READER = """
import json, pickle, sys
import jax, numpy as np
from jax import export
from jax.experimental import serialize_executable

folder = sys.argv[1]
p, x, leaves = pickle.load(open(folder + "/arguments", "rb"))
told, found = {}, {}

def load(name):
    return export.deserialize(bytearray(open(folder + "/" + name, "rb").read()))

def execute(name, tree):
    raw, out_tree = pickle.load(open(folder + "/" + name, "rb"))
    in_tree = jax.tree.structure(((p, leaves, x), {}))
    return serialize_executable.deserialize_and_load(
        raw, in_tree, jax.tree.structure(out_tree), execution_devices=jax.devices()[:1]
    )(p, leaves, x)

found["plain"] = load("plain").call(p, leaves, x)
found["gradient"] = load("gradient").call(p, leaves, x)
found["executable"] = execute("executable", None)
told["without gnnjit"] = not any(name.split(".")[0] == "gnnjit" for name in sys.modules)
if len(sys.argv) > 2:
    try:
        execute("local", None)
    except Exception as error:
        told["error"] = str(error)

import gnnjit
graph = gnnjit.Graph.from_edges(leaves[0], leaves[1], 30)
loaded = load("graph")
found["graph"] = loaded.call(p, graph, x)
found["gradient of graph"] = jax.grad(lambda p, x: loaded.call(p, graph, x), (0, 1))(p, x)
print(json.dumps({"told": told, "found": jax.tree.map(lambda a: np.asarray(a).tolist(), found)}))
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another process makes of what is written here."""
    folder = tmp_path_factory.mktemp("exported")
    arguments = jax.tree.map(np.asarray, (P, X, LEAVES))
    (folder / "arguments").write_bytes(pickle.dumps(arguments))
    plain = jax.jit(lambda p, leaves, x: value(p, jax.tree.unflatten(TREE, leaves), x))
    made = {
        "plain": export.export(plain)(P, LEAVES, X).serialize(),
        "gradient": export.export(jax.jit(gradient))(P, LEAVES, X).serialize(),
        "graph": export.export(jax.jit(value))(P, GRAPH, X).serialize(vjp_order=1),
    }
    for name, raw in made.items():
        (folder / name).write_bytes(raw)
    local = plain.lower(P, LEAVES, X).compile()
    with gnnjit.portable():
        executable = plain.lower(P, LEAVES, X).compile()
    for name, compiled in {"local": local, "executable": executable}.items():
        raw, _, _ = serialize_executable.serialize(compiled)
        (folder / name).write_bytes(pickle.dumps((raw, 0.0)))
    command = [sys.executable, "-c", READER, str(folder), *(["local"] if cpu.available() else [])]
    root = str(Path(gnnjit.__file__).parent.parent)
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_values_and_gradients_in_another_process(read):
    found = read["found"]
    want = {name: value(P, GRAPH, X) for name in ("plain", "executable", "graph")}
    want |= {name: gradient(P, LEAVES, X) for name in ("gradient", "gradient of graph")}
    assert found.keys() == want.keys()
    for name, expected in want.items():
        got = [np.asarray(a) for a in jax.tree.leaves(found[name], is_leaf=_is_rows)]
        for a, b in zip(got, jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)


def _is_rows(x: Any) -> bool:
    """Whether it is an array, as nested lists of numbers."""
    while isinstance(x, list) and x:
        x = x[0]
    return isinstance(x, float)


def test_gnnjit_is_not_needed_for_arrays(read):
    assert read["told"]["without gnnjit"] is True


@generated
def test_kernels_of_one_process_are_refused_by_another(read):
    """By name, which is a hash of the code: no address is written."""
    assert re.search(
        r"No FFI handler registered for gnnjit_cpu_[0-9a-f]{24} ", read["told"]["error"]
    )
