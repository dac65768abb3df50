"""Index spaces: the set over which a value has one entry each (DESIGN section 2)."""

from __future__ import annotations

import enum


class Space(enum.Enum):
    """Where a value lives. `SHARED < SRC, DST < EDGE`; the join of SRC and DST is EDGE."""

    SHARED = "shared"
    SRC = "src"
    DST = "dst"
    EDGE = "edge"

    __hash__ = object.__hash__  # by identity: the default hashes the name, in Python

    def __repr__(self) -> str:
        return f"Space.{self.name}"

    def __le__(self, other: Space) -> bool:
        return join(self, other) is other

    @property
    def index(self) -> str:
        """The letter of one element of this space in printed programs."""
        return {"shared": "", "src": "u", "dst": "v", "edge": "e"}[self.value]

    @property
    def flipped(self) -> Space:
        """The same space on the reversed graph."""
        return {Space.SRC: Space.DST, Space.DST: Space.SRC}.get(self, self)


def join(*spaces: Space) -> Space:
    """The smallest space that every one of `spaces` can be read in."""
    found = Space.SHARED
    for space in spaces:
        if space is not found and space is not Space.SHARED:
            if found is not Space.SHARED:
                return Space.EDGE
            found = space
    return found
