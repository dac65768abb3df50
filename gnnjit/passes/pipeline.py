"""The passes, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gnnjit.ir.program import Program
from gnnjit.ir.verify import verify
from gnnjit.passes.drop_dead import DropDead
from gnnjit.passes.factor_out_of_reduce import FactorOutOfReduce
from gnnjit.passes.fold_constants import FoldConstants
from gnnjit.passes.fuse_scatter_apply_gather import FuseScatterApplyGather
from gnnjit.passes.group_sums_by_space import GroupSumsBySpace
from gnnjit.passes.online_softmax import OnlineSoftmax
from gnnjit.passes.place_in_smallest_space import PlaceInSmallestSpace
from gnnjit.passes.scale_on_the_edges import ScaleOnTheEdges
from gnnjit.passes.share_subexpressions import ShareSubexpressions
from gnnjit.passes.shield_unread_vertices import ShieldUnreadVertices
from gnnjit.passes.split_concat_matmul import Score, SplitConcatMatmul


class Pass(Protocol):
    """A rewrite of programs that keeps their meaning."""

    @property
    def name(self) -> str: ...

    def __call__(self, program: Program) -> Program: ...


Observer = Callable[[Pass, Program, Program], None]


def default_passes(score: Score | None = None, *, online: bool = True) -> tuple[Pass, ...]:
    """Every pass, in order, for a layer that may be differentiated.

    `score` (lower is better) decides where a rewrite may not pay; not `online`: without the
    reduction that only some kernels can do.
    """
    softmax = (OnlineSoftmax(),) if online else ()
    return _passes(FactorOutOfReduce(keep_fixed=True), (*softmax, ScaleOnTheEdges()), score)


def lowering_passes(*, online: bool, scale_on_edges: bool) -> tuple[Pass, ...]:
    """Every pass, for a traversal of which no derivative will be taken any more."""
    softmax = (OnlineSoftmax(),) if online else ()
    scale = (ScaleOnTheEdges(every=True),) if scale_on_edges else ()
    return _passes(FactorOutOfReduce(), (*softmax, *scale), None)


def _passes(factor: Pass, last: tuple[Pass, ...], score: Score | None) -> tuple[Pass, ...]:
    return (
        DropDead(),
        PlaceInSmallestSpace(),
        FoldConstants(),
        ShareSubexpressions(),
        SplitConcatMatmul(score),
        GroupSumsBySpace(),
        factor,
        PlaceInSmallestSpace(),
        ShareSubexpressions(),
        DropDead(),
        *last,
        FuseScatterApplyGather(),
    )


def layer_passes(padded: bool) -> tuple[Pass, ...]:
    """The passes of a layer as the user wrote it, which is yet to be differentiated."""
    return (ShieldUnreadVertices(padded), *default_passes())


def run(program: Program, passes: Sequence[Pass], observers: Sequence[Observer] = ()) -> Program:
    """Apply `passes` in order, verifying after each; observers see every step."""
    for step in passes:
        after = step(program)
        verify(after)
        for observe in observers:
            observe(step, program, after)
        program = after
    return program
