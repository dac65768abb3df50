"""Kernels that a thread compiles while XLA compiles what calls them."""

from __future__ import annotations

import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from gnnjit.lower.cpu import compile as compiler
from gnnjit.lower.cpu import entry_points, kernel, registered, tall_matmul

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")


def product_code(left: int, right: int) -> str:
    dtype = np.dtype(np.float32)
    spec = tall_matmul.spec_of(left, right, dtype, kernel.default_config())
    return compiler.emit(spec, kind=tall_matmul.TallProduct)


def product(name: str, a: jax.Array, b: jax.Array) -> jax.Array:
    shape = jax.ShapeDtypeStruct((a.shape[1], b.shape[1]), a.dtype)
    (out,) = jax.ffi.ffi_call(name, [shape])(a, b)
    return out


def arrays(left: int, right: int) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(left)
    a, b = (jnp.asarray(rng.integers(-3, 4, (50, n)), jnp.float32) for n in (left, right))
    return a, b


def test_a_program_waits_for_its_kernel():
    """It is compiled by XLA, and runs, before there is any machine code."""
    text, may_go_on = product_code(5, 9), threading.Event()

    def make() -> bytes:
        assert may_go_on.wait(60)
        return compiler.object_code(text)

    a, b = arrays(5, 9)
    name = "gnnjit_cpu_test_waits"
    registered.register_later(name, make)
    compiled = jax.jit(lambda a, b: product(name, a, b)).lower(a, b).compile()
    results: list[np.ndarray] = []
    runs = threading.Thread(target=lambda: results.append(np.asarray(compiled(a, b))))
    runs.start()
    assert not results
    may_go_on.set()
    runs.join(60)
    np.testing.assert_array_equal(results[0], a.T @ b)


def test_a_kernel_that_cannot_be_compiled_is_an_error_where_it_runs():
    listened = threading.Event()

    def make() -> bytes:
        assert listened.wait(60)
        raise MemoryError("no room for code")

    a, b = arrays(3, 4)
    name = "gnnjit_cpu_test_fails"
    registered.register_later(name, make)
    with pytest.warns(UserWarning, match=f"the CPU kernel {name}: no room for code"):
        _finish_once(listened)
    with pytest.raises(jax.errors.JaxRuntimeError, match="LLVM failed to compile this CPU kernel"):
        jax.block_until_ready(jax.jit(lambda a, b: product(name, a, b))(a, b))


def _finish_once(listened: threading.Event) -> None:
    listened.set()
    registered.finish()


def test_more_kernels_than_one_module_has_entry_points():
    """Each has a cell of its own."""
    while registered._taken % entry_points.COUNT != entry_points.COUNT - 2:
        registered._free_entry_point()
    for width in (2, 3, 4, 5):
        name = f"gnnjit_cpu_test_entry_{width}"
        registered.register_later(name, lambda n=width: compiler.object_code(product_code(n, n)))
    for width in (5, 4, 3, 2):
        a, b = arrays(width, width)
        got = jax.jit(product, static_argnums=0)(f"gnnjit_cpu_test_entry_{width}", a, b)
        np.testing.assert_array_equal(got, a.T @ b)


def test_a_name_is_registered_once():
    text = product_code(6, 2)
    registered.register("gnnjit_cpu_test_once", compiler.object_code(text))
    registered.register("gnnjit_cpu_test_once", b"no code")
    kept: list[bytes] = []

    def make() -> bytes:
        kept.append(b"no code")
        return kept[0]

    registered.register_later("gnnjit_cpu_test_once", make)
    registered.finish()
    assert kept
    a, b = arrays(6, 2)
    np.testing.assert_array_equal(product("gnnjit_cpu_test_once", a, b), a.T @ b)


SCRIPT = """
import jax, jax.numpy as jnp, gnnjit

@gnnjit.layer
def layer(v, e, w):
    return gnnjit.sum(jnp.tanh(e.src + v) @ w)

graph = gnnjit.Graph.from_edges([0, 1], [1, 0], num_nodes=2)
jax.jit(layer).lower(graph, jnp.ones((2, 40)), jnp.ones((40, 40))).compile()
"""


def test_a_process_ends_while_kernels_are_compiled():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
