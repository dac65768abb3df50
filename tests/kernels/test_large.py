"""Kernels for arrays of more than 2**31 elements, executed for a few of their programs. Nothing is
held: what is read is computed from where it lies, what is written is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pallas
import pytest

from pallas_kernels import edges, rows
from pallas_kernels.traversal import TileOperand, TileOutput, TileProgram

from . import ttir
from .memory import Fault, Virtual
from .module import decode

Array = jax.ShapeDtypeStruct
Content = Callable[[np.ndarray], np.ndarray]


def kernel_of(call: Callable[..., Any], *avals: Any) -> pallas.Kernel:
    (kernel,) = pallas.kernels(pallas.lower_for_cuda(pallas.trace_for_cuda(call, *avals)))
    return kernel


def feature(at: np.ndarray) -> np.ndarray:
    """A small number, another one at each place nearby."""
    return at % 1021 - 500


def executed(
    kernel: pallas.Kernel, avals: list[Any], contents: list[Content], outs: list[Any], programs: Any
) -> list[dict[int, Any]]:
    """What these programs write, by place."""
    sizes = [int(np.prod(a.shape, dtype=np.int64)) for a in (*avals, *outs)]
    buffers = [
        Virtual(f"operand {i}", n, a.dtype, f)
        for i, (n, a, f) in enumerate(zip(sizes, avals, contents, strict=False))
    ]
    made = [Virtual(f"output {i}", n, o.dtype, None)
            for i, (n, o) in enumerate(zip(sizes[len(avals) :], outs, strict=True))]  # fmt: skip
    ttir.launch(decode(kernel.code), [*buffers, *made], programs)
    return [b.stored for b in made]


def sums_of_rows(count: int, width: int, dtype: Any, index: Any) -> None:
    """Each row has two edges, from itself and from a row far away."""
    t = TileProgram(
        lambda tiles: enumerate([tiles[0].astype(jnp.float32)]),
        (TileOperand("neighbor", (width,), np.dtype(dtype)),),
        (TileOutput("sum", (width,), np.dtype(np.float32)),),
    )
    ids = [Array((count,), index)] * 3 + [Array((2 * count,), index)] * 2
    avals = [*ids, Array((count, width), dtype)]

    def call(row: Any, start: Any, length: Any, neighbor: Any, edge: Any, x: Any) -> Any:
        none = rows.Tasks(*(jnp.zeros(0, index),) * 3)
        plan = rows.TaskPlan(rows.Tasks(row, start, length), none, none, 0)
        return rows.run(
            t, plan, neighbor, edge, [x], count, rows.RowTiles.alike(rows.TileConfig(lanes=16))
        )

    def far(slot: np.ndarray) -> np.ndarray:
        return np.where(slot % 2 == 0, slot // 2, count - 1 - slot // 2)

    contents: list[Content] = [
        lambda i: i, lambda i: 2 * i, lambda i: np.full_like(i, 2), far, lambda i: i, feature,
    ]  # fmt: skip
    kernel = kernel_of(call, *avals)
    assert kernel.programs == count
    programs = np.array([0, 1, count // 2, count - 2, count - 1])
    out = Array((count, width), np.dtype(np.float32))
    (stored,) = executed(kernel, avals, contents, [out], programs)
    assert len(stored) == len(programs) * width
    for row in programs.tolist():
        columns = np.arange(width)
        want = sum(
            feature(n * width + columns).astype(dtype).astype(np.float32)
            for n in (row, count - 1 - row)
        )
        have = [stored[row * width + c] for c in range(width)]
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize(
    ("count", "width", "dtype"),
    [(2**26 + 3, 64, "float32"), (2**24 + 5, 200, "bfloat16"), (2**25 + 1, 130, "int8")],
)
def test_many_features(count, width, dtype):
    sums_of_rows(count, width, jnp.dtype(dtype), jnp.int32)


def on_edges(count: int, dtype: Any) -> list[dict[int, Any]]:
    """Twice a number of each edge, by the first and the last programs."""
    t = TileProgram(
        lambda tiles: enumerate([tiles[0] + tiles[0]]),
        (TileOperand("edge", (), np.dtype(dtype)),),
        (TileOutput(None, (), np.dtype(dtype)),),
    )
    with jax.enable_x64(True):
        avals = [Array((count,), jnp.int64)] * 2 + [Array((count,), dtype)]

        def call(row: Any, neighbor: Any, x: Any) -> Any:
            return edges.run(t, row, neighbor, None, [x], rows.TileConfig(lanes=64))

        kernel = kernel_of(call, *avals)
    programs = np.array([0, kernel.programs // 2, kernel.programs - 1])
    contents: list[Content] = [lambda i: i * 0, lambda i: i * 0, lambda i: i % 50]
    return executed(kernel, avals, contents, [Array((count,), dtype)], programs)


@pytest.mark.parametrize(
    ("count", "dtype"), [(2**31 + 70, "float32"), (2**32 + 70, "int8"), (2**31 + 70, "bfloat16")]
)
def test_many_edges(count, dtype):
    (stored,) = on_edges(count, jnp.dtype(dtype))
    assert max(stored) == count - 1
    assert min(stored) == 0
    assert all(float(x) == 2 * (at % 50) for at, x in stored.items())


def test_offsets_that_overflow_are_noticed():
    """Pallas counts elements of one byte up to 2**32 in signed 32 bits: such graphs get no kernel
    (`gnnjit/lower/pallas/limits.py`)."""
    with pytest.raises(Fault, match=r"operand 2: program \d+ loads outside its 3000000000: .* -"):
        on_edges(3_000_000_000, jnp.dtype(np.int8))
