"""`a.T @ b` of two tall arrays, the gradient of a matrix that multiplies every vertex.

XLA's dot transposes `a` on the way and takes three times as long. The product is a sum over all
elements, of outer products: it runs as a traversal does, each task into a record of its own,
records added up in order. So the result is the same bit for bit on any number of threads.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jax import lax
from llvmlite import ir

from gnnjit.ir.build import elementwise
from gnnjit.ir.program import Builder, Program, Reduce, Value
from gnnjit.ir.space import Space
from gnnjit.lower.cpu.calls import Fact
from gnnjit.lower.cpu.ffi_handler import Handler
from gnnjit.lower.cpu.outer_products import Products
from gnnjit.lower.cpu.simd import I64, PTR
from gnnjit.lower.cpu.spec import INT32, CodeConfig, Spec

PIECE = 1024
"""Elements of one task at least."""


def spec_of(left: int, right: int, dtype: np.dtype, config: CodeConfig) -> Spec:
    """The product as a traversal: the sum over all edges `u` of `a[u] b[u]^T`."""
    a, b = (Value((n,), dtype, Space.SRC) for n in (left, right))
    builder = Builder((a, b))
    outer = elementwise(builder, _outer, [a, b])
    body = Program((a, b), tuple(builder.equations), (outer,), "tall")
    # The records of all tasks together stay small beside `a` and `b`.
    config = dataclasses.replace(config, piece=max(PIECE, left * right // 64))
    return Spec(body, (Reduce("sum", Space.SHARED),), Space.DST, INT32, config)


def _outer(x: Any, y: Any) -> Any:
    return lax.dot_general(x, y, (((), ()), ((), ())))


class TallProduct(Handler):
    """A kernel whose task multiplies some consecutive rows of `a` and `b`.

    There is one row, whose edges are the elements: its own key is 0, element `i` has key `i + 1`.
    A call has `a` and `b` alone: a graph of constants would be one more array for XLA to make.
    """

    def facts(self) -> dict[Fact, int | ir.Constant]:
        return super().facts() | {Fact.ROWS: 1, Fact.ELEMENTS: 0, Fact.GIVEN: 0, Fact.ARGUMENTS: 2}

    def emit_task(self, name: str) -> None:
        task, _, _ = self.begin(name, I64, I64, PTR)
        b, m = self.b, self.m
        low = b.mul(task, I64(self.piece))
        since = m.larger(b.sub(low, I64(1)), I64(0))
        until = m.smaller(b.add(low, I64(self.piece - 1)), self.slots)
        (acc,) = self.of_all
        left, right = (v.shape[0] for v in self.spec.body.inputs)
        own = m.offset(m.offset(self.partial, task, self.record), acc.leading, 1)
        products = Products(m, acc.dtype, left, right, own, self.spec.block_registers)
        products.clear()
        arrays = self.operand(0), self.operand(1)
        products.add_many(arrays, since, until)
        b.ret_void()
