"""Index spaces: the set over which a value has one entry each (design/0001)."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, Literal

from gnnjit.errors import LayerError

SpaceKind = Literal["shared", "graph", "src", "dst", "edge"]

_FLOORS: dict[SpaceKind, int] = {"shared": 0, "graph": 1, "src": 2, "dst": 2, "edge": 3}
_LETTERS: dict[SpaceKind, str] = {
    "shared": "", "graph": "graph", "src": "u", "dst": "v", "edge": "e",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
    """Where a value lives: `shared < graph < src, dst < edge`.

    of: the relation (or vertex type) whose vertices or edges these are; None in a graph that has
        only one.

    `a <= b` says that a value of `a` can be read in `b`; it is so where `join(a, b)` is `b`. There
    is one object for each space, also after pickling, so `is` compares two of them.

    Layers use `SHARED`, `GRAPH` (one value for each graph of a batch), `SRC`, `DST` and `EDGE`.
    Spaces with a name can be joined, printed and parsed. Programs of typed graphs have them until
    they are cut into parts of one relation (design/0017); no pass or lowering knows them.
    """

    kind: SpaceKind
    of: str | None = None

    SHARED: ClassVar[Space]
    GRAPH: ClassVar[Space]
    SRC: ClassVar[Space]
    DST: ClassVar[Space]
    EDGE: ClassVar[Space]

    def __new__(cls, kind: SpaceKind, of: str | None = None) -> Space:
        if kind not in _FLOORS:
            raise ValueError(f"{kind!r} is no kind of space; there are {', '.join(_FLOORS)}")
        if of is not None and (_FLOORS[kind] < 2 or not of.isidentifier()):
            raise ValueError(f"a {kind} space of {of!r}: only src, dst and edge belong to a name")
        return _spaces.setdefault((kind, of), object.__new__(cls))

    def __reduce__(self) -> tuple[type[Space], tuple[SpaceKind, str | None]]:
        return Space, (self.kind, self.of)

    def __repr__(self) -> str:
        name = self.kind.upper()
        return f"Space.{name}" if self.of is None else f"Space({self.kind!r}, {self.of!r})"

    def __le__(self, other: Space) -> bool:
        if self is other:
            return True
        below = _FLOORS[self.kind] < _FLOORS[other.kind]
        return below and (not self.is_vertex or self.of == other.of)

    @property
    def value(self) -> str:
        """How it is written in types: `dst`, or `dst:paper`."""
        return self.kind if self.of is None else f"{self.kind}:{self.of}"

    @property
    def index(self) -> str:
        """What one element of this space is called in printed programs."""
        return _LETTERS[self.kind]

    @property
    def is_vertex(self) -> bool:
        return self.kind in ("src", "dst")

    @property
    def is_replicated(self) -> bool:
        """Whether each device has all values of it, where vertices and edges are sharded."""
        return self.kind in ("shared", "graph")

    @property
    def flipped(self) -> Space:
        """The same space on the reversed graph."""
        match self.kind:
            case "src":
                return Space("dst", self.of)
            case "dst":
                return Space("src", self.of)
        return self


_spaces: dict[tuple[SpaceKind, str | None], Space] = {}

Space.SHARED = Space("shared")
Space.GRAPH = Space("graph")
Space.SRC = Space("src")
Space.DST = Space("dst")
Space.EDGE = Space("edge")


def join(*spaces: Space) -> Space:
    """The smallest space that every one of `spaces` can be read in.

    Raises:
        LayerError: there is none, because they belong to different relations.
    """
    found = Space.SHARED
    for space in spaces:
        if space is not found:
            found = _join(found, space)
    return found


@functools.cache
def _join(a: Space, b: Space) -> Space:
    if a <= b:
        return b
    if b <= a:
        return a
    if a.of == b.of:
        return Space("edge", a.of)
    raise LayerError(
        f"a value of {a.value} and one of {b.value} meet on no edge, expected values of one "
        "relation: reduce them into the vertices that both relations share first"
    )
