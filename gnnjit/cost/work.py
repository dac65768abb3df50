"""From a sketch to features: how much of what each kind of operation has to do."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence

import numpy as np

from gnnjit.cost.kinds import CACHES, INDEX, NAMES
from gnnjit.cost.machine import Machine
from gnnjit.cost.model import Work
from gnnjit.cost.sketch import ArrayNode, EdgeNode, Sketch, SketchedTraversal
from gnnjit.cost.temporaries import array_bytes, temporaries
from gnnjit.ir.large_products import MATRIX
from gnnjit.ir.space import Space

WIDE = 4
"""Vectors of a product's row that CPU kernels sum at a time, in tiles of edges."""

_KERNELS = ("cpu", "cuda", "gpu")
"""The platforms that have traversal kernels."""


def work_of(sketch: Sketch, machine: Machine) -> Work:
    """All the work of a sketch."""
    counter = _Counter(sketch, machine)
    for t in sketch.traversals:
        counter.traversal(t)
    counter.arrays()
    return counter.total()


def bytes_of(sketch: Sketch, machine: Machine) -> float:
    """Bytes of all arrays that a sketch writes, an upper bound of what is held at once."""
    kept = _materialised(sketch.operations, sketch.outputs)
    arrays = [n for n in sketch.operations if n.op != "leaf" and n in kept and n.place > 1]
    hoisted = [n for t in sketch.traversals for n in _Edges(t, machine).hoisted]
    return sum(map(array_bytes, arrays)) + sum(sketch.sizes[n.place] * n.bytes for n in hoisted)


