"""Networks of vertices: what a vertex does by itself, where one product reads another.

    h = relu(concat(x, total) @ w1)      x, total: [N, F]
    y = x + norm(h @ w2)

XLA runs each product, and each loop between them, over arrays of all vertices. Here a network is a
traversal of a graph in which each vertex has one edge, to itself: vertices are taken in tiles, what
is between products stays in the cache, and the derivative is one traversal too, which reads the
products that were kept. So it is on a CPU, whose kernels take edges in tiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gnnjit.cost.machine import platform_here
from gnnjit.frontend.capture import inline_custom_calls
from gnnjit.graph import Graph, Structure
from gnnjit.ir.kept import with_products_kept
from gnnjit.ir.large_products import contracted, is_large_product
from gnnjit.ir.program import Atom, Equation, Lax, Network, Program, Value
from gnnjit.ir.space import Space
from gnnjit.lower import choose, cpu
from gnnjit.lower.cpu.products import MAX_PRODUCT
from gnnjit.lower.vertex_matmul import LEAST
from gnnjit.sharding.sharded_graph import AnyGraph

NARROW = 16
"""A product that reads or makes fewer features is no reason for a network. GAT, whose scores are a
product of 128 features with 4 columns, took 1.3 times as long with networks as without."""


def with_networks(program: Program, graph: AnyGraph) -> Program:
    """The program with a `Network` in place of each that is worth a kernel, on this graph."""
    if not isinstance(graph, Graph) or not hasattr(graph.src, "shape") or not _is_here():
        return program
    return _Finder(program, graph).grouped()


def _is_here() -> bool:
    """Whether what runs is a program for one CPU, with its kernels."""
    kernels = choose.preferred() in (None, "cpu") and cpu.available()
    return kernels and platform_here() == "cpu" and jax.sharding.get_abstract_mesh().empty


def own_edges(count: int) -> Graph:
    """A graph of so many vertices, in which edge `i` leads from vertex `i` to itself."""
    each = jnp.arange(count, dtype=jnp.int32)
    structure = Structure(jnp.arange(count + 1, dtype=jnp.int32), each, each)
    return Graph(each, each, None, structure, structure, None, count, count, count, False)


def _has_code(eqn: Equation) -> bool:
    """Whether there are kernels for all that a network does."""
    assert isinstance(eqn.op, Network)
    return not cpu.why_no_network(inline_custom_calls(eqn.op.body))


def _is_quick(eqn: Equation) -> bool:
    """Whether an equation is no product, or one of a vector with a shared matrix that a kernel is
    quicker with than XLA, and whose gradient is."""
    if eqn.op.name != "dot_general":
        return True
    assert isinstance(eqn.op, Lax)
    ranks = sorted((len(a.shape), a.space is Space.SHARED) for a in eqn.inputs)
    (summed, _), _ = eqn.op["dimension_numbers"]
    plain = ranks == [(1, False), (2, True)] and len(summed) == 1
    return plain and eqn.outputs[0].size * contracted(eqn) <= MAX_PRODUCT


class _Finder:
    """Finds the networks of a program.

    rows: the elements of each vertex space.
    level: how many steps that are no work of one element a value needs. What leads from one value
        of a level to another is of that level.
    """

    def __init__(self, program: Program, graph: Graph):
        self.program = program
        self.rows = {Space.SRC: graph.num_src, Space.DST: graph.num_dst}
        self.made = {o: e for e in program.equations for o in e.outputs}
        self.level: dict[Atom, int] = {}
        for eqn in program.equations:
            level = self._level_of(eqn) + (not isinstance(eqn.op, Lax))
            self.level.update(dict.fromkeys(eqn.outputs, level))

    def _level_of(self, eqn: Equation) -> int:
        """When an equation can run."""
        return max((self.level.get(a, 0) for a in eqn.inputs), default=0)

    def grouped(self) -> Program:
        """The program with its networks, if there are any."""
        every = self.program.equations
        if sum(map(self._is_product, every)) < 2:
            return self.program
        parts = [p for p in self._parts() if self._has_chain(p) and all(map(_is_quick, p))]
        found = {self._network(part): part for part in parts}
        found = {n: p for n, p in found.items() if _has_code(n)}
        inside = {e for part in found.values() for e in part}
        equations = sorted([*(e for e in every if e not in inside), *found], key=self._when)
        return dataclasses.replace(self.program, equations=tuple(equations))

    def _when(self, eqn: Equation) -> tuple[int, int]:
        """Of one level, networks read what is shared, and steps read networks."""
        kinds = [isinstance(eqn.op, Lax), isinstance(eqn.op, Network), True]
        return self._level_of(eqn), kinds.index(True)

    def _is_product(self, eqn: Equation) -> bool:
        if eqn.space not in self.rows or not is_large_product(eqn):
            return False
        made, read = eqn.outputs[0].size, contracted(eqn)
        return min(made, read) >= NARROW and self.rows[eqn.space] * made * read >= LEAST

    def _parts(self) -> list[list[Equation]]:
        """The work of single vertices that is connected, of each level; equations in order."""
        parts: dict[Equation, dict[Equation, None]] = {}
        for eqn in self.program.equations:
            if isinstance(eqn.op, Lax) and eqn.space in self.rows:
                makers = (self.made.get(a) for a in eqn.inputs if isinstance(a, Value))
                near = [e for e in makers if e in parts and self._is_beside(e, eqn)]
                whole = dict.fromkeys([*(e for n in near for e in parts[n]), eqn])
                parts.update(dict.fromkeys(whole, whole))
        unique = {id(part): part for part in parts.values()}
        number = {e: k for k, e in enumerate(self.program.equations)}
        return [sorted(part, key=number.__getitem__) for part in unique.values()]

    def _is_beside(self, eqn: Equation, other: Equation) -> bool:
        return eqn.space is other.space and self._level_of(eqn) == self._level_of(other)

    def _has_chain(self, part: Sequence[Equation]) -> bool:
        """Whether a product needs another one."""
        behind: set[Atom] = set()
        for eqn in part:
            reads, product = not behind.isdisjoint(eqn.inputs), self._is_product(eqn)
            if reads and product:
                return True
            if reads or product:
                behind.update(eqn.outputs)
        return False

    def _network(self, part: Sequence[Equation]) -> Equation:
        """These equations as one."""
        made, own = {o for e in part for o in e.outputs}, set(part)
        read = dict.fromkeys(a for e in part for a in e.inputs if isinstance(a, Value))
        elsewhere = {a for e in self.program.equations if e not in own for a in e.inputs}
        elsewhere.update(self.program.outputs)
        inputs = tuple(v for v in read if v not in made)
        outputs = tuple(o for e in part for o in e.outputs if o in elsewhere)
        on_edge: dict[Atom, Value] = {
            v: dataclasses.replace(v, space=Space.EDGE) for v in (*inputs, *made)
            if v.space is not Space.SHARED
        }  # fmt: skip

        def moved(atoms: Sequence[Atom]) -> tuple[Any, ...]:
            return tuple(on_edge.get(a, a) for a in atoms)

        equations = tuple(
            dataclasses.replace(e, inputs=moved(e.inputs), outputs=moved(e.outputs)) for e in part
        )
        body = Program(moved(inputs), equations, moved(outputs), "network")
        return Equation(Network(with_products_kept(body)), inputs, outputs, part[0].location)
