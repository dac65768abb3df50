"""Hierarchical dependency graphs: which vertices, over which steps, make a vertex's neighbourhood.

Wang et al., "FlexGraph: A Flexible and Efficient Distributed Framework for GNN Training" (2021),
section 3.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gnnjit.errors import GraphError
from gnnjit.graph import Bipartite, Graph
from gnnjit.graph.by_destination import ByDestination
from gnnjit.graph.schema import features_for_types
from gnnjit.graph.validate import check_leading, is_traced
from gnnjit.neighborhood.numbered import numbered
from gnnjit.neighborhood.report import Report, Selected
from gnnjit.shapes import PyTree

Level = Graph | ByDestination


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["parts", "edges", "root"],
    meta_fields=["relations", "num_types", "longest", "types", "sizes", "root_type", "selected"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class HDG:
    """The hierarchical dependency graphs of all vertices: a frozen pytree, to be passed as an
    argument. The functions of `gnnjit.neighborhood` make one.

    Every vertex is a root. Its neighbours are of one or several types (metapaths, hops, anchor
    sets), the leaves of the schema tree, which all roots share. A neighbour is a vertex, or an
    instance of several. `levels` has, bottom up, whichever of these there are:

    - vertices to instances;
    - instances, or else vertices, to (root, type), number `root * num_types + type`;
    - (root, type) to the root: every root has `num_types` edges, side by side.

    A layer reads `e.relation`: in the first of these levels the position of the vertex in its
    instance, in the others the number of the neighbour type, as in `w[e.relation]`. `e.data` is
    what a selection says of edges, such as the weights of walks.

    Section 3.1 of the paper. Where we differ: of levels with several neighbour types, every root
    has every type, which may have no instances.

    Attributes:
        parts: what each level cannot derive.
        edges: the data of each level's edges, `[num_edges, ...]`, or None.
        relations: what `e.relation` is at each level, "position", "type" or "" (static).
        num_types: neighbour types (static).
        longest: the most vertices of an instance; 1 where neighbours are vertices (static).
        types, sizes: vertex types in the order in which their vertices are numbered, and how many
            each has (static). `types` is empty where the graph has none.
        root_type: the type of the roots, or None (static).
        selected: what `report` says.
        root: `int[roots]`, the vertices that are roots; None for all, in their order.
    """

    parts: tuple[Level, ...]
    edges: tuple[PyTree, ...]
    relations: tuple[str, ...]
    num_types: int
    longest: int
    types: tuple[str, ...]
    sizes: tuple[int, ...]
    root_type: str | None
    selected: Selected
    root: Any = None

    @property
    def num_levels(self) -> int:
        """The levels: 1 to 3."""
        return len(self.parts)

    @property
    def levels(self) -> tuple[Graph, ...]:
        """A graph for each level, from the bottom up: what any layer takes. Those of an HDG that is
        an argument of a compiled function are derived in it, and never stored."""
        return self._derived(traced=True) if is_traced(self) else self._known

    @functools.cached_property
    def _known(self) -> tuple[Graph, ...]:
        # A compiled function may capture it, and what is kept must be known outside of that.
        with jax.ensure_compile_time_eval():
            return self._derived(traced=False)

    def _derived(self, traced: bool) -> tuple[Graph, ...]:
        made = [p if isinstance(p, Graph) else p.graph(traced) for p in self.parts]
        counts = {"position": self.longest, "type": self.num_types, "": 0}
        each = zip(made, self.relations, strict=True)
        return tuple(numbered(graph, kind, counts[kind]) for graph, kind in each)

    @property
    def num_roots(self) -> int:
        """The roots: all vertices, or those of one type."""
        return self.parts[-1].num_dst

    @property
    def instance_types(self) -> Any:
        """`int32[instances]`, the neighbour type of each instance; None without types."""
        above = self.levels[1:2] if self.relations[0] == "position" else ()
        return above[0].relations.number if above and above[0].relations else None

    def __call__(self, x: PyTree, *stages: Callable[..., Any]) -> PyTree:
        """Aggregate from the bottom up, one stage a level, then update.

        Each level's stage is called as `stage(level, features)`, as layers and modules are, with
        `edges=` where the selection has data, which the stage must read. `e.src` is a value of the
        level below, at the bottom a vertex's features; `v` are the features of the root. A stage
        with parameters: `functools.partial(layer, p=p)`, `lambda level, x: layer(level, x, p)`, or
        a method of a module.

        Args:
            x: a pytree of `[N, ...]`; of typed graphs a dictionary of them by type, arrays of one
                width for all types.
            stages: one for each level, and the update, if there is one: any function of the roots'
                features and what the last level gives.

        Returns:
            what the last stage gives, `[roots, ...]`.

        Raises:
            GraphError: there are fewer stages, or more, than levels and an update, or `x` does not
                fit the vertices.
        """
        count = len(self.parts)
        if len(stages) not in (count, count + 1):
            raise GraphError(
                f"an HDG of {count} levels was called with {len(stages)} stages, expected {count}, "
                f"or {count + 1} with the update: pass one layer for each level, from the bottom up"
            )
        (h, roots), levels = self.features(x), self.levels
        for i, (level, data) in enumerate(zip(levels, self.edges, strict=True)):
            given = {} if data is None else {"edges": data}
            if level.bipartite:
                h = Bipartite(h, self._at_destinations(i, levels, roots))
            h = stages[i](level, h, **given)
        return h if len(stages) == count else stages[-1](roots, h)

    def apply(self, fn: Callable[..., PyTree], *args: Any) -> PyTree:
        """`fn(hdg, *args)`, which a `StreamedHDG` calls with an HDG of some roots after the other.

        For models that read more of an HDG than a call of it does, such as `instance_types`. `fn`
        gives a row for each root, from what is at the root and in its neighbourhood.
        """
        return fn(self, *args)

    def mean_of_roots(self, rows: PyTree) -> PyTree:
        """The mean over all roots of a pytree of `[roots, ...]`."""
        return jax.tree.map(lambda a: a.mean(axis=0), rows)

    def features(self, x: PyTree) -> tuple[PyTree, PyTree]:
        """The features of all vertices, as the lowest level numbers them, and of the roots.

        Raises GraphError where `x` does not fit the vertices.
        """
        every, roots = self._features(x)
        if self.root is not None:
            roots = jax.tree.map(lambda a: jnp.asarray(a)[self.root], roots)
        return every, roots

    def _features(self, x: PyTree) -> tuple[PyTree, PyTree]:
        self.check_rows(x)
        if not self.types:
            return x, x
        kinds = [jax.tree.map(lambda a: (a.shape[1:], a.dtype), x[t]) for t in self.types]
        for t, kind in zip(self.types, kinds, strict=True):
            if kind != kinds[0]:
                raise GraphError(
                    f"x[{t!r}] has rows of {kind} and x[{self.types[0]!r}] of {kinds[0]} (shape, "
                    f"dtype), expected the same for all types: apply a linear map to each type"
                )
        every = jax.tree.map(lambda *rows: jnp.concatenate(rows), *(x[t] for t in self.types))
        return every, x[self.root_type]

    def check_rows(self, x: PyTree) -> None:
        """Raises GraphError unless `x` has a row for each vertex, by type where there are types."""
        hint = "pass arrays with one row per vertex"
        if not self.types:
            check_leading("x", x, self.sizes[0], "vertices", hint)
            return
        present = {t: x[t] for t in self.types if t in x} if isinstance(x, Mapping) else x
        features_for_types(present, self.types, "x")
        for t, n in zip(self.types, self.sizes, strict=True):
            check_leading(f"x[{t!r}]", x[t], n, f"vertices of type {t!r}", hint)

    def roots(self) -> list[Any]:
        """For each level `int[num_dst]`, the root of each destination; None where they are the
        roots. NumPy's, unless the HDG is traced."""
        levels = self.levels
        return [self._root_of(i, levels) for i in range(len(levels))]

    def _root_of(self, number: int, levels: Sequence[Graph]) -> Any:
        last, times = len(levels) - 1, self.num_types
        xp: Any = jnp if is_traced(self) else np
        if number == last:
            return None
        if self.relations[number] != "position":  # of (root, type)
            return xp.repeat(xp.arange(self.num_roots), times)
        above = xp.asarray(levels[number + 1].dst)
        return above if number + 1 == last else above // times

    def _at_destinations(self, number: int, levels: Sequence[Graph], roots: PyTree) -> PyTree:
        """The features of the root of each destination of a level."""
        root = self._root_of(number, levels)
        return roots if root is None else jax.tree.map(lambda x: jnp.asarray(x)[root], roots)

    def expanded(self) -> HDG:
        """With its levels stored whole, in 2 to 6 times the bytes: compiled functions derive
        nothing, which saves up to a third of a gradient's time where features are few."""
        return dataclasses.replace(self, parts=self.levels)

    def compact(self) -> HDG:
        """Without the edges of the lowest level by source, which are up to half of the bytes: to
        keep it, or for results alone, at no cost. Each gradient sorts them."""
        parts = tuple(
            p if isinstance(p, Graph) else dataclasses.replace(p, by_source=None)
            for p in self.parts
        )
        return dataclasses.replace(self, parts=parts)

    def pad(self, num_edges: int) -> HDG:
        """With the edges of the lowest level padded to a capacity: neighbours that are selected
        anew, in each epoch for instance, then run what was compiled for those before. Walks have
        `num_roots * top_k` at most. Capped metapaths keep their sizes, and need none.

        Raises:
            GraphError: if neighbours are instances, or there are more edges.
        """
        if self.longest > 1 or self.relations[0] == "position":
            raise GraphError(
                "pad() was called on an HDG of instances, expected neighbours that are vertices: "
                "select metapaths with a cap, whose sizes do not depend on the seed"
            )
        lowest = self.parts[0]
        graph = lowest if isinstance(lowest, Graph) else lowest.graph(is_traced(self))
        padded, data = graph.pad(num_edges=num_edges), self.edges[0]
        data = None if data is None else padded.pad_edges(data)
        return dataclasses.replace(
            self, parts=(padded, *self.parts[1:]), edges=(data, *self.edges[1:])
        )

    def report(self) -> Report:
        """Sizes, caps, what was cut, and bytes beside those of the graph and of naive lists.

        Raises GraphError inside `jit`, where none of it is known.
        """
        if is_traced(self):
            raise GraphError(
                "report() was called on a traced HDG, expected a concrete one: call it outside jit"
            )
        rows, selected = self.selected.rows, self.selected
        whole = (self.levels, self.edges)
        return Report(
            by=selected.by,
            rows=rows,
            cap=selected.cap,
            cut=sum(found - kept for _, kept, found, _ in rows),
            levels=tuple((p.num_src, p.num_dst, p.num_edges) for p in self.parts),
            num_bytes=num_bytes(self),
            level_bytes=num_bytes(whole),
            graph_bytes=selected.graph_bytes,
            list_bytes=selected.list_bytes,
        )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{p.num_edges} edges" for p in self.parts)
        kinds = f", {self.num_types} neighbour types" if self.num_types > 1 else ""
        return f"HDG({self.selected.by}: {self.num_roots} roots{kinds}; levels of {sizes})"


def num_bytes(tree: PyTree) -> int:
    """Bytes of the arrays of a pytree, each counted once."""
    return sum({id(leaf): leaf.nbytes for leaf in jax.tree.leaves(tree)}.values())
