"""Planted faults: each is noticed when the kernels are executed (`ttir.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pallas
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

import gnnjit
from gnnjit.graph.row_tasks import TaskList
from pallas_kernels import triton

from . import on_cuda, ttir
from .memory import Buffer, Fault
from .module import Module, Op, decode, rewritten

SRC = np.array([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3])
DST = np.array([0, 0, 0, 0, 0, 0, 1, 2, 2, 3, 5])
WIDTH = 5


def graph(tasks: bool = True) -> gnnjit.Graph:
    made = gnnjit.Graph.from_edges(SRC, DST, num_nodes=7)
    return pallas.with_tasks(made, 1, 4) if tasks else made


@gnnjit.layer
def rows(v: Any, e: Any) -> Any:
    return gnnjit.sum(jnp.tanh(e.src + v))


@gnnjit.layer
def edges(v: Any, e: Any) -> Any:
    return jnp.tanh(e.src + v)


def executed(layer: Any, change: Any = None, made: Any = None) -> Any:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(7, WIDTH)), jnp.float32)
    return on_cuda.run(layer, made or graph(), x, change=change).outputs


# ------------------------------------------------------------------------------- changes to the IR


def only(name: str, fn: Callable[[Op], Op]) -> Callable[[Module], Module]:
    return lambda module: rewritten(module, lambda op: fn(op) if op.name == name else op)


def unmasked(name: str, keep: int) -> Callable[[Module], Module]:
    """Loads or stores without their mask."""
    return only(name, lambda op: dataclasses.replace(op, inputs=op.inputs[:keep]))


def _inclusive(op: Op) -> Op:
    """`<` becomes `<=`."""
    predicate = {2: 3}.get(op.attributes["predicate"], op.attributes["predicate"])
    return dataclasses.replace(op, attributes={**op.attributes, "predicate": predicate})


def _first(op: Op) -> Op:
    """Every program takes itself for the first."""
    return dataclasses.replace(op, name="arith.constant", attributes={"value": 0})


off_by_one = only("arith.cmpi", _inclusive)
same_program = only("tt.get_program_id", _first)

CHANGES = {
    "loads without a mask": (unmasked("tt.load", 1), "loads outside its"),
    "stores without a mask": (unmasked("tt.store", 2), "stores"),
    "masks off by one": (off_by_one, "loads outside its"),
    "one program runs twice": (same_program, "stores, as another program or lane does, element"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_instructions_of_rows(name):
    change, message = CHANGES[name]
    with pytest.raises(Fault, match=message):
        executed(rows, change)


@pytest.mark.parametrize("name", [n for n in CHANGES if n != "one program runs twice"])
def test_changed_instructions_of_edges(name):
    """One program is enough for these."""
    change, message = CHANGES[name]
    with pytest.raises(Fault, match=message):
        executed(edges, change)


def test_nothing_is_found_without_a_fault():
    for layer in (rows, edges):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(7, WIDTH)), jnp.float32)
        want = np.tanh(np.asarray(x)[SRC] + np.asarray(x)[DST])
        if layer is rows:
            want = np.stack([want[DST == v].sum(0) for v in range(7)])
        np.testing.assert_allclose(executed(layer), want, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------- wrong task lists


def _without_last(tasks: TaskList) -> TaskList:
    return TaskList(*(None if a is None else a[:-1] for a in tasks))


def test_a_row_that_nobody_writes():
    made = graph()
    short = made.in_structure.tasks.short
    tasks = dataclasses.replace(made.in_structure.tasks, short=_without_last(short))
    structure = dataclasses.replace(made.in_structure, tasks=tasks)
    with pytest.raises(Fault, match=f"an output has {WIDTH} elements that no program wrote"):
        executed(rows, None, dataclasses.replace(made, in_structure=structure))


def test_a_piece_that_nobody_writes():
    """The next launch reads it."""
    made = graph()
    tasks = made.in_structure.tasks
    kept = np.asarray(tasks.long.piece) != 1
    long = TaskList(*(a[kept] for a in tasks.long))
    structure = dataclasses.replace(made.in_structure, tasks=dataclasses.replace(tasks, long=long))
    with pytest.raises(Fault, match="loads, before anything wrote it, element 5"):
        executed(rows, None, dataclasses.replace(made, in_structure=structure))


# ------------------------------------------------------------------------------ kernels that race


def run_kernel(kernel: Callable[..., None], programs: int, **options: Any) -> Any:
    def call(x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8,), jnp.float32),
            grid=(programs,),
            compiler_params=plgpu.CompilerParams(num_warps=1),
            **options,
        )(x)

    return on_cuda.run(call, jnp.arange(8.0)).outputs


def test_reading_what_another_program_writes():
    def shift(x: Any, y: Any) -> None:
        at = pl.program_id(0) * 4 + jnp.arange(4)
        y[at] = y[(at + 4) % 8]

    with pytest.raises(Fault, match="program 0 stores, while another program reads it"):
        run_kernel(shift, 2, input_output_aliases={0: 0})


def test_reading_what_the_program_itself_writes():
    def double(x: Any, y: Any) -> None:
        at = pl.program_id(0) * 4 + jnp.arange(4)
        y[at] = 2 * y[at]

    np.testing.assert_array_equal(
        run_kernel(double, 2, input_output_aliases={0: 0}), 2 * np.arange(8.0)
    )


def test_atomic_operations():
    def add(x: Any, y: Any) -> None:
        plgpu.atomic_add(y, (jnp.arange(8),), x[...])

    with pytest.raises(Fault, match=r"tt.atomic_rmw: the order of atomic operations is not fixed"):
        run_kernel(add, 2)


def test_lanes_that_write_one_element():
    def collide(x: Any, y: Any) -> None:
        y[jnp.arange(8) // 2] = x[...]

    with pytest.raises(Fault, match="program 0 stores, as another program or lane does, element 0"):
        run_kernel(collide, 1)


def test_a_store_into_an_operand():
    def swap(x: Any, y: Any) -> None:
        y[...] = x[...]
        x[...] = jnp.zeros(8)

    with pytest.raises(Fault, match="operand 0: program 0 stores into an operand: element 0"):
        run_kernel(swap, 1)


def test_nan_as_on_the_hardware():
    """`maxnumf` drops it."""

    def largest(x: Any, y: Any) -> None:
        y[...] = jnp.maximum(x[...] / x[...], 0.5)

    np.testing.assert_array_equal(run_kernel(largest, 1), [0.5, *[1.0] * 7])


def test_products_in_tf32():
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(16, 16)).astype(np.float32) for _ in range(2))

    def product(a: Any, b: Any, c: Any) -> None:
        c[...] = triton.matmul(a[...], b[...])

    def call(a: Any, b: Any) -> Any:
        return pl.pallas_call(
            product, out_shape=jax.ShapeDtypeStruct((16, 16), jnp.float32),
            compiler_params=plgpu.CompilerParams(num_warps=1),
        )(a, b)  # fmt: skip

    exact = a.astype(np.float64) @ b
    off = [np.abs(on_cuda.run(call, a, b, tf32=t).outputs - exact).max() for t in (False, True)]
    assert off[0] < 1e-5
    assert 1e-4 < off[1] < 1e-2


def test_rounding_to_tf32():
    one, tie, odd = 1.0, 1 + 2.0**-11, 1 + 3 * 2.0**-11
    given = np.array([one, tie, odd, 1 + 2.0**-10, -tie, np.inf, np.nan], np.float32)
    want = [1, 1, 1 + 2.0**-9, 1 + 2.0**-10, -1, np.inf, np.nan]
    np.testing.assert_array_equal(ttir.rounded_to_tf32(given), want)


def test_loops_of_different_length():
    """Programs leave a loop one after the other."""
    text = """
    module { tt.func public @f(%n: !tt.ptr<i32>, %out: !tt.ptr<i32>) {
        %i = tt.get_program_id x : i32
        %p = tt.addptr %n, %i : !tt.ptr<i32>, i32
        %k = tt.load %p : !tt.ptr<i32>
        %zero = arith.constant 0 : i32
        %one = arith.constant 1 : i32
        %s = scf.for %j = %zero to %k step %one iter_args(%a = %zero) -> (i32) : i32 {
          %b = arith.addi %a, %j : i32
          scf.yield %b : i32
        }
        %q = tt.addptr %out, %i : !tt.ptr<i32>, i32
        tt.store %q, %s : !tt.ptr<i32>
        tt.return
      } }
    """
    counts = np.array([3, 0, 7, 1], np.int32)
    out = Buffer("out", np.zeros(4, np.int32), True, np.ones(4, bool))
    ttir.launch(decode(text), [Buffer("n", counts, False), out], np.arange(4))
    np.testing.assert_array_equal(out.data, counts * (counts - 1) // 2)
    assert not out.unwritten.any()
