"""What a selection found, what it cut, and what it takes in memory."""

from __future__ import annotations

import dataclasses

Row = tuple[str, int, int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Selected:
    """What selection knows beside the arrays: static in the pytree, and no part of its identity.

    All are equal to JAX: neighbourhoods selected anew run what was compiled for those before, if
    their arrays have the same shapes.

    Attributes:
        by: the function that selected.
        rows: for each neighbour type its name, the instances that are kept, those that there are,
            and the most that a root has.
        cap: instances of a root and type that are kept at most, or None.
        graph_bytes: of the graph that was selected from.
        list_bytes: of naive lists: for each neighbour a record of its root, its type where there
            are several, and the vertices of it, 4 bytes each.
    """

    by: str
    rows: tuple[Row, ...]
    cap: int | None
    graph_bytes: int
    list_bytes: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selected)

    def __hash__(self) -> int:
        return hash(Selected)


@dataclasses.dataclass(frozen=True)
class Report:
    """What `HDG.report` says; `str` of it is a table.

    Attributes:
        by: the function that selected.
        rows: for each neighbour type its name, the instances that are kept, those that there are,
            and the most that a root has.
        cap: instances of a root and type that are kept at most, or None.
        cut: instances that were left out.
        levels: sources, destinations and edges of each level, from the bottom up.
        num_bytes: what the HDG keeps.
        level_bytes: its levels as graphs, with all that is implied.
        graph_bytes: the graph that was selected from.
        list_bytes: naive lists of the instances (the paper's records).
    """

    by: str
    rows: tuple[Row, ...]
    cap: int | None
    cut: int
    levels: tuple[tuple[int, int, int], ...]
    num_bytes: int
    level_bytes: int
    graph_bytes: int
    list_bytes: int

    def __str__(self) -> str:
        lines = [f"{self.by}: {sum(row[1] for row in self.rows):,} neighbour instances"]
        for name, kept, found, most in self.rows:
            cut = (
                f", {found - kept:,} cut by the cap of {self.cap:,} a root" if kept < found else ""
            )
            lines.append(f"  {name}: {kept:,}, at most {most:,} of a root{cut}")
        for i, (src, dst, edges) in enumerate(self.levels):
            lines.append(f"level {i}: {src:,} sources, {dst:,} destinations, {edges:,} edges")
        ratio = [f"{self.num_bytes / max(1, x):.2f}" for x in (self.graph_bytes, self.list_bytes)]
        lines.append(
            f"{self.num_bytes:,} bytes: {ratio[0]} x the graph's {self.graph_bytes:,}, "
            f"{ratio[1]} x the {self.list_bytes:,} of lists; as graphs {self.level_bytes:,}"
        )
        return "\n".join(lines)
