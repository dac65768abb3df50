"""Long kernels that are left to XLA's thread pool: against an XLA of our own, and against kernels
whose caller works too."""

from __future__ import annotations

import ctypes
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnnjit
from gnnjit import config

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower import cpu
from gnnjit.lower.cpu import compile, ffi_abi, ffi_handler, kernel, products
from gnnjit.lower.cpu.spec import INT32, Spec

engines: list[Any] = []
"""For the life of the process: calls hold addresses into them."""

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

Call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
Helper = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ERROR, FUTURE = 0xE0, 0xF0  # addresses that nobody looks at
ROWS, PIECE, FEATURES = 10, 3, 40


def words(*values: int) -> Any:
    return (ctypes.c_uint64 * len(values))(*values)


def word(address: int, number: int) -> int:
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[number]


@dataclasses.dataclass
class Xla:
    """What the kernel calls, and what it was called with. `broken`: functions that fail."""

    broken: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        layout = ffi_abi.read_abi()
        assert isinstance(layout, ffi_abi.Abi)
        self.helpers: list[Any] = []
        self.completed: list[int] = []
        self.destroyed: list[int] = []
        functions = {
            layout.create_offset: self.create,
            layout.schedule_offset: self.schedule,
            layout.available_offset: self.available,
            layout.destroy_offset: self.destroy,
        }
        self.calls = {at: Call(function) for at, function in functions.items()}
        self.api = words(*[0] * (max(self.calls) // 8 + 1))
        for at, call in self.calls.items():
            self.api[at // 8] = ctypes.cast(call, ctypes.c_void_p).value

    def create(self, args: int) -> int:
        assert word(args, 0) == 24
        if "create" in self.broken:
            return ERROR
        ctypes.cast(args, ctypes.POINTER(ctypes.c_uint64))[2] = FUTURE
        return 0

    def schedule(self, args: int) -> int:
        assert word(args, 0) == 40
        if "schedule" in self.broken:
            return ERROR
        task, job = Helper(word(args, 3)), word(args, 4)
        self.helpers.append(lambda: task(job))
        return 0

    def available(self, args: int) -> int:
        assert word(args, 0) == 24
        self.completed.append(word(args, 2))
        return 0

    def destroy(self, args: int) -> int:
        assert word(args, 0) == 24
        self.destroyed.append(word(args, 2))
        return 0


@dataclasses.dataclass
class Case:
    """Each of some rows has one edge, from the vertex of its number, but for a hub, the first."""

    out: np.ndarray
    frame: Any
    want: np.ndarray
    alive: list[Any]

    @property
    def future(self) -> int:
        return self.frame[ffi_abi.FRAME_FUTURE // 8]


def case(xla: Xla) -> Case:
    counts = np.array([4 * PIECE, *[1] * (ROWS - 1)])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    neighbor = np.arange(indptr[-1], dtype=np.int32) % ROWS
    x = np.arange(1, ROWS + 1, dtype=np.float32)[:, None] * np.arange(
        1, FEATURES + 1, dtype=np.float32
    )
    out = np.full((ROWS, FEATURES), np.nan, np.float32)
    alive: list[Any] = [indptr, neighbor, x, out]

    def table(*arrays: np.ndarray) -> int:
        buffers = []
        for array in arrays:
            dims = words(*array.shape)
            buffers.append(words(48, 0, 0, array.ctypes.data, array.ndim, ctypes.addressof(dims)))
            alive.extend([dims, buffers[-1]])
        found = words(*map(ctypes.addressof, buffers))
        alive.append(found)
        return ctypes.addressof(found)

    frame = words(*[0] * (ffi_abi.FRAME_FUTURE // 8 + 1))
    frame[ffi_abi.FRAME_API // 8] = ctypes.addressof(xla.api)
    frame[ffi_abi.FRAME_STAGE // 8] = ffi_abi.STAGE_EXECUTE
    frame[ffi_abi.FRAME_ARGS // 8] = table(indptr, neighbor, x)
    frame[ffi_abi.FRAME_RETS // 8] = table(out)
    row = np.repeat(np.arange(ROWS), counts)
    want = np.zeros_like(out)
    np.add.at(want, row, x[neighbor])
    return Case(out, frame, want, alive)


@pytest.fixture(scope="module", params=[0, 16])
def entry(request) -> Any:
    """A kernel for which all work is long; one that takes all features, one some at a time."""
    x = Value((FEATURES,), np.dtype(np.float32), Space.SRC)
    config = kernel.default_config(threads=3, piece=PIECE, left=True, width=request.param)
    body = Program((x,), (), (x,))
    spec = Spec(body, (Reduce("sum", Space.DST),), Space.DST, INT32, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ffi_handler, "LONG_WORK", 0)
        patch.setattr(ffi_handler, "PARALLEL_WORK", 0)
        text = compile.emit(spec)
    engine = compile.load(compile.object_code(text))
    engines.append(engine)
    return Call(engine.get_function_address("entry"))


def call(entry: Any, found: Case) -> None:
    assert not entry(ctypes.addressof(found.frame))


def test_the_caller_leaves_all_work(entry):
    xla = Xla()
    found = case(xla)
    call(entry, found)
    assert found.future == FUTURE
    assert np.isnan(found.out).all()
    assert (len(xla.helpers), xla.completed) == (3, [])
    for helper in xla.helpers:  # the first does it all, the others find nothing left
        helper()
        assert xla.completed == [FUTURE]
        np.testing.assert_array_equal(found.out, found.want)
    assert xla.destroyed == []


def test_helpers_that_run_at_once_complete_it_once(entry):
    for _ in range(50):
        xla = Xla()
        found = case(xla)
        call(entry, found)
        with ThreadPoolExecutor(3) as pool:
            for _ in pool.map(lambda helper: helper(), xla.helpers):
                pass
        assert xla.completed == [FUTURE]
        np.testing.assert_array_equal(found.out, found.want)


def test_without_helpers_the_caller_does_it(entry):
    xla = Xla(broken=("schedule",))
    found = case(xla)
    call(entry, found)
    assert (found.future, xla.completed) == (FUTURE, [FUTURE])
    np.testing.assert_array_equal(found.out, found.want)
    assert xla.destroyed == [ERROR] * 3


def test_without_a_future_the_caller_waits(entry):
    xla = Xla(broken=("create",))
    found = case(xla)
    call(entry, found)
    assert (found.future, xla.completed) == (0, [])
    np.testing.assert_array_equal(found.out, found.want)
    assert (len(xla.helpers), xla.destroyed) == (2, [ERROR])
    for helper in xla.helpers:
        helper()
    np.testing.assert_array_equal(found.out, found.want)


# ------------------------------------------------------------------------------ through JAX


@gnnjit.layer
def several(v: Any, e: Any, w: Any) -> Any:
    """Reductions of rows, values that stay on the edges, and a gradient over all edges."""
    score = gnnjit.softmax(jnp.sum(jnp.tanh((e.src + v) @ w)))
    return v + gnnjit.sum(score * e.src) + gnnjit.max(jnp.tanh((e.src - v) @ w))


@pytest.fixture
def all_is_long(monkeypatch):
    """Whoever leaves work leaves all of it. Kernels that were made before are not used."""
    for work in ("LONG_WORK", "PARALLEL_WORK"):
        monkeypatch.setattr(ffi_handler, work, 0)
    monkeypatch.setattr(config, "KEEP_KERNELS", False)
    for made in ("_emitted", "_registered", "_loaded"):
        monkeypatch.setattr(kernel, made, {})
    products._product_target.cache_clear()
    yield
    products._product_target.cache_clear()


def test_values_are_the_same_bit_for_bit(all_is_long):
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 500, 40_000), np.minimum(rng.integers(0, 900, 40_000), 499)
    graph = gnnjit.Graph.from_edges(src, dst, 500)
    x, w = rng.normal(size=(500, 16)), rng.normal(size=(16, 16)) / 4
    args = graph, jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)

    def step(graph: Any, x: Any, w: Any) -> Any:
        return jnp.mean(several(graph, several(graph, x, w), w) ** 2)

    def made() -> Any:
        return jax.jit(jax.value_and_grad(step, (1, 2))).lower(*args).compile()

    here = made()
    with cpu.left_to_pool():
        left = made()
    assert "gnnjit_cpu_" in left.as_text()
    assert here.as_text() != left.as_text()
    want = jax.tree.leaves(here(*args))
    for _ in range(5):
        for a, b in zip(jax.tree.leaves(left(*args)), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_whoever_leaves_work_gets_code_of_its_own():
    with cpu.left_to_pool():
        assert kernel.default_config().left
    assert not kernel.default_config().left
