"""The plan of the fewest bytes in a given order, as an integer program.

Between two uses in a row, a tensor either stays on the device or leaves; that is one unknown, 1
where it stays. What leaves is loaded again, and stored before, once, where the host has no copy;
what stays takes its bytes from every operation in between. The linear relaxation of such programs
nearly solves them, so that hundreds of operations take a second or some, where a dynamic program
has too many states.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from gnnjit.streaming.memory.problem import MemoryProblem, bits

if TYPE_CHECKING:  # a third of a second with its solvers, for plans with a budget
    from scipy import sparse

MAX_NODES = 1
"""Nodes of the solver's tree: what the first one leaves open is not worth the time."""


@dataclasses.dataclass(frozen=True)
class _Stay:
    """A tensor between the operations at two positions; idle at those between."""

    tensor: int
    since: int
    until: int


def fewest_bytes(problem: MemoryProblem) -> tuple[list[tuple[int, int]], bool] | None:
    """The operations in the given order, each with the tensors evicted before it, and whether it is
    proven that no other evictions in this order move fewer bytes. None where the solver finds
    nothing."""
    stays = list(_stays(problem))
    if not stays:
        return [(op, 0) for op in problem.order], True
    kept = _solve(problem, stays)
    if kept is None:
        return None
    values, proven = kept
    leaves = [0] * len(problem.order)
    for stay, value in zip(stays, values, strict=True):
        if not value:
            leaves[stay.since + 1] |= 1 << stay.tensor
    return list(zip(problem.order, leaves, strict=True)), proven


def _stays(problem: MemoryProblem) -> list[_Stay]:
    """Where a tensor is not used by an operation, but by one before and one after."""
    last: dict[int, int] = {}
    found = []
    for position, op in enumerate(problem.order):
        for tensor in bits(problem.ins[op] | problem.outs[op]):
            since = last.get(tensor, position)
            if position > since + 1:
                found.append(_Stay(tensor, since, position))
            last[tensor] = position
    return found


def _solve(problem: MemoryProblem, stays: list[_Stay]) -> tuple[np.ndarray, bool] | None:
    """Which of them stay. Unknowns: one for each, then one for each tensor that may have to be
    stored, 1 where it is not."""
    from scipy import optimize, sparse

    made = 0
    for outs in problem.outs:
        made |= outs
    stored = sorted({s.tensor for s in stays if (made & ~problem.results) >> s.tensor & 1})
    column = {t: len(stays) + i for i, t in enumerate(stored)}
    sizes = np.array([problem.sizes[t] for t in (*(s.tensor for s in stays), *stored)], np.int64)
    unit = max(1, int(sizes.max()))
    idle = _idle_bytes(problem, stays, sizes, len(sizes))
    room = np.array([problem.capacity - problem.alone[op] for op in problem.order], np.int64)
    both = [(i, column[s.tensor]) for i, s in enumerate(stays) if s.tensor in column]
    rules = [optimize.LinearConstraint(idle / unit, ub=room / unit)]
    if both:  # a tensor is not stored only if it always stays
        rows = np.repeat(np.arange(len(both)), 2)
        signs = np.tile([1.0, -1.0], len(both))
        which = (rows, np.array(both).ravel())
        shape = (len(both), len(sizes))
        rules.append(optimize.LinearConstraint(sparse.csr_array((signs, which), shape), lb=0))
    found = optimize.milp(
        -sizes / unit, integrality=np.ones(len(sizes)), bounds=optimize.Bounds(0, 1),
        constraints=rules, options={"node_limit": MAX_NODES, "mip_rel_gap": 0.0},
    )  # fmt: skip
    if found.x is None:
        return None
    chosen = np.round(found.x).astype(np.int64)
    fits = bool((idle @ chosen <= room).all())  # the solver's own check has a tolerance
    return (chosen[: len(stays)].astype(bool), found.status == 0) if fits else None


def _idle_bytes(
    problem: MemoryProblem, stays: list[_Stay], sizes: np.ndarray, unknowns: int
) -> sparse.csr_array:
    """`[operations, unknowns]`: the bytes that a tensor takes from an operation if it stays."""
    from scipy import sparse

    lengths = [s.until - s.since - 1 for s in stays]
    rows = np.concatenate([np.arange(s.since + 1, s.until) for s in stays])
    columns = np.repeat(np.arange(len(stays)), lengths)
    return sparse.csr_array((sizes[columns], (rows, columns)), (len(problem.order), unknowns))
