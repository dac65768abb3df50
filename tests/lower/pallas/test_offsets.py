"""Arrays of more than 2**31 elements, whose offsets do not fit 32 bits. Nothing is allocated."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pallas
import pytest

import gnnjit
from gnnjit.graph import Graph
from gnnjit.ir.program import Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower import choose
from gnnjit.lower.pallas import mosaic as kernel_mosaic
from lower.requests import request

MANY = 2**31 + 8
Array = jax.ShapeDtypeStruct


def offset_bits(kernel: pallas.Kernel) -> dict[int, set[int]]:
    """The widths of the offsets into each array of a kernel, by its number."""
    text = kernel.text()
    root = {f"%arg{n}": n for n in range(text.count("%arg"))}
    found: dict[int, set[int]] = {}
    line = r"(%\w+) = tt\.(splat|broadcast|expand_dims|reshape|bitcast|addptr) (%\w+)(.*)"
    for out, op, first, rest in re.findall(line, text):
        if first not in root or "!tt.ptr" not in rest:
            continue
        root[out] = root[first]
        if op == "addptr":
            width = re.search(r"i(\d+)>?$", rest)
            assert width
            found.setdefault(root[first], set()).add(int(width[1]))
    return found


def inputs_of(kernel: pallas.Kernel) -> list[str]:
    """The element types of the arrays of a kernel, in order."""
    return re.findall(r"%arg\d+: !tt\.ptr<(\w+)>", kernel.text())


def abstract_graph(num_nodes: int, num_edges: int, dtype: Any, mask: bool = False) -> Graph:
    index = Array((num_edges,), dtype)
    graph = jax.eval_shape(lambda s, d: Graph.from_edges(s, d, num_nodes=num_nodes), index, index)
    return graph if mask else dataclasses.replace(graph, mask=None)


def trace(fn: Any, graph: Graph, x: Any, data: Any = None) -> tuple[Any, list[choose.Choice]]:
    layer = gnnjit.layer(fn)
    traced = pallas.trace_for_cuda(lambda g, x, d: layer(g, x, edges=d), graph, x, data)
    return traced, pallas.choices_of(traced)


def kernels(fn: Any, graph: Graph, x: Any, data: Any = None) -> list[pallas.Kernel]:
    traced, chosen = trace(fn, graph, x, data)
    assert [c.refused for c in chosen if c.kernel != "pallas"] == []
    return pallas.kernels(pallas.lower_for_cuda(traced))


def total(v, e):
    return gnnjit.sum(e.src)


def weighted(v, e):
    return gnnjit.sum(e.src * e.data.astype(e.src.dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_features(dtype):
    (kernel,) = kernels(total, abstract_graph(2**26, 1000, jnp.int32), Array((2**26, 64), dtype))
    bits = offset_bits(kernel)
    name = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    large = [i for i, t in enumerate(inputs_of(kernel)) if t == name]
    assert len(large) == 2  # the features and the result
    assert all(bits[i] == {64} for i in large)
    assert set().union(*(w for i, w in bits.items() if i not in large)) == {32}


def test_small_arrays_keep_32_bits():
    (kernel,) = kernels(
        total, abstract_graph(2**20, 1000, jnp.int32), Array((2**20, 64), "float32")
    )
    assert set().union(*offset_bits(kernel).values()) == {32}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fn", [weighted, lambda v, e: jnp.sin(e.data)], ids=["rows", "edges"])
def test_many_edges(fn, dtype):
    with jax.enable_x64(True):
        graph = abstract_graph(1000, MANY, jnp.int64)
        (kernel,) = kernels(fn, graph, Array((1000,), dtype), Array((MANY,), dtype))
        assert graph.src.dtype == jnp.int64
    bits = offset_bits(kernel)
    name = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    large = [i for i, t in enumerate(inputs_of(kernel)) if t == name]
    assert {64} in [bits[i] for i in large]
    # The programs are numbered in 64 bits before anything is computed from their number.
    assert re.search(r"arith\.ext[su]i %\d+ : i32 to i64", kernel.text())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
def test_one_byte_is_counted_in_32_bits_and_refused(dtype):
    with jax.enable_x64(True):
        graph = abstract_graph(1000, MANY, jnp.int64)
        _, (choice,) = trace(weighted, graph, Array((1000,), jnp.float32), Array((MANY,), dtype))
    assert choice.kernel == "segment"
    assert dict(choice.refused)["pallas"] == (f"an array of {MANY} elements of type {dtype}",)


@pytest.mark.parametrize("fn", [total, lambda v, e: jnp.sin(e.src + v)], ids=["rows", "edges"])
def test_a_mask_of_too_many_edges(fn):
    """Rows know their own edges; values on the edges are cleared by the mask."""
    with jax.enable_x64(True):
        graph = abstract_graph(1000, MANY, jnp.int64, mask=True)
        _, (choice,) = trace(fn, graph, Array((1000,), jnp.float32))
    reasons = (f"an array of {MANY} elements of type bool",)
    assert dict(choice.refused).get("pallas") == (None if fn is total else reasons)


def test_more_rows_than_a_launch_takes():
    with jax.enable_x64(True):
        graph = abstract_graph(MANY, 1000, jnp.int64)
        _, (choice,) = trace(total, graph, Array((MANY,), jnp.float32))
    assert dict(choice.refused)["pallas"] == (f"{MANY} rows are more than one launch takes",)


def test_edges_up_to_the_last_32_bit_number():
    graph = abstract_graph(1000, 2**31 - 1, jnp.int32)
    _, (choice,) = trace(total, graph, Array((1000,), jnp.float32))
    assert dict(choice.refused)["pallas"] == (f"{2**31 - 1} edges need 64-bit indices",)


@pytest.mark.parametrize("dtype", ["int8", "bool"])
@pytest.mark.parametrize("count", [2**31, 2**32 + 8])
def test_one_byte_outside_of_the_range(count, dtype):
    with jax.enable_x64(True):
        graph = abstract_graph(1000, count, jnp.int64)
        x, data = Array((1000,), jnp.float32), Array((count,), dtype)
        (kernel,) = kernels(weighted, graph, x, data)
    at = [i for i, t in enumerate(inputs_of(kernel)) if t in ("i8", "i1")]
    assert [offset_bits(kernel)[i] for i in at] == [{64 if count > 2**32 else 32}]


@pytest.mark.parametrize(("nodes", "refused"), [(2**24, True), (2**20, False)])
def test_mosaic_takes_no_array_of_more_than_32_bits(nodes: int, refused: bool) -> None:
    x = Value((128,), np.dtype(np.float32), Space.SRC)
    body, reductions = Program((x,), (), (x,)), (Reduce("sum", Space.DST),)
    graph = abstract_graph(nodes, 1000, np.int32)
    reasons = kernel_mosaic.why_not(request(body, reductions, graph=graph))
    assert (f"an array of {128 * nodes} elements" in reasons) == refused
