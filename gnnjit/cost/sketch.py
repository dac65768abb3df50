"""The operations that a layer runs, forward and backward, from its optimised program alone.

The gradient of an aggregate is sketched as it is made (`lower.aggregate`): the transposed edge
function, one traversal for each space whose elements own a result, factors of the row taken out of
the sum, work on one endpoint moved to the vertices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gnnjit.cost.nodes import Node, Tape, pull_back, scalars
from gnnjit.cost.operations import TABLE, OpCost, cost
from gnnjit.ir.dtypes import is_inexact
from gnnjit.ir.kept import KEPT
from gnnjit.ir.program import (
    Aggregate,
    Atom,
    AtVertex,
    Degree,
    Equation,
    Fold,
    Index,
    Lax,
    Literal,
    OfGraph,
    Pool,
    Program,
    Reduce,
    Select,
    Value,
)
from gnnjit.ir.space import Space, join

EdgeNode = Node[Space]
ArrayNode = Node[int]
_TIES = OpCost("none", 3)


@dataclasses.dataclass(frozen=True)
class GraphSizes:
    """Number of sources, destinations and edges (with padding), and of graphs."""

    src: int
    dst: int
    edges: int
    graphs: int = 1

    def __getitem__(self, space: Space) -> int:
        if space is Space.EDGE:
            return self.edges
        if space is Space.SHARED:
            return 1
        if space is Space.GRAPH:
            return self.graphs
        return self.src if space is Space.SRC else self.dst


@dataclasses.dataclass(frozen=True)
class SketchedTraversal:
    """One pass over the edges: what it reduces into which space (None: written on the edges)."""

    rows: Space
    outputs: tuple[tuple[EdgeNode, Space | None], ...]
    backward: bool

    def nodes(self) -> list[EdgeNode]:
        """Everything that the outputs are made of, leaves included."""
        seen: dict[EdgeNode, None] = {}
        stack = [n for n, _ in self.outputs]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen[node] = None
                stack += () if self.reads(node) else node.inputs
        return list(seen)

    def without(self, output: tuple[EdgeNode, Space | None]) -> SketchedTraversal:
        kept = tuple(o for o in self.outputs if o != output)
        return dataclasses.replace(self, outputs=kept)

    def reads(self, node: EdgeNode) -> bool:
        """Whether it is read from memory: what is given, and what the forward has kept."""
        return node.op == "leaf" or (self.backward and node.op == KEPT.name)


@dataclasses.dataclass
class Sketch:
    """Whole-array operations and traversals, in order.

    outputs: what the call returns, then the gradients.
    """

    sizes: GraphSizes
    operations: list[ArrayNode]
    traversals: list[SketchedTraversal]
    outputs: list[ArrayNode]


def sketch(
    program: Program,
    slots: Sequence[int],
    sizes: GraphSizes,
    differentiated: Sequence[bool] | None,
    *,
    online: bool = False,
) -> Sketch:
    """Sketch a program after `fuse-scatter-apply-gather`.

    slots: which array each input is; differentiated: which arrays need gradients, None if none is
    taken. `online`: the platform's kernels do an `exp_sum` in one traversal.

    Raises:
        UnknownOperation: there is no figure for an operation.
    """
    return _Sketcher(sizes, online).run(program, slots, differentiated)


class _Sketcher:
    def __init__(self, sizes: GraphSizes, online: bool):
        self.sizes, self.online = sizes, online
        self.tape: Tape[int] = Tape(max)
        self.calls: dict[ArrayNode, _Call] = {}
        self.traversals: list[SketchedTraversal] = []

    def run(
        self, program: Program, slots: Sequence[int], differentiated: Sequence[bool] | None
    ) -> Sketch:
        env: dict[Atom, ArrayNode] = {}
        for v, slot in zip(program.inputs, slots, strict=True):
            live = bool(differentiated and differentiated[slot]) and is_inexact(v.dtype)
            n = self.sizes[v.space]
            env[v] = self.tape.leaf((slot, n), n, v.size, _itemsize(v), live)
        for eqn in program.equations:
            self.equation(eqn, env)
        outs = [self.read(o, env) for o in program.outputs]
        every = outs + (self.reverse(outs) if differentiated else [])
        return Sketch(self.sizes, self.needed(every), self.traversals, every)

    def needed(self, outs: Sequence[ArrayNode]) -> list[ArrayNode]:
        """The operations that something is made of, in order."""
        live = set(outs)
        found = []
        for node in reversed(self.tape.nodes):
            if node in live:
                live.update(node.inputs)
                found.append(node)
        return found[::-1]

    def read(self, atom: Atom, env: dict[Atom, ArrayNode]) -> ArrayNode:
        if isinstance(atom, Literal):
            return self.tape.leaf(("literal", str(atom.value)), 1, 1, 4)
        return env[atom]

    def equation(self, eqn: Equation, env: dict[Atom, ArrayNode]) -> None:
        inputs = [self.read(a, env) for a in eqn.inputs]
        match eqn.op:
            case Lax():
                n = self.sizes[eqn.space]
                for k, out in enumerate(eqn.outputs):
                    env[out] = _lax(self.tape, eqn, inputs, out, place=n, number=k)
            case Pool() | OfGraph():
                (out,) = eqn.outputs
                known = TABLE["reduce_sum" if isinstance(eqn.op, Pool) else "copy"]
                env[out] = self.tape.add(eqn.op.name, known, inputs, out.size, _itemsize(out),
                                         detail=eqn.op, place=self.sizes[out.space])  # fmt: skip
            case AtVertex():
                env[eqn.outputs[0]] = inputs[0]
            case Select() | Fold():  # the same in all plans; a gradient is that of their operands
                for k, out in enumerate(eqn.outputs):
                    env[out] = self.tape.add(eqn.op.name, TABLE["reduce_sum"], inputs, out.size,
                                             _itemsize(out), detail=(eqn.op, k),
                                             place=self.sizes[out.space])  # fmt: skip
            case Degree() | Index():
                (out,) = eqn.outputs
                env[out] = self.tape.leaf((eqn.op.name, out.space), self.sizes[out.space], 1, 4)
            case Aggregate():
                call = _Call(self, eqn.op, inputs, len(self.calls))
                env.update(zip(eqn.outputs, call.results, strict=True))
            case _:
                raise AssertionError(f"{eqn.op} is left after fuse-scatter-apply-gather")

    def reverse(self, outs: Sequence[ArrayNode]) -> list[ArrayNode]:
        """The gradients of the live leaves."""
        cts: dict[ArrayNode, list[ArrayNode]] = {}
        for k, out in enumerate(outs):
            if out.live:
                seed = self.tape.leaf(("cotangent", k), out.place, out.width, out.itemsize)
                cts.setdefault(out, []).append(seed)
        for node in reversed(list(self.tape.nodes)):
            if node in cts or node in self.calls:
                for to, ct in self.back(node, cts):
                    cts.setdefault(to, []).append(self.fit(ct, to))
        leaves = [n for n in self.tape.nodes if n.op == "leaf" and n in cts]
        return [self.sum_of(cts, n) for n in leaves]

    def back(
        self, node: ArrayNode, cts: dict[ArrayNode, list[ArrayNode]]
    ) -> list[tuple[ArrayNode, ArrayNode]]:
        """What the cotangent of `node`, if there is one, adds to those of its inputs."""
        call = self.calls.get(node)
        if call is None:
            return pull_back(self.tape, node, self.sum_of(cts, node)) if node.inputs else []
        if node in cts:
            call.arrived(node, self.sum_of(cts, node))
        first = call.results[0] is node  # of its results, met last
        return call.transpose() if first and call.cts else []

    def sum_of(self, cts: dict[ArrayNode, list[ArrayNode]], node: ArrayNode) -> ArrayNode:
        cts[node] = [self.tape.total(cts[node])]
        return cts[node][0]

    def fit(self, ct: ArrayNode, to: ArrayNode) -> ArrayNode:
        """A cotangent of a shared value is summed over the vertices."""
        if ct.place <= to.place or to.place != 1:
            return ct
        if ct.op == "dot_general":  # a.T @ b: the sum is the product's
            inner = ct.inner
            return self.tape.add("tall", TABLE["dot_general"], ct.inputs, to.width, to.itemsize,
                                 inner=inner, place=1)  # fmt: skip
        return self.tape.add("total", TABLE["reduce_sum"], [ct], to.width, to.itemsize, place=1)


class _Call:
    """One aggregate: its results among the arrays, and its edge function."""

    def __init__(self, owner: _Sketcher, op: Aggregate, inputs: list[ArrayNode], number: int):
        self.owner, self.op, self.inputs = owner, op, inputs
        self.tape: Tape[Space] = Tape(lambda places: join(*places) if places else Space.SHARED)
        self.env: dict[Atom, EdgeNode] = {}
        for i, (v, x) in enumerate(zip(op.body.inputs, inputs, strict=True)):
            self.env[v] = self.tape.leaf(i, v.space, v.size, _itemsize(v), x.live)
        self.kept: dict[EdgeNode, ArrayNode] = {}
        for eqn in op.body.equations:
            ins = [self.read(a) for a in eqn.inputs]
            for k, out in enumerate(eqn.outputs):
                self.env[out] = _lax(self.tape, eqn, ins, out, place=eqn.space, number=k)
            if eqn.op == KEPT and eqn.space is Space.EDGE and any(x.live for x in inputs):
                self.keep(ins[0], number)
        self.results = [self.result(i, number) for i in range(len(op.reductions))]
        self.cts: dict[int, ArrayNode] = {}
        for node in self.results:
            owner.calls[node] = self
        self.forward()

    def read(self, atom: Atom) -> EdgeNode:
        if isinstance(atom, Literal):
            return self.tape.leaf(("literal", str(atom.value)), Space.SHARED, 1, 4)
        return self.env[atom]

    def result(self, i: int, number: int) -> ArrayNode:
        r, atom = self.op.reductions[i], self.op.body.outputs[i]
        n = self.owner.sizes[Space.EDGE if r is None else r.into]
        tape, width = self.owner.tape, scalars(atom.shape)
        node = tape.add("aggregate", OpCost("smooth"), self.inputs, width, _itemsize(atom),
                        detail=(number, i), place=n)  # fmt: skip
        used = [self.read(a) for a in self.op.operands(i)]
        node.live = any(u.live for u in used) and is_inexact(atom.dtype)
        return node

    def keep(self, node: EdgeNode, number: int) -> None:
        """Note that the forward writes this value, for the derivative to read."""
        self.kept[node] = self.owner.tape.add(
            "aggregate", OpCost("none"), self.inputs, node.width, node.itemsize,
            detail=(number, KEPT.name, len(self.kept)), place=self.owner.sizes.edges,
        )  # fmt: skip

    def forward(self) -> None:
        """The traversals of the aggregate itself."""
        plain: list[tuple[EdgeNode, Space | None]] = [(node, None) for node in self.kept]
        scored: list[tuple[EdgeNode, Space | None]] = []
        for r, atom in zip(self.op.reductions, self.op.body.outputs, strict=True):
            into = None if r is None else r.into
            if r is not None and r.score is not None:
                parts = [self.read(atom), self.weight(r)]
                made = self.tape.add(
                    "mul", TABLE["mul"], parts, scalars(atom.shape), _itemsize(atom)
                )
                scored.append((made, into))
            elif r is not None and r.kind == "sum":
                inside, _ = split_factors(self.tape, self.read(atom), r.into)
                plain.append((self.read(atom) if inside is None else inside, into))
            else:
                plain.append((self.read(atom), into))
        for part in [plain + scored] if self.owner.online else [plain, scored]:
            outputs = {rows: [] for rows in self.rows()}
            for value, into in part:  # what has no rows of its own comes with the destinations'
                outputs[into if into in outputs else next(iter(outputs))].append((value, into))
            for rows, some in outputs.items():
                if some:
                    self.owner.traversals.append(
                        SketchedTraversal(rows, tuple(some), backward=False)
                    )

    def rows(self) -> list[Space]:
        """The spaces whose elements own rows; destinations first, and if there are none."""
        owners = {r.into for r in self.op.reductions if r is not None}
        return [s for s in (Space.DST, Space.SRC) if s in owners] or [Space.DST]

    def weight(self, r: Reduce) -> EdgeNode:
        """`exp(score - max)` of an exp_sum."""
        assert r.score is not None
        score = self.read(self.op.body.outputs[r.score])
        top = self.tape.leaf(("max", r.score), r.into, score.width, score.itemsize)
        apart = self.tape.binary("sub", score, top)
        return self.tape.add("exp", TABLE["exp"], [apart], score.width, score.itemsize)

    def arrived(self, node: ArrayNode, ct: ArrayNode) -> None:
        self.cts[self.results.index(node)] = ct

    def transpose(self) -> list[tuple[ArrayNode, ArrayNode]]:
        """The backward traversals; what they add to the cotangents of the operands."""
        cts: dict[EdgeNode, list[EdgeNode]] = {}
        given: dict[EdgeNode, ArrayNode] = {}
        for i, array in self.cts.items():
            self.seed(i, array, cts, given)
        for node in reversed(list(self.tape.nodes)):
            if node in cts and node.inputs:
                for to, ct in pull_back(self.tape, node, self.tape.total(cts[node])):
                    cts.setdefault(to, []).append(ct)
        wanted = [
            (self.env[v], x, self.tape.total(cts[self.env[v]]))
            for v, x in zip(self.op.body.inputs, self.inputs, strict=True)
            if x.live and self.env[v] in cts
        ]
        return self.reduce(wanted, given)

    def keep_what_is_read(self, cts: Sequence[EdgeNode]) -> list[ArrayNode]:
        """The arrays that the forward writes for these cotangents; it writes no others."""
        backward = SketchedTraversal(Space.DST, tuple((ct, None) for ct in cts), backward=True)
        read = {n.inputs[0] for n in backward.nodes() if n.op == KEPT.name}
        for node in [n for n in self.kept if n not in read]:
            del self.kept[node]
            every = [t.without((node, None)) for t in self.owner.traversals]
            self.owner.traversals[:] = [t for t in every if t.outputs]
        return list(self.kept.values())

    def seed(
        self,
        i: int,
        array: ArrayNode,
        cts: dict[EdgeNode, list[EdgeNode]],
        given: dict[EdgeNode, ArrayNode],
    ) -> None:
        r, atom = self.op.reductions[i], self.op.body.outputs[i]
        into = Space.EDGE if r is None else r.into
        value, tape = self.read(atom), self.tape
        ct = tape.leaf(("ct", i), into, value.width, value.itemsize)
        given[ct] = array
        if r is not None and r.kind in ("max", "min"):
            best = tape.leaf(("best", i), into, value.width, value.itemsize)
            attained = tape.add("attains", _TIES, [value, best], value.width, value.itemsize)
            count = SketchedTraversal(into, ((attained, into),), backward=True)
            self.owner.traversals.append(count)
            ct = tape.binary("mul", attained, ct)
        if r is not None and r.kind == "prod":
            ct = tape.binary("div", ct, value)
        if r is not None and r.score is not None:
            weight = self.weight(r)
            score = self.read(self.op.body.outputs[r.score])
            term = tape.binary("mul", value, weight)
            if score.live:
                share = tape.fold(tape.binary("mul", term, ct), score.width)
                cts.setdefault(score, []).append(share)
            ct = tape.binary("mul", weight, ct)
        if value.live:
            cts.setdefault(value, []).append(ct)

    def reduce(
        self,
        wanted: Sequence[tuple[EdgeNode, ArrayNode, EdgeNode]],
        given: dict[EdgeNode, ArrayNode],
    ) -> list[tuple[ArrayNode, ArrayNode]]:
        """Sums of the cotangents into the spaces of their operands, one traversal for each."""
        found: list[tuple[ArrayNode, ArrayNode]] = []
        groups: dict[Space, list[tuple[EdgeNode, Space | None]]] = {}
        loose: list[tuple[EdgeNode, Space | None]] = []
        arrays = [*given.values(), *self.keep_what_is_read([ct for _, _, ct in wanted])]
        for leaf, x, ct in wanted:
            into = leaf.place
            inside, outside = split_factors(self.tape, ct, into)
            n = self.owner.sizes[into]
            if inside is None:  # the same on all edges of a row
                made = self.owner.tape.add("scale", TABLE["mul"], arrays, x.width, x.itemsize,
                                           place=n)  # fmt: skip
                found.append((x, made))
                continue
            inside = self.tape.fold(inside, leaf.width)
            made = self.owner.tape.add("aggregate", OpCost("none"), [*self.inputs, *arrays],
                                       x.width, x.itemsize, detail=(leaf, len(found)),
                                       place=n)  # fmt: skip
            if outside:
                made = self.owner.tape.add("mul", TABLE["mul"], [made, *arrays], x.width,
                                           x.itemsize, place=n)  # fmt: skip
            found.append((x, made))
            if into.is_vertex:
                groups.setdefault(into, []).append((inside, into))
            else:
                loose.append((inside, None if into is Space.EDGE else into))
        if loose:
            home = Space.DST if Space.DST in groups or not groups else Space.SRC
            groups.setdefault(home, []).extend(loose)
        for rows, outputs in groups.items():
            self.owner.traversals.append(SketchedTraversal(rows, tuple(outputs), backward=True))
        return found


def split_factors(
    tape: Tape[Space], ct: EdgeNode, into: Space
) -> tuple[EdgeNode | None, list[EdgeNode]]:
    """What stays in the sum, and the factors that leave it (`factor-out-of-reduce`, as it runs when
    a traversal is lowered: factors of the row stay, unless there are no others)."""
    if not into.is_vertex:
        return ct, []
    factors = list(_factors(ct))
    if all(f.place in (into, Space.SHARED) for f in factors):
        return None, factors
    outside = [f for f in factors if f.place is Space.SHARED]
    inside = [f for f in factors if f not in outside]
    if not outside:
        return ct, []
    product = inside[0]
    for f in inside[1:]:
        product = tape.binary("mul", product, f)
    return product, outside


def _factors(node: EdgeNode) -> Iterator[EdgeNode]:
    if node.op == "mul" and node.place is Space.EDGE:
        for i in node.inputs:
            yield from _factors(i)
    elif (
        node.op in ("view", "neg", "copy", "broadcast_in_dim", "reshape") and len(node.inputs) == 1
    ):
        yield from _factors(node.inputs[0])
    else:
        yield node


def _lax(
    tape: Tape[Any], eqn: Equation, inputs: Sequence[Any], out: Value, *, place: Any, number: int
) -> Any:
    assert isinstance(eqn.op, Lax)
    known = cost(eqn.op, out.dtype)
    inner = 0
    if eqn.op.name == "dot_general":
        axes = eqn.op["dimension_numbers"][0][0]
        inner = scalars([eqn.inputs[0].shape[a] for a in axes])
    detail = (eqn.op.name, number, out.shape)
    return tape.add(eqn.op.name, known, inputs, out.size, _itemsize(out), inner=inner,
                    detail=detail, place=place)  # fmt: skip


def _itemsize(atom: Atom) -> int:
    return atom.dtype.itemsize if isinstance(atom.dtype, np.dtype) else 4
