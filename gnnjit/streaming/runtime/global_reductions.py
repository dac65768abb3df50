"""Reductions over all vertices or all edges, which a sweep adds up block by block and processes
merge at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from gnnjit.distributed.process_group import ProcessGroup
from gnnjit.ir.array_program import Array
from gnnjit.lower.partial_results import empty, merge_partials
from gnnjit.streaming.program.executables import BlockExecutable, finished_total, neutral_totals
from gnnjit.streaming.program.sweeps import Gather


class GlobalReductions:
    """The reductions of one sweep.

    Attributes:
        rows: of each stage, what its reductions have from the blocks so far.
        edges: of aggregates into shared values, what they have from the chunks so far.
    """

    def __init__(
        self, executables: Sequence[BlockExecutable], gathers: Sequence[Gather], size: int
    ) -> None:
        """`executables`, `gathers`: of the sweep; `size`: rows of a block."""
        self._pieces = executables
        self.rows = [neutral_totals(executable) for executable in executables]
        self.edges = {g: empty(g.op, size) for g in gathers if g.totals}

    def merge(self, group: ProcessGroup, name: str) -> None:
        """Take in those of all processes, which have come to the end of the sweep. All do the same
        in the same order, so that the bits are the same."""
        if group.alone:
            return
        parts = [self._unpacked(raw) for raw in group.gather(name, self._packed())]
        self.rows, self.edges = parts[0]
        for rows, edges in parts[1:]:
            self.rows = [
                [w.rule.merge(a, b) for w, a, b in zip(executable.totals, old, new, strict=True)]  # type: ignore[misc]
                for executable, old, new in zip(self._pieces, self.rows, rows, strict=True)
            ]
            self.edges = {g: merge_partials(g.op, x, edges[g]) for g, x in self.edges.items()}

    def _arrays(self) -> list[Any]:
        return [x for found in (*self.rows, *self.edges.values()) for x in found]

    def _packed(self) -> bytes:
        return b"".join(np.asarray(x).tobytes() for x in self._arrays())

    def _unpacked(self, raw: bytes) -> tuple[list[list[Any]], dict[Gather, list[Any]]]:
        """What another process has, in arrays like those that are here."""
        at = 0

        def like(x: Any) -> Any:
            nonlocal at
            found = np.frombuffer(raw, x.dtype, x.size, at)
            at += x.nbytes
            return jnp.asarray(found.reshape(x.shape))

        rows = [[like(x) for x in found] for found in self.rows]
        return rows, {g: [like(x) for x in found] for g, found in self.edges.items()}

    def finish(self, env: dict[Array, Any]) -> None:
        """Put the results into `env`."""
        for executable, found in zip(self._pieces, self.rows, strict=True):
            for work, total in zip(executable.totals, found, strict=True):
                env[work.outputs[0]] = finished_total(work, total, env)
        for gather, partial in self.edges.items():
            env.update(gather.finished(partial))
