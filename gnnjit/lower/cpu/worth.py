"""Whether a kernel is worth it: time to run and time to compile, beside XLA's form in chunks.

XLA multiplies a chunk of edges at a time with a matrix, and gathers operands, writes them and
scatters results. A kernel multiplies a tile of edges, or edge by edge where a matrix is small or
is the row of a table: then it reads the matrix again for each. What is written out in a kernel has
to be compiled, too. Both times count, the step as often as a compiled program is expected to run.
"""

from __future__ import annotations

import dataclasses
import math

from gnnjit.ir.program import Atom, Lax, Reduce
from gnnjit.lower.cpu.edge_products import EdgeProduct
from gnnjit.lower.cpu.spec import PER_EDGE, PER_ROW, Spec

RUNS = 1000
"""Calls of one compiled program: some hundred to some thousand steps of training."""

VECTOR = 16
"""Scalars that the figures below are for; shorter registers change both forms alike."""

NEAR, FAR = 0.21e-9, 0.36e-9
"""Seconds for a vector of multiplications with a matrix in the nearest cache, and in the next."""

TILE, KEPT = 0.19e-9, 1e-9
"""Seconds for a vector of multiplications of a tile of edges, and for one that a stage keeps."""

NEAR_BYTES = 32768
"""Bytes of the nearest cache."""

OUTER, VALUE = 0.15e-9, 0.5e-9
"""Seconds for a vector of a sum of outer products, and of a value computed in registers."""

XLA_PRODUCT, XLA_VALUE = 0.19e-9, 3.5e-9
"""Seconds for a vector of multiplications in XLA, and for a vector that it gathers, writes for a
product or scatters. What it computes in between is fused, and costs what it does in a kernel.

All these: random graphs of 4,000 vertices and 40,000 edges, networks of two layers 32 to 256 wide,
value and gradient, one core of an AMD EPYC with 512-bit registers, processor time."""

COMPILE, INSTRUCTION, XLA_COMPILE = 0.05, 0.05e-3, 0.2
"""Seconds to compile any kernel, and for each instruction; to compile a traversal in chunks."""


@dataclasses.dataclass(frozen=True)
class KernelTime:
    """Seconds of one call, and to compile."""

    step: float
    compile: float

    @property
    def total(self) -> float:
        """Seconds of all calls and of compiling."""
        return RUNS * self.step + self.compile

    def __str__(self) -> str:
        return f"{1e3 * self.step:.3g} ms a call and {self.compile:.2g} s to compile"


def why_not(spec: Spec, edges: int, instructions: int | None = None) -> list[str]:
    """Reasons why chunks of edges are better for a graph of so many edges; `instructions` of the
    kernel, where it is written already."""
    count = written_out(spec) if instructions is None else instructions
    generated, chunked = kernel(spec, count, edges), chunks(spec, edges)
    if generated.total <= chunked.total:
        return []
    looped = sum(m.multiplications for m in spec.matvecs.values())
    return [
        f"a matmul on the edges, {looped:,} multiplications for each in loops and at least "
        f"{count:,} instructions: about {generated} for {edges:,} edges, in chunks {chunked}; "
        f"{RUNS:,} calls count"
    ]


def written_out(spec: Spec) -> int:
    """Instructions that products take, at least, which are not loops."""
    found = 0
    for eqn in (e for level in (PER_ROW, PER_EDGE) for e in spec.equations(level)):
        looped = eqn in spec.matvecs or (spec.tiling and EdgeProduct.of(eqn, spec.lanes))
        if eqn.op.name == "dot_general" and isinstance(eqn.op, Lax) and not looped:
            (left, _), _ = eqn.op["dimension_numbers"]
            inner = math.prod(eqn.inputs[0].shape[a] for a in left)
            found += 3 * inner * -(-eqn.outputs[0].size // spec.lanes)
    return found


def kernel(spec: Spec, instructions: int, edges: int) -> KernelTime:
    """The time of a kernel with so many instructions."""
    in_tiles = {p.eqn for p in spec.tiling.products} if spec.tiling else set()
    alone = [m for eqn, m in spec.matvecs.items() if eqn not in in_tiles]
    matrices = {id(m.matrix.value): m.matrix.bytes for m in alone}
    near = sum(matrices.values()) <= NEAR_BYTES
    each = (NEAR if near else FAR) * sum(_vectors(m.columns) * m.places.size for m in alone)
    if spec.tiling:
        plans = [p.plan for p in spec.tiling.products]
        each += TILE * sum(_vectors(m.columns) * m.places.size for m in plans)
        each += KEPT * spec.tiling.bytes / (4 * VECTOR)
    each += OUTER * _outer(spec) + VALUE * sum(_vectors(_size(a)) for a in _values(spec))
    return KernelTime(edges * each, COMPILE + INSTRUCTION * instructions)


def chunks(spec: Spec, edges: int) -> KernelTime:
    """The time of the same traversal in chunks of edges."""
    vectors = sum(_vectors(m.columns) * m.places.size for m in spec.matvecs.values())
    products = XLA_PRODUCT * (vectors + _outer(spec))
    picked = [m.row_bytes // m.matrix.dtype.itemsize for m in spec.matvecs.values() if m.rows]
    moved = [*picked, *(_size(a) for a in _written(spec)), *_outers_of_rows(spec)]
    inside = VALUE * sum(_vectors(_size(a)) for a in _values(spec))
    each = products + XLA_VALUE * sum(map(_vectors, moved)) + inside
    return KernelTime(edges * each, XLA_COMPILE)


def _outer(spec: Spec) -> int:
    """Vectors of the outer products that are summed."""
    return sum(
        pair.left.size * _vectors(pair.right.size // pair.batch)
        for pairs in spec.outers.values()
        for pair in pairs
    )


def _outers_of_rows(spec: Spec) -> list[int]:
    """Scalars of those that are summed by row: XLA writes each."""
    by_row = [k for k in spec.outers if spec.reductions[k] == Reduce("sum", spec.rows)]
    return [] if spec.grouped else [_size(spec.body.outputs[k]) for k in by_row]


def _values(spec: Spec) -> list[Atom]:
    """The values that are computed or read on each edge."""
    return [v for v in spec.body.values() if v in spec.used and spec.levels[v] == PER_EDGE]


def _written(spec: Spec) -> set[Atom]:
    """The values that XLA gathers, or writes for an operation that it does not fuse."""
    found: set[Atom] = {v for _, v in spec.inputs(PER_EDGE)}
    for eqn in spec.equations(PER_EDGE):
        if isinstance(eqn.op, Lax) and eqn.op.name == "dot_general":
            found |= {*eqn.inputs, *eqn.outputs}
    for number, out in enumerate(spec.body.outputs):
        pairs = spec.outers.get(number)
        found |= {a for pair in pairs for a in pair.values} if pairs else {out}
    return {a for a in found if a in spec.used and spec.level(a) == PER_EDGE}


def _size(atom: Atom) -> int:
    return math.prod(atom.shape)


def _vectors(size: int) -> int:
    return -(-size // VECTOR)
