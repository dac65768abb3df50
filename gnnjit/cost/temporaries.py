"""How much memory XLA's temporaries take on a CPU, from a sketch.

XLA there starts each operation as soon as its operands are known: those of a gradient run beside
those of the result, and what both read is held for both. A temporary takes the memory of a result
that is not yet written, where it fits exactly. A loop writes over an operand of the same size that
nobody reads any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from gnnjit.cost.sketch import ArrayNode

Reads = Callable[[ArrayNode], Sequence[ArrayNode]]
"""The written arrays that a node reads."""


def array_bytes(node: ArrayNode) -> float:
    return float(node.place * node.bytes)


def is_loop(node: ArrayNode) -> bool:
    """Whether it is computed element by element."""
    return node.op not in ("aggregate", "tall", "total", "dot_general") and node.cost.rule != "sum"


def temporaries(nodes: Sequence[ArrayNode], reads: Reads, results: Collection[ArrayNode]) -> float:
    """Bytes of the arrays, but for `results`, that are alive at the same time at most.

    nodes: the arrays that are written, each after what it reads.
    """
    return _Lifetimes(nodes, reads, results).peak()


class _Lifetimes:
    def __init__(
        self, nodes: Sequence[ArrayNode], reads: Reads, results: Collection[ArrayNode]
    ) -> None:
        depth: dict[ArrayNode, int] = {}
        for node in nodes:
            depth[node] = 1 + max((depth.get(i, 0) for i in reads(node)), default=0)
        self.nodes, self.reads = sorted(nodes, key=depth.__getitem__), reads
        self.begin = {node: k for k, node in enumerate(self.nodes)}
        self.end = self.begin | {i: k for k, n in enumerate(self.nodes) for i in reads(n)}
        self.home = {r: r for r in self.nodes if r in results}
        """The result whose memory an array takes."""
        self.taken = {r: [(self.begin[r], len(self.nodes))] for r in self.home}
        """When the memory of a result is in use."""

    def peak(self) -> float:
        self.write_over()
        alive = [0.0] * len(self.nodes)
        for k, node in enumerate(self.nodes):
            if node in self.home or self.fits_result(node):
                continue
            over = self.overwritten(node)
            first = k if over is None or over in self.home else k + 1
            for at in range(first, self.end[node] + 1):
                alive[at] += array_bytes(node)
        return max(alive, default=0.0)

    def write_over(self) -> None:
        """Results that are loops have the memory of an operand."""
        for node in reversed(self.nodes):
            over = self.overwritten(node)
            if over is not None and node in self.home and over not in self.home:
                self.take(over, self.home[node])

    def overwritten(self, node: ArrayNode) -> ArrayNode | None:
        """The first operand whose memory a loop may write its result to."""
        if not is_loop(node):
            return None
        same = (i for i in self.reads(node) if array_bytes(i) == array_bytes(node))
        dying = (i for i in same if i in self.begin and self.end[i] == self.begin[node])
        return next(dying, None)

    def fits_result(self, node: ArrayNode) -> bool:
        """Whether a result's memory is free while the array is alive, which then takes it."""
        begin, end = self.begin[node], self.end[node]
        for result, taken in self.taken.items():
            free = all(end < b or e < begin for b, e in taken)
            if free and array_bytes(result) == array_bytes(node):
                self.take(node, result)
                return True
        return False

    def take(self, node: ArrayNode, result: ArrayNode) -> None:
        self.home[node] = result
        self.taken[result].append((self.begin[node], self.end[node]))
