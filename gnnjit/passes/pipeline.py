"""The passes, in the order in which they run: one table for a layer, one for each traversal of it
when that is lowered. A row is a pass, how it is made, and when it is left out.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gnnjit.ir.program import Program
from gnnjit.ir.space import Space
from gnnjit.ir.verify import verify
from gnnjit.passes.contract_with_shared_first import ContractWithSharedFirst
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.edge_matrices_as_products import EdgeMatricesAsProducts
from gnnjit.passes.edge_products_as_matrices import EdgeProductsAsMatrices
from gnnjit.passes.extremes_in_full_precision import ExtremesInFullPrecision
from gnnjit.passes.factor_out_of_reduce import FactorOutOfReduce
from gnnjit.passes.fold_constants import FoldConstants
from gnnjit.passes.fold_transposes import FoldTransposes
from gnnjit.passes.fuse_scatter_apply_gather import FuseScatterApplyGather
from gnnjit.passes.group_sums_by_space import GroupSumsBySpace
from gnnjit.passes.long_axes_last import LongAxesLast
from gnnjit.passes.online_softmax import OnlineSoftmax
from gnnjit.passes.place_in_graphs import PlaceInGraphs
from gnnjit.passes.place_in_smallest_space import PlaceInSmallestSpace
from gnnjit.passes.reorder_aggregate_combine import Order, ReorderAggregateCombine
from gnnjit.passes.scale_outer_factors import ScaleOuterFactors
from gnnjit.passes.scores_as_products import MOST, ScoresAsProducts
from gnnjit.passes.share_subexpressions import ShareSubexpressions
from gnnjit.passes.shield_unread_vertices import ShieldUnreadVertices
from gnnjit.passes.single_columns import SingleColumns
from gnnjit.passes.sink_broadcasts import SinkBroadcasts
from gnnjit.passes.sink_derived_values import SinkDerivedValues
from gnnjit.passes.sink_into_sequences import SinkIntoSequences
from gnnjit.passes.sink_picked_matrices import SinkPickedMatrices
from gnnjit.passes.sink_row_arithmetic import SinkRowArithmetic
from gnnjit.passes.sink_scaling import SinkScaling
from gnnjit.passes.sink_vertex_work import SinkVertexWork
from gnnjit.passes.sink_zeros import SinkZeros
from gnnjit.passes.slopes_of_softplus import SlopesOfSoftplus
from gnnjit.passes.split_concat_matmul import SplitConcatMatmul
from gnnjit.passes.store_edge_values import StoreEdgeValues
from gnnjit.passes.store_shared_products import StoreSharedProducts


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

    orders: for each of `movable_matmuls`, on which side of its sums the matrix is.
    aliased_inputs: pairs of inputs that are the same array: no choice, but part of what an order
        means.
    products: attention scores of several heads are products with a matrix.
    stored: which of `storable_values` are stored for later traversals.
    split: one traversal for each reduction.
    on_edges: vertex spaces whose work is done on the edges instead.
    limit: scalars of the widest value in one chunk of edges, where edges are taken in chunks.
    """

    orders: tuple[Order | None, ...] = ()
    aliased_inputs: tuple[tuple[int, int], ...] = ()
    products: bool = False
    stored: tuple[int, ...] = ()
    split: bool = False
    on_edges: frozenset[Space] = NOWHERE
    limit: int | None = None

    @property
    def reordered(self) -> bool:
        return any(self.orders)


AS_WRITTEN = Choices()


