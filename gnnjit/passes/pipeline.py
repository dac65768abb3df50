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
from gnnjit.passes.place_in_smallest_space import PlaceInSmallestSpace
from gnnjit.passes.scale_on_the_edges import ScaleOnTheEdges
from gnnjit.passes.share_subexpressions import ShareSubexpressions
from gnnjit.passes.split_concat_matmul import Score, SplitConcatMatmul


class Pass(Protocol):
    """A rewrite of programs that keeps their meaning."""

    @property
    def name(self) -> str: ...

    def __call__(self, program: Program) -> Program: ...


Observer = Callable[[Pass, Program, Program], None]


def default_passes(score: Score | None = None) -> tuple[Pass, ...]:
    """Every pass, in order, for a layer that may be differentiated.

    `score` (lower is better) decides where a rewrite may not pay.
    """
    return _passes(FactorOutOfReduce(keep_fixed=True), (ScaleOnTheEdges(),), score)


def lowering_passes(*, scale_on_edges: bool) -> tuple[Pass, ...]:
    """Every pass, for a traversal of which no derivative will be taken any more."""
    last = (ScaleOnTheEdges(every=True),) if scale_on_edges else ()
    return _passes(FactorOutOfReduce(), last, None)


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


def run(program: Program, passes: Sequence[Pass], observers: Sequence[Observer] = ()) -> Program:
    """Apply `passes` in order, verifying after each; observers see every step."""
    for step in passes:
        after = step(program)
        verify(after)
        for observe in observers:
            observe(step, program, after)
        program = after
    return program
