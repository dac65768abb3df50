"""Parts that several kernels call are compiled once, and are in the code of each."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="CPU kernels are generated with llvmlite")

from gnnjit.lower.cpu import compile, kernel
from gnnjit.lower.cpu.control_flow import PARTS

from .test_edge_tiles import spec_of
from .test_kernel import DST, EDGE, F32, SHARED, SUM, check, data, graph, trace

unavailable = kernel.unavailable()
pytestmark = pytest.mark.skipif(bool(unavailable), reason="; ".join(unavailable) or "available")

WIDTH = 53
"""A width that no other test has: parts are known for the life of a process."""


def body(last, width=WIDTH):
    return trace(
        lambda x, y, w: last(jnp.tanh(x + y) @ w),
        *[(EDGE, (width,), F32)] * 2, (SHARED, (width, width), F32),
    )  # fmt: skip


def code_of(last, width=WIDTH, **config) -> str:
    found = kernel._code(spec_of(body(last, width), (SUM,), **config))
    assert isinstance(found, str)
    return found


def test_kernels_share_a_product():
    texts = [code_of(last) for last in (jnp.sin, jnp.cos)]
    (name,) = compile.parts_of(texts[0])
    assert compile.parts_of(texts[1]) == [name]
    assert f"matmul_float32_{WIDTH}_{WIDTH}" in name
    assert "fma" in PARTS[name]
    assert compile.with_parts(texts[0]) == texts[0] + "\n" + PARTS[name]

    before = compile._part.cache_info().misses
    bundles = [list(compile._unbundled(compile.object_code(text))) for text in texts]
    assert compile._part.cache_info().misses == before + 1
    assert [len(files) for files in bundles] == [2, 2]
    assert bundles[0][1] == bundles[1][1]
    assert bundles[0][0] != bundles[1][0]


def test_what_differs_is_another_part():
    texts = [code_of(jnp.sin), code_of(jnp.sin, WIDTH + 1), code_of(jnp.sin, lanes_bytes=16)]
    names = [name for text in texts for name in compile.parts_of(text)]
    assert len(set(names)) == 3


def test_both_run():
    case = graph()
    for last in (jnp.sin, jnp.cos):
        some = body(last)
        check(some, (SUM,), case, [np.asarray(a) / 8 for a in data(case, some)])


def test_a_kernel_without_products_has_no_part():
    some = trace(lambda x, y: x * y, (EDGE, (5,), F32), (DST, (5,), F32))
    found = kernel._code(spec_of(some, (SUM,)))
    assert isinstance(found, str)
    assert compile.parts_of(found) == []
    assert len(list(compile._unbundled(compile.object_code(found)))) == 1