@dataclasses.dataclass(frozen=True)
class PassOptions:
    """What decides which passes run, and how.

    padded: the graph has vertices that are padding; None: nobody asks (`shield-unread-vertices`).
    online: with the reduction that only some kernels can do.
    scale_on_edges: a vertex's number is repeated and multiplied by where edges read it.
    store_shared: a traversal may write what another one reduces.
    """

    choices: Choices = AS_WRITTEN
    padded: bool | None = None
    online: bool = True
    scale_on_edges: bool = False
    store_shared: bool = False

    def has(self, when: str) -> bool:
        """Whether the option of that name is set."""
        return not when or bool(operator.attrgetter(when)(self))

    @property
    def shielded(self) -> bool:
        return self.padded is not None

    @property
    def on_edges(self) -> frozenset[Space]:
        return self.choices.on_edges


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table of passes.

    kind: the class of the pass; `kind.name` is its name, and that of its file.
    make: the pass for given options, where it is not `kind()`.
    when: the option without which it is left out, as `choices.stored`; "" if it always runs.
    """

    kind: Any
    make: Callable[[PassOptions], Pass] | None = None
    when: str = ""

    @property
    def name(self) -> str:
        return self.kind.name


SIMPLIFY: tuple[Row, ...] = (
    Row(ShieldUnreadVertices, lambda o: ShieldUnreadVertices(bool(o.padded)), "shielded"),
    Row(DropDead),
    Row(FoldTransposes),
    Row(PlaceInSmallestSpace),
    Row(LongAxesLast),
    Row(FoldConstants),
    Row(ShareSubexpressions),
    Row(SplitConcatMatmul, lambda o: SplitConcatMatmul(None, o.on_edges)),
    Row(EdgeMatricesAsProducts),
    Row(ContractWithSharedFirst, lambda o: ContractWithSharedFirst(o.on_edges)),
    Row(GroupSumsBySpace),
    Row(FactorOutOfReduce, lambda o: FactorOutOfReduce(keep_fixed=True, keep=o.on_edges)),
    Row(PlaceInSmallestSpace),
    Row(PlaceInGraphs),
    Row(ShareSubexpressions),
    Row(DropDead),
)
"""Passes of every layer. A planner weighs its choices on what they leave."""


def _reorder(choices: Choices) -> Pass:
    return ReorderAggregateCombine(choices.orders, aliased_inputs=choices.aliased_inputs)


CHOOSE: tuple[Row, ...] = (
    Row(ReorderAggregateCombine, lambda o: _reorder(o.choices), "choices.reordered"),
    Row(ScaleOuterFactors),
    Row(ScoresAsProducts, lambda o: ScoresAsProducts(MOST if o.choices.products else 1)),
    Row(ShareSubexpressions),
    Row(DropDead),
    Row(SinkVertexWork, lambda o: SinkVertexWork(o.on_edges), "choices.on_edges"),
)
"""Passes that do what a planner chose. It picks what to store among the values they leave."""

FUSE: tuple[Row, ...] = (
    Row(StoreEdgeValues, lambda o: StoreEdgeValues(o.choices.stored), "choices.stored"),
    Row(SinkIntoSequences),
    Row(OnlineSoftmax, when="online"),
    Row(SinkBroadcasts),
    Row(SinkPickedMatrices),
    Row(SinkScaling),
    Row(ExtremesInFullPrecision),
    Row(FuseScatterApplyGather, lambda o: FuseScatterApplyGather(o.choices.split, both_ends=True)),
)
"""Passes that leave as few traversals as possible."""

LAYER = (*SIMPLIFY, *CHOOSE, *FUSE)
"""A layer as the user wrote it, which may be differentiated."""

LOWERING: tuple[Row, ...] = (
    Row(DropDead),
    Row(FoldTransposes),
    Row(PlaceInSmallestSpace, lambda o: PlaceInSmallestSpace(o.on_edges)),
    Row(FoldConstants),
    Row(ShareSubexpressions),
    Row(SplitConcatMatmul, lambda o: SplitConcatMatmul(None, o.on_edges)),
    Row(ContractWithSharedFirst, lambda o: ContractWithSharedFirst(o.on_edges)),
    Row(GroupSumsBySpace),
    Row(FactorOutOfReduce, lambda o: FactorOutOfReduce(rows=False)),
    Row(PlaceInSmallestSpace, lambda o: PlaceInSmallestSpace(o.on_edges)),
    Row(SlopesOfSoftplus),
    Row(SingleColumns, when="scale_on_edges"),
    Row(EdgeProductsAsMatrices, when="scale_on_edges"),
    Row(ShareSubexpressions),
    Row(DropDead),
    Row(SinkVertexWork, lambda o: SinkVertexWork(o.on_edges), "choices.on_edges"),
    Row(OnlineSoftmax, when="online"),
    Row(SinkBroadcasts, lambda o: SinkBroadcasts(numbers=o.scale_on_edges)),
    Row(SinkPickedMatrices),
    Row(SinkScaling, lambda o: SinkScaling(every=True), "scale_on_edges"),
    Row(SinkRowArithmetic, when="scale_on_edges"),
    Row(SinkZeros),
    Row(SinkDerivedValues, when="scale_on_edges"),
    Row(StoreSharedProducts, when="store_shared"),
    Row(FuseScatterApplyGather),
)
"""A traversal of which no derivative will be taken any more."""


def passes_of(table: Sequence[Row], options: PassOptions) -> tuple[Pass, ...]:
    """The passes of a table that run with these options, in order."""
    entries = [e for e in table if options.has(e.when)]
    return tuple(e.kind() if e.make is None else e.make(options) for e in entries)


def layer_prefix(padded: bool, on_edges: frozenset[Space] = NOWHERE) -> tuple[Pass, ...]:
    """The passes of a layer as the user wrote it that come before most choices."""
    return passes_of(SIMPLIFY, PassOptions(Choices(on_edges=on_edges), padded))


def layer_middle(choices: Choices = AS_WRITTEN) -> tuple[Pass, ...]:
    """The passes between the prefix and `store-edge-values`."""
    return passes_of(CHOOSE, PassOptions(choices))


def layer_suffix(choices: Choices = AS_WRITTEN, *, online: bool = True) -> tuple[Pass, ...]:
    """The rest, for a layer that may be differentiated; not `online`: without the reduction that
    only some kernels can do."""
    return passes_of(FUSE, PassOptions(choices, online=online))


def default_passes(choices: Choices = AS_WRITTEN, *, online: bool = True) -> tuple[Pass, ...]:
    """Every pass but `shield-unread-vertices`; `online` as in `layer_suffix`."""
    return passes_of(LAYER, PassOptions(choices, online=online))


def layer_passes(padded: bool, choices: Choices = AS_WRITTEN) -> tuple[Pass, ...]:
    """Every pass, in order, for a layer as the user wrote it."""
    return passes_of(LAYER, PassOptions(choices, padded))


def lowering_passes(
    *,
    online: bool,
    scale_on_edges: bool,
    keep: frozenset[Space] = NOWHERE,
    store_shared: bool = False,
) -> tuple[Pass, ...]:
    """Every pass, for a traversal of which no derivative will be taken any more.

    `keep`: the vertex spaces whose work stays on the edges, or goes back there.
    `store_shared`: as in `PassOptions`.
    """
    options = PassOptions(Choices(on_edges=keep), None, online, scale_on_edges, store_shared)
    return passes_of(LOWERING, options)


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