class _Counter:
    def __init__(self, sketch: Sketch, machine: Machine):
        self.sketch, self.machine = sketch, machine
        self.sums: collections.defaultdict[tuple[str, str], float] = collections.defaultdict(float)
        self.kept = _materialised(sketch.operations, sketch.outputs)
        self.boundaries: dict[ArrayNode, list[ArrayNode]] = {}

    def add(self, kind: str, **features: float) -> None:
        for name, amount in features.items():
            self.sums[kind, name] += amount

    def total(self) -> Work:
        self.add("call", calls=1)
        self.fresh()
        vector = np.zeros(len(NAMES))
        for name, amount in self.sums.items():
            vector[INDEX[name]] = amount
        return Work(vector)

    def fresh(self) -> None:
        """Memory that the C library asks of the system in every call, since it gives back blocks of
        that size: results each, and the one block of all temporaries. Its pages are zeroed."""
        results = {o: array_bytes(o) for o in self.sketch.outputs if o.op != "leaf"}
        blocks = [*results.values(), self.temporaries(set(results))]
        self.add("memory", fresh=sum(b for b in blocks if b > self.machine.fresh))

    def temporaries(self, results: set[ArrayNode]) -> float:
        """Bytes of the arrays, but for results, that are alive at the same time at most."""
        nodes = [n for n in self.sketch.operations if n.op != "leaf" and n in self.kept]
        return temporaries(nodes, self.reads, results)

    def reads(self, node: ArrayNode) -> list[ArrayNode]:
        """The written arrays that a node reads, through what is fused into it."""
        if node not in self.boundaries:
            self.boundaries[node] = _boundary(node, self.kept)
        return self.boundaries[node]

    # ------------------------------------------------------------------ whole arrays

    def arrays(self) -> None:
        nodes = self.sketch.operations
        for node in nodes:
            if node.op == "leaf":
                continue
            if node.op == "dot_general" and _is_matmul(node):
                self.matmul(node)
            elif node.op == "tall":
                self.tall(node)
            elif node.op == "total":
                self.reduce(node)
            elif node.cost.rule == "sum" and node.place > 1:
                self.reduce(node)
            elif node.op != "aggregate" and node in self.kept:
                self.elementwise(node)

    def matmul(self, node: ArrayNode) -> None:
        n, moved = node.place, sum(array_bytes(i) for i in node.inputs) + array_bytes(node)
        matrix, x = sorted(node.inputs, key=lambda i: i.place)
        rows = max(1, node.inner * node.width // max(1, matrix.width))  # of each element
        heads = x.width // max(1, node.inner * rows)
        if heads == 1:
            self.product(n * rows, node.inner, node.width // rows, moved)
        elif heads <= self.machine.heads:  # a product for each, of slices, put together
            for _ in range(heads):
                self.product(n, node.inner, node.width // heads, 0.0)
            self.add("heads", count=heads, bytes=moved)
        else:
            flops = 2.0 * n * node.width * node.inner
            self.add("heads", count=1, flops=flops, bytes=moved)

    def product(self, rows: int, inner: int, columns: int, moved: float) -> None:
        """Add the product of `[rows, inner]` with a matrix `[inner, columns]`."""
        self.add("matmul", **product_features(rows, inner, columns, moved, self.machine))

    def tall(self, node: ArrayNode) -> None:
        ct, other = node.inputs
        n, moved = max(ct.place, other.place), array_bytes(ct) + array_bytes(other)
        rows = max(1, node.inner)  # of each element, of which every entry is a sum
        self.add("tall", **tall_features(n, node.width, rows, moved, self.machine))
        heads = ct.width * other.width // max(1, node.width * rows * rows)
        if heads > 1:  # a product of slices for each
            self.add("heads", count=heads, bytes=moved)

    def reduce(self, node: ArrayNode) -> None:
        """A sum over vertices, or within each; of products with one number per vertex, or to one,
        XLA's loop on a CPU is several times as slow."""
        read = sum(map(array_bytes, self.reads(node)))
        slow = (node.op == "total" and _scaled_by_number(node.inputs[0])) or (
            node.op != "total" and node.width == 1
        )
        kind = "total" if node.op == "total" else "reduce"
        self.add(kind, count=1, bytes=0.0 if slow else read, single=read if slow else 0.0)

    def elementwise(self, node: ArrayNode) -> None:
        if node.place == 1:
            self.add("elementwise", count=1)
            return
        moved = array_bytes(node) + sum(map(array_bytes, self.reads(node)))
        functions = node.place * node.width * node.cost.transcendental
        repeats = array_bytes(node) if _repeats_heads(node) else 0.0
        self.add(
            "elementwise", count=1, parallel=float(array_bytes(node) > self.machine.parallel),
            bytes=moved, repeats=repeats, transcendentals=functions,
        )  # fmt: skip

    # ------------------------------------------------------------------ traversals

    def traversal(self, t: SketchedTraversal) -> None:
        nodes = _Edges(t, self.machine)
        for node in nodes.hoisted:
            n = self.sketch.sizes[node.place]
            moved = n * (node.bytes + sum(i.bytes for i in node.inputs if i.place == node.place))
            self.add("elementwise", count=1, bytes=moved)
        if goes_in_chunks(nodes.computed, self.machine):
            self.chunks(t, nodes)
        else:
            self.kernel(t, nodes)

    def kernel(self, t: SketchedTraversal, nodes: _Edges) -> None:
        sizes, m = self.sketch.sizes, self.machine
        edges, rows = sizes.edges, sizes[t.rows]
        vectors = sum(_vectors(n, m.vector) for n in nodes.computed)
        outputs = [(n, into) for n, into in t.outputs if not _is_picked(n, into)]
        of_tables = {_row_of_table(n) for n, into in t.outputs if _is_picked(n, into)}
        width = sum(math.ceil(n.bytes / m.vector) for n, _ in outputs)
        vectors += width
        functions = sum(
            n.cost.transcendental * math.ceil(n.bytes / m.vector) for n in nodes.computed
        )
        scalars = sum(n.width == 1 and n.cost.rule != "view" for n in nodes.computed)
        summed = [n for n, into in outputs if into is Space.SHARED]
        large = [n for n in nodes.computed if is_large_product(n)]
        if large:
            self.add("tiles", functions=edges * functions)
        for n in {*large, *filter(is_large_product, summed)} - of_tables:
            self.tiles(n, summed=n in summed)
        for n in of_tables:
            self.row_of_table(n)
        alone = [n for n in nodes.computed if not is_large_product(n)]
        products = sum(_product(n, m.vector) for n in alone)
        outer = sum(_product(n, m.vector) for n in summed if not is_large_product(n))
        far = [n for n in nodes.read if n.place.is_vertex and n.place is not t.rows]
        near = sum(n.bytes for n in nodes.read if n.place is t.rows)
        # Edges have the order in which they were given, so theirs are random reads and writes too.
        far += [n for n in nodes.read if n.place is Space.EDGE]
        far += [n for n, into in t.outputs if into is None]
        lines = sum(_lines(n.bytes, m.line) for n in far)
        table = sum(n.bytes * sizes[n.place] for n in far)
        written = sum(n.bytes for n, into in t.outputs if into is t.rows)
        self.add(
            "traversal", count=1, edges=edges, rows=rows, scalars=edges * scalars,
            vectors=edges * vectors,
            functions=edges * functions, products=edges * products, outer=edges * outer,
            reads=edges * len(far), wide=edges * max(0, width - m.registers),
            lines=edges * lines, row_bytes=rows * (near + written),
            **{f"lines_{c}m": edges * lines * _miss(table, c << 20) for c in CACHES},
        )  # fmt: skip

    def tiles(self, node: EdgeNode, *, summed: bool) -> None:
        """One value of each edge times a matrix; if `summed`, the outer products of two values of
        each edge, summed over all edges."""
        edges, lanes = self.sketch.sizes.edges, self.machine.vector // node.itemsize
        groups = 0 if summed else math.ceil(node.width / (WIDE * lanes))
        flops = 2.0 * edges * node.inner * node.width
        self.add("tiles", flops=flops, passes=edges * node.inner * groups)

    def row_of_table(self, node: EdgeNode) -> None:
        """What an edge adds to the row of a table that it picked. Edges are sorted by rows, so that
        outer products are summed as one product for each row."""
        if is_large_product(node):
            self.tiles(node, summed=True)
            return
        edges = self.sketch.sizes.edges
        vectors = math.ceil(node.bytes / self.machine.vector)
        self.add("traversal", edges=edges, vectors=edges * vectors)

    def chunks(self, t: SketchedTraversal, nodes: _Edges) -> None:
        edges = self.sketch.sizes.edges
        for n in nodes.computed:
            if n.op == "dot_general":
                self.product(edges, n.inner, n.width, moved=0.0)
        moved = sum(n.bytes for n in (*nodes.computed, *nodes.read) if n.place is not Space.SHARED)
        scattered = sum(n.bytes for n, into in t.outputs if into is not None and into.is_vertex)
        functions = sum(n.cost.transcendental * n.width for n in nodes.computed)
        self.add("chunks", count=1, bytes=edges * moved, scattered=edges * scattered,
                 functions=edges * functions)  # fmt: skip


def product_features(
    rows: int, inner: int, columns: int, moved: float, machine: Machine
) -> dict[str, float]:
    """Features of `[rows, inner] @ [inner, columns]`, which reads and writes `moved` bytes."""
    groups = _column_groups(columns)
    return {
        "count": 1, "flops": 2.0 * rows * inner * columns, "passes": rows * inner * groups,
        "rows": rows * groups, "bytes": moved, "far": moved * _miss(moved, machine.cache),
    }  # fmt: skip


def tall_features(
    rows: int, entries: int, each: int, moved: float, machine: Machine
) -> dict[str, float]:
    """Features of a product over `rows` rows, whose entries each sum `each` numbers a row."""
    return {
        "count": 1, "flops": 2.0 * rows * entries * each, "entries": entries, "bytes": moved,
        "far": moved * _miss(moved, machine.cache),
    }  # fmt: skip


class _Edges:
    """The nodes of one traversal: computed on the edges, read, and hoisted to the vertices."""

    def __init__(self, t: SketchedTraversal, machine: Machine):
        self.computed: list[EdgeNode] = []
        self.read: list[EdgeNode] = []
        self.hoisted: list[EdgeNode] = []
        seen: set[EdgeNode] = set()
        stack = [n for n, _ in t.outputs]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if t.reads(node) or node.place is Space.SHARED:
                self.read.append(node)
            elif node.place is Space.EDGE or _is_scaled(node, machine):
                self.computed.append(node)
                stack += node.inputs
            else:
                self.read.append(node)
                if node.op != "view":
                    self.hoisted.append(node)


def _is_scaled(node: EdgeNode, machine: Machine) -> bool:
    """`sink-scaling`: features times one number are multiplied where edges read them."""
    if node.op == "view":
        return True
    numbers = [i for i in node.inputs if _source(i).width == 1]
    return machine.platform == "cpu" and node.op == "mul" and len(numbers) == 1


def _source(node: EdgeNode) -> EdgeNode:
    while node.op in ("view", "broadcast_in_dim", "reshape") and node.inputs:
        node = node.inputs[0]
    return node


def _is_picked(node: EdgeNode, into: Space | None) -> bool:
    """Whether an edge adds to one row of a shared array that it picked, not to all of them."""
    return into is Space.SHARED and _row_of_table(node).bytes < node.bytes


def _row_of_table(node: EdgeNode) -> EdgeNode:
    """The summand before it is put into its row."""
    while node.op == "view" and node.inputs and node.inputs[0].bytes <= node.bytes:
        node = node.inputs[0]
    return node


def _column_groups(columns: int) -> int:
    """Parts in which XLA's CPU library takes the columns of a product: of 32, then of 16, 8, ..."""
    return columns // 32 + (columns % 32).bit_count()


def is_large_product(node: EdgeNode) -> bool:
    """Whether it is one product for a tile of edges, as fast as one of vertices."""
    return node.op == "dot_general" and node.width * node.inner >= MATRIX


def goes_in_chunks(nodes: Iterable[EdgeNode], machine: Machine) -> bool:
    """Whether no kernel takes a traversal with these nodes."""
    if machine.platform not in _KERNELS:
        return True
    on_edges = [n for n in nodes if n.place is Space.EDGE]
    if machine.platform == "cpu" and not all(n.cost.in_kernels for n in on_edges):
        return True
    products = (n.width * n.inner for n in on_edges if n.op == "dot_general")
    return any(p > machine.product for p in products)


def _product(node: EdgeNode, vector: int) -> int:
    """Vector multiplications of a product on one edge."""
    if node.op != "dot_general":
        return 0
    return math.ceil(node.width * node.inner * node.itemsize / vector)


def _vectors(node: EdgeNode, vector: int) -> float:
    """Vector instructions of one node on one edge."""
    if node.cost.rule == "view":
        return 0.0
    if node.op == "dot_general":
        return 0.0
    wide = max([node.bytes, *(i.bytes for i in node.inputs)])
    return node.cost.arithmetic * math.ceil(wide / vector)


def _lines(count: int, line: int) -> float:
    """Cache lines of a row of `count` bytes, rows being packed."""
    return count / line if count % line == 0 else 1 + (count - 4) / line


def _miss(table: float, cache: float) -> float:
    """Share of random reads of a table that miss a cache."""
    return max(0.0, 1.0 - cache / table) if table else 0.0


def _repeats_heads(node: ArrayNode) -> bool:
    """Whether it reads one number for several scalars of an element, not for all."""
    sources = [i.inputs[0] for i in node.inputs if i.op in ("view", "broadcast_in_dim")]
    return any(1 < i.width < node.width and i.place == node.place for i in sources)


def _scaled_by_number(node: ArrayNode) -> bool:
    """Whether it is a product with one number per element."""
    sources = [i.inputs[0] if i.op == "view" else i for i in node.inputs]
    return node.op == "mul" and node.width > 1 and any(i.width == 1 for i in sources)


def _is_matmul(node: ArrayNode) -> bool:
    """Whether it applies a shared matrix; else it is a product within each element."""
    return node.place > 1 and any(i.place == 1 for i in node.inputs)


def _materialised(nodes: Sequence[ArrayNode], outputs: Iterable[ArrayNode]) -> set[ArrayNode]:
    """Arrays that are written: what XLA cannot fuse into its reader."""
    kept = set(outputs)
    for node in nodes:
        own = node.op in ("aggregate", "tall") or (node.op == "dot_general" and _is_matmul(node))
        if own:
            kept.add(node)
            kept.update(node.inputs)
        elif node.op in ("leaf", "total") or node.cost.rule == "sum":
            kept.add(node)
    return kept


def _boundary(node: ArrayNode, kept: set[ArrayNode]) -> list[ArrayNode]:
    """The written arrays that a fused loop reads."""
    found: dict[ArrayNode, None] = {}
    stack = list(node.inputs)
    while stack:
        i = stack.pop()
        if i not in found:
            found[i] = None
            if i not in kept:
                stack += i.inputs
    return [i for i in found if i.place > 1 and i in kept]
