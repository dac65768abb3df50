"""A light copy of a program, to count its work and that of its gradient without tracing either.

Nodes have a width and a place but no parameters; equal ones are made once. A tape of them is
differentiated in reverse by rule, so that a gradient costs microseconds instead of a trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from gnnjit.cost.operations import TABLE, OpCost

P = TypeVar("P")
"""A place: a space in an edge function; among whole arrays, the number of elements."""


class Node(Generic[P]):
    """One value per element of `place`: `width` scalars of `itemsize` bytes."""

    __slots__ = (
        "bytes", "cost", "inner", "inputs", "itemsize", "key", "live", "op", "place", "width",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        cost: OpCost,
        inputs: tuple[Node[P], ...],
        place: P,
        width: int,
        itemsize: int,
    ):
        self.op, self.cost, self.inputs = op, cost, inputs
        self.place, self.width, self.itemsize = place, width, itemsize
        self.bytes = width * itemsize
        """Per element."""
        self.live = cost.rule != "none" and any([i.live for i in inputs])
        self.inner = 0  # contracted scalars of a dot
        self.key: Hashable = None

    def __repr__(self) -> str:
        return f"{self.op}[{self.place}, {self.width}]"


_LEAF = OpCost("none")


class Tape(Generic[P]):
    """Nodes in the order in which they were made. `join` is the place of a result."""

    def __init__(self, join: Callable[[Sequence[P]], P]):
        self.join = join
        self.nodes: list[Node[P]] = []
        self._made: dict[Hashable, Node[P]] = {}

    def leaf(
        self, key: Hashable, place: P, width: int, itemsize: int, live: bool = False
    ) -> Node[P]:
        """A value that is given. `live`: a gradient for it is wanted."""
        made = self._made.get(key)
        if made is None:
            made = Node("leaf", _LEAF, (), place, width, itemsize)
            made.key, made.live = key, live
            self._made[key] = made
            self.nodes.append(made)
        return made

    def add(
        self,
        op: str,
        cost: OpCost,
        inputs: Sequence[Node[P]],
        width: int,
        itemsize: int,
        *,
        inner: int = 0,
        detail: Hashable = None,
        place: P | None = None,
    ) -> Node[P]:
        """The node, or the equal one that there is."""
        operands = tuple(inputs)
        key = (op, detail, width, operands, place)
        made = self._made.get(key)
        if made is None:
            at = self.join([i.place for i in operands]) if place is None else place
            made = Node(op, cost, operands, at, width, itemsize)
            made.inner = inner
            self._made[key] = made
            self.nodes.append(made)
        return made

    def view(self, x: Node[P], width: int) -> Node[P]:
        return x if x.width == width else self.add("view", TABLE["copy"], [x], width, x.itemsize)

    def binary(self, op: str, a: Node[P], b: Node[P]) -> Node[P]:
        width = max(a.width, b.width)
        pair = [self.view(a, width), self.view(b, width)]
        return self.add(op, TABLE[op], pair, width, max(a.itemsize, b.itemsize))

    def total(self, terms: Sequence[Node[P]]) -> Node[P]:
        out = terms[0]
        for term in terms[1:]:
            out = self.binary("add", out, term)
        return out

    def fold(self, x: Node[P], width: int) -> Node[P]:
        """`x` summed within each element to `width` scalars."""
        if x.width <= width:
            return self.view(x, width)
        return self.add("reduce_sum", TABLE["reduce_sum"], [x], width, x.itemsize)


def pull_back(tape: Tape[P], node: Node[P], ct: Node[P]) -> list[tuple[Node[P], Node[P]]]:
    """What `ct`, the cotangent of `node`, adds to those of its live inputs."""
    rule = node.cost.rule
    if rule == "div":
        return _quotient_back(tape, node, ct)
    inputs = node.inputs[1:] if rule == "select" else node.inputs
    return [
        (x, tape.fold(_share(tape, node, k, ct), x.width) if rule != "dot" else
         _dot_back(tape, node, x, ct))
        for k, x in enumerate(inputs)
        if x.live
    ]  # fmt: skip


def _share(tape: Tape[P], node: Node[P], k: int, ct: Node[P]) -> Node[P]:
    """The cotangent of input `k`, before it is folded to that input's width."""
    rule = node.cost.rule
    if rule in ("view", "linear", "sum"):
        return ct
    if rule == "mul":
        return tape.binary("mul", ct, node.inputs[1 - k])
    if rule == "select":
        parts = [node.inputs[0], ct, node.inputs[1 + k]]
        return tape.add("select_n", TABLE["select_n"], parts, ct.width, ct.itemsize)
    x, cost = node.inputs[k], node.cost
    slope = OpCost("smooth", max(2.0, cost.arithmetic), in_kernels=cost.in_kernels)
    width = max(x.width, node.width)
    derivative = tape.add("slope", slope, [x, node], width, node.itemsize)
    if node.op == "custom_jvp_call" and not node.cost.transcendental:  # `relu` and its like
        return tape.add("select_n", TABLE["select_n"], [derivative, ct], width, ct.itemsize)
    return tape.binary("mul", ct, derivative)


def _quotient_back(tape: Tape[P], node: Node[P], ct: Node[P]) -> list[tuple[Node[P], Node[P]]]:
    a, b = node.inputs
    share = tape.binary("div", ct, b)
    out = [(a, tape.fold(share, a.width))] if a.live else []
    if b.live:
        out.append((b, tape.fold(tape.binary("mul", share, node), b.width)))
    return out


def _dot_back(tape: Tape[P], node: Node[P], x: Node[P], ct: Node[P]) -> Node[P]:
    """The cotangent of one factor of a product: a product with the other one."""
    other = node.inputs[1] if x is node.inputs[0] else node.inputs[0]
    scalars = node.width * node.inner  # multiplications per element
    inner = max(1, scalars // max(1, x.width))
    return tape.add("dot_general", TABLE["dot_general"], [ct, other], x.width, x.itemsize,
                    inner=inner)  # fmt: skip


def scalars(shape: Sequence[int]) -> int:
    return math.prod(shape)
