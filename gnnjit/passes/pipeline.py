"""The passes, in the order in which they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from gnnjit.ir.program import Program
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify
from gnnjit.passes.arithmetic_on_own_rows import ArithmeticOnOwnRows
from gnnjit.passes.contract_with_shared_first import ContractWithSharedFirst
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.extremes_in_full_precision import ExtremesInFullPrecision
from gnnjit.passes.factor_out_of_reduce import FactorOutOfReduce
from gnnjit.passes.fold_constants import FoldConstants
from gnnjit.passes.fuse_scatter_apply_gather import FuseScatterApplyGather
from gnnjit.passes.group_sums_by_space import GroupSumsBySpace
from gnnjit.passes.online_softmax import OnlineSoftmax
from gnnjit.passes.place_in_smallest_space import PlaceInSmallestSpace
from gnnjit.passes.place_on_the_edges import PlaceOnTheEdges
from gnnjit.passes.reorder_aggregate_combine import Order, ReorderAggregateCombine
from gnnjit.passes.repeat_on_the_edges import RepeatOnTheEdges
from gnnjit.passes.scale_on_the_edges import ScaleOnTheEdges
from gnnjit.passes.scores_as_products import MOST, ScoresAsProducts
from gnnjit.passes.share_subexpressions import ShareSubexpressions
from gnnjit.passes.shield_unread_vertices import ShieldUnreadVertices
from gnnjit.passes.split_concat_matmul import SplitConcatMatmul
from gnnjit.passes.store_edge_values import StoreEdgeValues
from gnnjit.passes.zeros_on_the_edges import ZerosOnTheEdges


class Pass(Protocol):
    """A rewrite of programs that keeps their meaning."""

    @property
    def name(self) -> str: ...

    def __call__(self, program: Program) -> Program: ...


Observer = Callable[[Pass, Program, Program], None]


NOWHERE: frozenset[Space] = frozenset()


@dataclasses.dataclass(frozen=True)
class Choices:
    """What a planner decides about one layer; by default, what the user wrote.

    orders: for each of `reorder_aggregate_combine.sites`, on which side of its sums the matrix is.
    twins: pairs of inputs that are the same array: no choice, but part of what an order means.
    products: attention scores of several heads are products with a matrix.
    stored: which of `store_edge_values.candidates` are stored for later traversals.
    split: one traversal for each reduction.
    on_edges: vertex spaces whose work is done on the edges instead.
    limit: scalars of the widest value in one chunk of edges, where edges are taken in chunks.
    """

    orders: tuple[Order | None, ...] = ()
    twins: tuple[tuple[int, int], ...] = ()
    products: bool = False
    stored: tuple[int, ...] = ()
    split: bool = False
    on_edges: frozenset[Space] = NOWHERE
    limit: int | None = None


AS_WRITTEN = Choices()


def layer_prefix(padded: bool, on_edges: frozenset[Space] = NOWHERE) -> tuple[Pass, ...]:
    """The passes of a layer as the user wrote it that come before most choices."""
    return (ShieldUnreadVertices(padded), *_prefix(on_edges))


def layer_middle(choices: Choices = AS_WRITTEN) -> tuple[Pass, ...]:
    """The passes between the prefix and `store-edge-values`."""
    orders, twins = choices.orders, choices.twins
    order = (ReorderAggregateCombine(orders, twins=twins),) if any(orders) else ()
    score = ScoresAsProducts(MOST if choices.products else 1)
    place = (PlaceOnTheEdges(choices.on_edges),) if choices.on_edges else ()
    return (*order, score, ShareSubexpressions(), DropDead(), *place)


def layer_suffix(choices: Choices = AS_WRITTEN, *, online: bool = True) -> tuple[Pass, ...]:
    """The rest, for a layer that may be differentiated; not `online`: without the reduction that
    only some kernels can do."""
    store = (StoreEdgeValues(choices.stored),) if choices.stored else ()
    softmax = (OnlineSoftmax(),) if online else ()
    moved = (RepeatOnTheEdges(), ScaleOnTheEdges(), ExtremesInFullPrecision())
    return (*store, *softmax, *moved, FuseScatterApplyGather(choices.split))


def default_passes(choices: Choices = AS_WRITTEN, *, online: bool = True) -> tuple[Pass, ...]:
    """Every pass but `shield-unread-vertices`; `online` as in `layer_suffix`."""
    prefix = _prefix(choices.on_edges)
    return (*prefix, *layer_middle(choices), *layer_suffix(choices, online=online))


def layer_passes(padded: bool, choices: Choices = AS_WRITTEN) -> tuple[Pass, ...]:
    """Every pass, in order, for a layer as the user wrote it."""
    prefix = layer_prefix(padded, choices.on_edges)
    return (*prefix, *layer_middle(choices), *layer_suffix(choices))


def lowering_passes(
    *, online: bool, scale_on_edges: bool, keep: frozenset[Space] = NOWHERE
) -> tuple[Pass, ...]:
    """Every pass, for a traversal of which no derivative will be taken any more.

    `online`: with the reduction that only some kernels can do. `keep`: the vertex spaces whose work
    stays on the edges, or goes back there.
    """
    softmax = (OnlineSoftmax(),) if online else ()
    scale = (ScaleOnTheEdges(every=True), ArithmeticOnOwnRows()) if scale_on_edges else ()
    back = (PlaceOnTheEdges(keep),) if keep else ()
    matmuls, contract = SplitConcatMatmul(None, keep), ContractWithSharedFirst(keep)
    factors = FactorOutOfReduce(rows=False)
    simplify = _simplify(PlaceInSmallestSpace(keep), matmuls, contract, factors)
    repeat = RepeatOnTheEdges(numbers=scale_on_edges)
    last = (repeat, *scale, ZerosOnTheEdges(), FuseScatterApplyGather())
    return (*simplify, *back, *softmax, *last)


def _prefix(on_edges: frozenset[Space]) -> tuple[Pass, ...]:
    factor = FactorOutOfReduce(keep_fixed=True, keep=on_edges)
    matmuls, contract = SplitConcatMatmul(None, on_edges), ContractWithSharedFirst(on_edges)
    return _simplify(PlaceInSmallestSpace(), matmuls, contract, factor)


def _simplify(place: Pass, matmuls: Pass, contract: Pass, factor: Pass) -> tuple[Pass, ...]:
    return (
        DropDead(),
        place,
        FoldConstants(),
        ShareSubexpressions(),
        matmuls,
        contract,
        GroupSumsBySpace(),
        factor,
        place,
        ShareSubexpressions(),
        DropDead(),
    )


def run(
    program: Program,
    passes: Sequence[Pass],
    observers: Sequence[Observer] = (),
    *,
    verified: bool = True,
) -> Program:
    """Apply `passes` in order, verifying after each that changed something; observers see every
    step.

    Not `verified`: for programs that are only weighed, most of which never run.
    """
    for step in passes:
        after = step(program)
        if after.is_made_of(program):
            after = program
        elif verified:
            verify(after)
        for observe in observers:
            observe(step, program, after)
        program = after
    return program
