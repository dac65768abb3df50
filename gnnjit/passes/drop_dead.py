"""`drop-dead`: what nobody reads is not computed.

before:  a = x @ w; b = x + 1; return b        after:  b = x + 1; return b

An `aggregate` loses the outputs that nobody reads, and the operands that only those needed; the
maximum of a score stays with the sums that need it. Always legal: equations have no side effects.
"""

from __future__ import annotations

import dataclasses

from gnnjit.ir.program import Program, needed


@dataclasses.dataclass(frozen=True)
class DropDead:
    name: str = "drop-dead"

    def __call__(self, program: Program) -> Program:
        live = needed(program.equations, program.outputs)
        return dataclasses.replace(program, equations=live)
