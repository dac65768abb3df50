"""Memory that is asked for while a product runs, for what is read after it.

A product reads what lies in the second cache, and memory is idle; then the next stage of a tile
waits for rows of the edges' arrays. So each block of a product asks for some lines of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from llvmlite import ir

from gnnjit.lower.cpu.control_flow import Emitter
from gnnjit.lower.cpu.simd import LINE, PTR


@dataclasses.dataclass(frozen=True)
class Ahead:
    """So many bytes from `start` on, of which nothing need be there."""

    start: ir.Value
    size: int

    def lines(self, blocks: int) -> int:
        """How many each of so many blocks asks for."""
        return -(-self.size // (LINE * blocks))


class LinesAhead:
    """Asks for the next lines from some pointers on, again and again. lines: of each, at a time."""

    def __init__(self, m: Emitter, starts: Sequence[ir.Value], lines: Sequence[int]):
        self.m, self.lines = m, lines
        with m.b.goto_entry_block():
            self.places = [m.b.alloca(PTR) for _ in starts]
        for start, place in zip(starts, self.places, strict=True):
            m.b.store(start, place)

    def ask(self) -> None:
        for place, lines in zip(self.places, self.lines, strict=True):
            pointer = self.m.b.load(place, typ=PTR)
            for line in range(lines):
                self.m.ask_for_line(self.m.offset(pointer, LINE * line, 1), near=False)
            self.m.b.store(self.m.offset(pointer, LINE * lines, 1), place)
