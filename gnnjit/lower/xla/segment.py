"""The lowering that can do everything: edges in sorted order, in chunks of bounded size.

Works for traced structure and any edge function, matmuls on the edges included; no buffer is
larger than `limit` scalars (by default `CHUNK_SCALARS`) or one row per vertex, except values
that stay on the edges. Products that are only summed over all edges, as the gradients of shared
matrices are, become one product for a chunk: the terms are never written. What edges add to rows
of a shared table, as the gradient of `w[e.data]` is, a chunk adds to the rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from gnnjit.cost.memory import CHUNK_SCALARS, CHUNK_SCALARS_ON_GPU
from gnnjit.ir.evaluate import evaluate_element
from gnnjit.ir.interpret import extreme
from gnnjit.ir.program import Atom, Equation, Lax, Program, Reduce
from gnnjit.ir.space import Space
from gnnjit.ir.tables import RowSum, row_sums
from gnnjit.lower.execute import size
from gnnjit.lower.lowering import LoweringRequest, Reductions
from gnnjit.lower.pallas import row_sums as row_sums_on_gpu
from gnnjit.passes.drop_dead import DropDead
from gnnjit.system.portable import is_portable


def accumulator_dtype(dtype: Any) -> Any:
    """Half precision is summed in float32."""
    return jnp.float32 if dtype in (jnp.bfloat16, jnp.float16) else dtype


def neutral(reduction: Reduce, dtype: Any) -> Any:
    if reduction.kind in ("sum", "prod"):
        return jnp.asarray(reduction.kind == "prod", dtype)
    return extreme(dtype, -1 if reduction.kind == "max" else 1)


def chunk_size(
    body: Program, num_edges: int, limit: int | None = None, reductions: Reductions = ()
) -> int:
    """Edges a step, so that its largest value has at most `limit` scalars (or one edge); all steps
    have about as many, for the last one is as long as the others."""
    widths = [v.size for v in _split(body, reductions).body.values() if v.space is not Space.SHARED]
    scalars = CHUNK_SCALARS if limit is None else limit
    most = max(1, scalars // max([1, *widths]))
    steps = max(1, -(-num_edges // most))
    return max(1, -(-num_edges // steps))


def temporary_bytes(
    body: Program, num_edges: int, limit: int | None = None, reductions: Reductions = ()
) -> int:
    """An upper estimate of the bytes of one step: every value of the body, for each edge of a
    chunk, as if XLA fused none into another. Shared values are counted once."""
    chunk = chunk_size(body, num_edges, limit, reductions)
    of = {True: 0, False: 0}
    for v in _split(body, reductions).body.values():
        of[v.space is Space.SHARED] += v.size * getattr(v.dtype, "itemsize", 4)
    return of[True] + of[False] * chunk


@dataclasses.dataclass(frozen=True)
class _Split:
    """An edge function without the products, and without the tables, that are only summed over all
    edges.

    products: per output of the whole function, the products that it is the sum of, each with its
        transpositions; empty where it is no such sum.
    rows: per output, what is added to which rows of a table, if it is such a sum.
    at: where what they need (or the output itself) is among the outputs of `body`.
    """

    body: Program
    products: tuple[tuple[tuple[Equation, ...], ...], ...]
    rows: tuple[tuple[RowSum, ...], ...]
    at: tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=1024)
def _split(body: Program, reductions: Reductions) -> _Split:
    made = {o: e for e in body.equations for o in e.outputs}
    reductions = reductions or (None,) * len(body.outputs)
    sums = row_sums(body, reductions)
    outputs: list[Atom] = []
    products, rows, at = [], [], []
    for number, (atom, r) in enumerate(zip(body.outputs, reductions, strict=True)):
        found = _products(atom, made) if r == Reduce("sum", Space.SHARED) else ()
        parts: Sequence[Atom] = [a for p in found for a in p[0].inputs] if found else (atom,)
        rows.append(sums.get(number, ()))
        if rows[-1]:
            parts = [a for one in rows[-1] for a in (one.update, *one.rows.index)]
        products.append(found)
        at.append(tuple(range(len(outputs), len(outputs) + len(parts))))
        outputs += parts
    rest = dataclasses.replace(body, outputs=tuple(outputs))
    return _Split(DropDead()(rest), tuple(products), tuple(rows), tuple(at))


def _products(
    atom: Atom, made: Mapping[Any, Equation], after: tuple[Equation, ...] = ()
) -> tuple[tuple[Equation, ...], ...]:
    """The products of two values per edge whose sum `atom` is, each with what transposes it."""
    eqn = made.get(atom)
    if eqn is None:
        return ()
    if eqn.op.name == "transpose":
        return _products(eqn.inputs[0], made, (eqn, *after))
    if eqn.op.name in ("add", "add_any"):
        both = [_products(a, made, after) for a in eqn.inputs]
        return both[0] + both[1] if all(both) else ()
    if eqn.op.name != "dot_general":
        return ()
    per_edge = all(a.space is not Space.SHARED and a.dtype == eqn.outputs[0].dtype
                   for a in eqn.inputs)  # fmt: skip
    return ((eqn, *after),) if per_edge else ()


def sum_of_products(
    product: tuple[Equation, ...], a: Any, b: Any, pieces: int = 1, dtype: Any = None
) -> Any:
    """The sum over the edges of the first equation's product, as one product over them, or as the
    sum of those of so many pieces of the edges; in `dtype`, if not in that of `a` and `b`."""
    op = product[0].op
    assert isinstance(op, Lax)
    (left, right), (left_each, right_each) = op["dimension_numbers"]
    lead = 1 if pieces == 1 else 2
    if lead == 2:
        a, b = (x.reshape(pieces, -1, *x.shape[1:]) for x in (a, b))

    def axes(own: Sequence[int], of_edge: Sequence[int]) -> tuple[int, ...]:
        return (*own, *(i + lead for i in of_edge))

    piece = range(lead - 1)  # the axis of the pieces, if there is one; that of edges comes last
    contracted = axes([lead - 1], left), axes([lead - 1], right)
    dims = contracted, (axes(piece, left_each), axes(piece, right_each))
    out = lax.dot_general(a, b, dims, op["precision"], preferred_element_type=dtype)
    return out if pieces == 1 else jnp.sum(out, axis=0)


def transposed(product: tuple[Equation, ...], x: Any) -> Any:
    """What the equations after a product make of it."""
    for eqn in product[1:]:
        assert isinstance(eqn.op, Lax)
        x = jnp.transpose(x, eqn.op["permutation"])
    return x


def why_not(request: LoweringRequest) -> list[str]:
    """Reasons against this lowering; none means that it runs."""
    if any(r is not None and r.kind == "exp_sum" for r in request.reductions):
        return ["an exp_sum is not written out as maximum, exponential and sum"]
    return []


def run(
    request: LoweringRequest, operands: Sequence[Any], collect: bool | None = None
) -> list[Any]:
    """collect: whether values of rows are kept until `collected` are reduced at once, if a GPU
    kernel can; by default on a GPU where no limit speaks against it."""
    num_edges = request.graph.num_edges
    limit, on_gpu = request.limit, request.platform != "cpu"
    if limit is None and on_gpu:
        limit = CHUNK_SCALARS_ON_GPU
    chunk = chunk_size(request.body, num_edges, limit, request.reductions)
    if collect is None:
        here = request.platform == "cuda" and not is_portable()
        collect = here and request.preferred is None and request.limit is None
    later = collected(request) if collect else frozenset()
    return over_chunks(ChunkStep(request, list(operands), chunk, later))


def over_chunks(step: ChunkStep) -> list[Any]:
    """The outputs, chunk by chunk."""
    start = step.accumulators()
    count = -(-step.graph.num_edges // step.chunk)
    if count == 0:
        return step.finish(start)
    if count == 1:
        return step.finish(step(start, 0))
    number = step.structure.indptr.dtype.type
    last = lax.fori_loop(number(0), number(count), lambda i, state: step(state, i), start)
    return step.finish(last)


def collected(request: LoweringRequest) -> frozenset[int]:
    """The outputs whose rows a GPU kernel reduces once all their edges are known. XLA's scatter
    adds in any order, so that no two runs would agree, and takes the time of ten sums for a
    maximum."""
    return frozenset(
        i
        for i, (atom, r) in enumerate(zip(request.body.outputs, request.reductions, strict=True))
        if r is not None
        and r.into is request.rows
        and r.kind in row_sums_on_gpu.KINDS
        and jnp.issubdtype(atom.dtype, jnp.floating)
    )


class ChunkEdges(NamedTuple):
    """A chunk of edges: the first one's slot, their numbers, rows (padding has one beyond the
    last), neighbours, and which of them count; None where all do."""

    start: Any
    edge: Any
    row: Any
    neighbor: Any
    valid: Any


class ChunkStep:
    """A chunk of edges in the order of their rows, added to what earlier chunks gave."""

    def __init__(
        self,
        request: LoweringRequest,
        operands: list[Any],
        chunk: int,
        collected: frozenset[int] = frozenset(),
    ):
        self.request, self.collected = request, collected
        self.body, self.reductions, self.rows = request.body, request.reductions, request.rows
        self.graph, self.structure = request.graph, request.structure
        self.row_of_edge = request.row_of_edge
        self.operands, self.chunk = operands, chunk
        self.split = _split(self.body, self.reductions)

    def accumulators(self) -> list[Any]:
        out = []
        for i, (atom, r) in enumerate(zip(self.body.outputs, self.reductions, strict=True)):
            if r is None or i in self.collected:
                out.append(jnp.zeros((self.graph.num_edges, *atom.shape), atom.dtype))
                continue
            dtype = accumulator_dtype(atom.dtype)
            n = 1 if r.into is Space.SHARED else size(self.graph, r.into)
            out.append(jnp.full((n, *atom.shape), neutral(r, dtype), dtype))
        return out

    def __call__(self, state: list[Any], number: Any) -> list[Any]:
        part = self.part(number)
        valid, values = part.valid, self.values(part)
        new, split = [], self.split
        each = zip(state, split.at, split.products, split.rows, self.reductions, strict=True)
        for i, (total, at, products, rows, r) in enumerate(each):
            if i in self.collected:
                new.append(collect(total, values[at[0]], part))
            elif rows:
                new.append(_with_rows(total, rows, [values[i] for i in at], valid))
            elif r is None:
                new.append(self.write(total, values[at[0]], part))
            elif products:
                factors = iter([_mask(values[i], valid, 0) for i in at])
                for product in products:
                    total += self.summed(product, next(factors), next(factors), total.dtype)
                new.append(total)
            else:
                new.append(self.reduce(total, values[at[0]], r, part))
        return new

    def part(self, number: Any) -> ChunkEdges:
        """Chunk `number`. The last one begins early enough to be as long as the others; what it
        has in common with the one before is not valid."""
        s, chunk = self.structure, self.chunk
        first = number * chunk
        start = jnp.minimum(first, self.graph.num_edges - chunk).astype(s.indptr.dtype)
        slot = start + jnp.arange(chunk, dtype=s.indptr.dtype)
        edge, neighbor = (
            lax.dynamic_slice_in_dim(x, start, chunk, axis=0) for x in (s.edge, s.neighbor)
        )
        real = slot < s.indptr[-1]
        row = jnp.where(real, _read(self.row_of_edge, edge), size(self.graph, self.rows))
        return ChunkEdges(start, edge, row, neighbor, (slot >= first) & real)

    def values(self, part: ChunkEdges) -> list[Any]:
        """Of each output of `split.body`, for each edge of a chunk."""
        near, far = self.rows, self.rows.flipped
        row = part.row if part.valid is None else jnp.where(part.valid, part.row, 0)
        index = {near: row, far: part.neighbor}
        args, axes = [], []
        for x, v in zip(self.operands, self.body.inputs, strict=True):
            if v.space is Space.EDGE:
                args.append(self.of_edges(x, part))
            else:
                args.append(x if v.space is Space.SHARED else _read(x, index[v.space]))
            axes.append(None if v.space is Space.SHARED else 0)
        body = self.split.body
        if all(a is None for a in axes):
            outs = evaluate_element(body, args)
            return [jnp.broadcast_to(o, (self.chunk, *jnp.shape(o))) for o in outs]
        return jax.vmap(lambda *xs: evaluate_element(body, xs), in_axes=axes)(*args)

    def summed(self, product: tuple[Equation, ...], a: Any, b: Any, dtype: Any) -> Any:
        """The sum over a chunk of a product, as one product over them."""
        # XLA's CPU code has no batched product of half precision into float32.
        return transposed(product, sum_of_products(product, a.astype(dtype), b.astype(dtype)))

    def of_edges(self, x: Any, part: ChunkEdges) -> Any:
        """The rows of an array over the edges."""
        return _read(x, part.edge)

    def reduce(self, total: Any, x: Any, r: Reduce, part: ChunkEdges) -> Any:
        x = _mask(x.astype(total.dtype), part.valid, neutral(r, total.dtype))
        if r.into is Space.SHARED:
            of_all = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "prod": jnp.prod}[r.kind]
            pair = jnp.stack([total[0], of_all(x, axis=0)])
            return of_all(pair, axis=0)[None]
        at = total.at[part.row]
        how = {"sum": at.add, "max": at.max, "min": at.min, "prod": at.multiply}[r.kind]
        return how(x, indices_are_sorted=True, mode="drop", wrap_negative_indices=False)

    def write(self, written: Any, x: Any, part: ChunkEdges) -> Any:
        """With the values of one chunk, in the order in which the edges were given."""
        beyond = self.graph.num_edges + jnp.arange(self.chunk, dtype=part.edge.dtype)
        at = written.at[jnp.where(part.valid, part.edge, beyond)]
        return at.set(
            x.astype(written.dtype), mode="drop", unique_indices=True, wrap_negative_indices=False
        )

    def finish(self, state: list[Any]) -> list[Any]:
        degree = jnp.diff(self.structure.indptr)
        out = []
        each = zip(state, self.body.outputs, self.reductions, strict=True)
        for i, (total, atom, r) in enumerate(each):
            if r is None:
                out.append(total)
                continue
            if i in self.collected:
                out.append(row_sums_on_gpu.run(self.request, r.kind, total))
                continue
            count = self.structure.indptr[-1:] if r.into is Space.SHARED else degree
            if r.kind != "sum":
                total = _mask(total, count > 0, 0)
            total = total.astype(atom.dtype)
            out.append(total[0] if r.into is Space.SHARED else total)
        return out


def collect(total: Any, x: Any, part: ChunkEdges) -> Any:
    """With the values of one chunk, by slot."""
    new = x.astype(total.dtype)
    if part.valid is not None:
        old = lax.dynamic_slice_in_dim(total, part.start, x.shape[0])
        new = jnp.where(part.valid.reshape(-1, *(1,) * (x.ndim - 1)), new, old)
    return lax.dynamic_update_slice_in_dim(total, new, part.start, axis=0)


def _with_rows(total: Any, sums: Sequence[RowSum], values: list[Any], valid: Any) -> Any:
    """`total: [1, *table]`, with what a chunk of edges adds to its rows."""
    given = iter(values)
    for one in sums:
        update, index = next(given), [next(given) for _ in one.rows.index]
        count, size = math.prod(one.rows.lengths), math.prod(one.rows.row)
        number, inside = one.rows.number(index)
        number = number.reshape(len(number), -1)
        for keep in (valid, inside):
            if keep is not None:
                number = jnp.where(keep.reshape(len(keep), -1), number, count)
        update = update.reshape(*number.shape, size).astype(total.dtype)
        flat = total.reshape(count, size).at[number].add(update, mode="drop")
        total = flat.reshape(total.shape)
    return total


def _read(x: Any, at: Any) -> Any:
    """`x[at]`, of indices that are known to be right."""
    return x.at[at].get(mode="promise_in_bounds", wrap_negative_indices=False)


def _mask(x: Any, keep: Any, otherwise: Any) -> Any:
    if keep is None:
        return x
    keep = keep.reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.where(keep, x, jnp.asarray(otherwise, x.dtype))
