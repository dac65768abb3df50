"""What a sweep loads and what it computes again, by a minimum cut."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence

import numpy as np

from gnnjit.ir.array_program import Array, ArrayEquation
from gnnjit.streaming.program.operations import Gather, RowWise

FLOPS_PER_BYTE = 16
"""Operations of a matrix product in the time in which a byte comes from a store."""
ELEMENT, FUNCTION, REDUCED = 1 / 16, 1 / 4, 4
"""What takes as long to do again as so many bytes take to come: an element of a result; one of a
function such as exp; one that is summed up or compared, which XLA does not fuse on a CPU."""

_FUNCTIONS = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma erf erf_inv erfc exp exp2 expm1
    igamma igammac lgamma log log1p logistic pow rsqrt sin sinh sqrt tan tanh
    """.split()
)


class SweepCut:
    """What a sweep loads and what it computes (again), at the least cost."""

    def __init__(
        self,
        number: int,
        birth: Mapping[Array, int],
        makes: Mapping[Array, Gather | RowWise],
        stored: Sequence[dict[Array, None]],
    ) -> None:
        self.number, self.birth, self.makes = number, birth, makes
        self.stored = {x for each in stored for x in each}

    def load_cost(self, x: Array) -> float:
        if self.birth[x] >= self.number:
            return math.inf
        kept = self.birth[x] < 0 or x in self.stored
        return max(1, x.row_bytes) * (1 if kept else 2)

    def work_cost(self, x: Array) -> float:
        """The cost of computing it here, without its operands."""
        work = self.makes.get(x)
        if work is None:
            return math.inf
        if isinstance(work, Gather):
            return 0 if self.birth[x] == self.number else math.inf
        if self.birth[x] == self.number:
            return 0
        return _work(work.eqn)

    def needs(self, x: Array) -> list[Array]:
        work = self.makes[x]
        if isinstance(work, Gather):  # its own operands are targets anyway
            return []
        return [y for y in work.inputs if isinstance(y, Array) and y.rows is not None]

    def least(self, targets: list[Array]) -> tuple[tuple[Array, ...], set[Array]]:
        """(loaded, computed) for the targets to be there.

        A minimum cut: each array has two vertices, "is there" and "is computed". To be there
        without being computed costs its load; to be computed costs its work, and its operands have
        to be there.
        """
        if not targets:
            return (), set()
        reach = self.reachable(targets)
        number = {x: 2 + 2 * i for i, x in enumerate(reach)}
        edges: list[tuple[int, int, float]] = [(0, number[x], math.inf) for x in targets]
        for x in reach:
            there = number[x]
            edges.append((there, there + 1, self.load_cost(x)))
            cost = self.work_cost(x)
            edges.append((there + 1, 1, cost))
            if cost < math.inf:
                edges += [(there + 1, number[y], math.inf) for y in self.needs(x)]
        kept = source_side(edges, 2 + 2 * len(reach))
        loads = [x for x in reach if kept[number[x]] and not kept[number[x] + 1]]
        return tuple(loads), {x for x in reach if kept[number[x] + 1]}

    def reachable(self, targets: list[Array]) -> list[Array]:
        found = dict.fromkeys(targets)
        queue = collections.deque(targets)
        while queue:
            x = queue.popleft()
            if self.work_cost(x) < math.inf:
                for y in self.needs(x):
                    if y not in found:
                        found[y] = None
                        queue.append(y)
        return list(found)


def _work(eqn: ArrayEquation) -> float:
    """The cost of one row, in bytes that would come from a store meanwhile."""
    out = sum(math.prod(x.shape) for x in eqn.outputs)
    if eqn.name == "rows_matmul":
        return 2 * math.prod(eqn.inputs[0].shape) * eqn.outputs[0].shape[-1] / FLOPS_PER_BYTE
    if eqn.name == "dot_general":
        inner = max(math.prod(x.shape) for x in eqn.inputs) ** 0.5
        return 2 * out * inner / FLOPS_PER_BYTE
    if eqn.name.startswith(("reduce_", "arg", "cum")):
        return REDUCED * math.prod(eqn.inputs[0].shape)
    return (FUNCTION if eqn.name in _FUNCTIONS else ELEMENT) * out


def source_side(edges: Sequence[tuple[int, int, float]], size: int) -> np.ndarray:
    """`bool[size]`: the vertices on the side of vertex 0 in a minimum cut from 0 to 1."""
    import scipy.sparse.csgraph  # a tenth of a second, for those who stream

    finite = sum(c for _, _, c in edges if c < math.inf)
    scale = (1 << 30) / max(4 * finite, 1)  # SciPy has capacities of 32 bits
    scale = min(scale, 16.0)
    infinite = int(finite * scale) + len(edges) + 1
    total: dict[tuple[int, int], int] = collections.defaultdict(int)
    for a, b, c in edges:
        amount = infinite if c == math.inf else max(1 if c else 0, round(c * scale))
        total[a, b] = min(total[a, b] + amount, infinite)
    rows, columns = zip(*total, strict=True)
    capacity = scipy.sparse.csr_array(
        (np.fromiter(total.values(), np.int32, len(total)), (rows, columns)), shape=(size, size)
    )
    flow = scipy.sparse.csgraph.maximum_flow(capacity, 0, 1).flow
    rest = (capacity - flow).tocsr()
    rest.data[rest.data < 0] = 0
    rest.eliminate_zeros()
    order = scipy.sparse.csgraph.breadth_first_order(rest, 0, return_predecessors=False)
    kept = np.zeros(size, bool)
    kept[order] = True
    return kept
